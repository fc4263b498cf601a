"""Files that survive a kill and a power cut: a file has its old content or its new content, never a part.

Knows files, `fsync` and the errors of the operating system; knows nothing of rounds or tensors.
POSIX only: a rename replaces its target in one step, and a directory can be synced like a file.

A directory that somebody else sent may hold links, pipes and huge files. So no link is followed here, neither
to write nor to read, and only regular files of a bounded size are read.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from cfel.errors import DiskError, RunDirectoryError, StorageError
from cfel.wording import shorten

MAX_BYTES = 1024**3
"""Size up to which a file is read, where nothing else is said: beyond all logs and tables of real runs."""

_SUFFIX = ".tmp"
# Leaves room for what a temporary name adds; file systems allow 255 bytes.
_MAX_NAME = 50
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_REASONS = (
    (
        (errno.ENOSPC, errno.EDQUOT),
        "no space left; what was written before is safe, free some space and resume",
    ),
    ((errno.EROFS, errno.EACCES, errno.EPERM), "not writable for this user (read-only directory or device)"),
    ((errno.EFBIG,), "the file would be larger than the system allows; what was written before is safe"),
    ((errno.ENOENT,), "it does not exist"),
    ((errno.ELOOP,), "it is a link, which is not followed here"),
    ((errno.ENOTDIR, errno.EEXIST), "part of the path is a file, not a directory"),
)


def explain_os_error(error: OSError) -> str:
    """Why the operating system failed, in words that help the user."""
    for numbers, words in _REASONS:
        if error.errno in numbers:
            return words
    return error.strerror or str(error)


@contextmanager
def translate_os_errors(verb: str, path: Path) -> Iterator[None]:
    """Turns an `OSError` into a `DiskError`: cannot "write", "read" or "create" which path, and why."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"cannot {verb} {path}: {explain_os_error(error)}") from error


@contextmanager
def translate_parse_errors(path: Path) -> Iterator[None]:
    """Turns whatever a parser raises on the content of a file into a `RunDirectoryError` that names the file.

    Parsers raise all kinds of errors on bytes that nobody foresaw, so everything is caught here, once; around
    the parsing of one file, and nothing else.
    """
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        words = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        # A parser may quote the whole file in its error.
        raise RunDirectoryError(f"{path} is damaged: {shorten(words, 300)}") from error


def sync_file(path: Path) -> None:
    """Returns when the file's content is on the disk."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Returns when the directory's entries (new names, renames, removals) are on the disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """A new, empty file beside `path` that takes its place, synced, when the block ends without an error.

    Its name is random and it is created, never opened: a file or link that somebody left under a name that
    they guessed is not written to. Nor is `path`, if that is a link: the rename replaces the link itself.
    Only this user may read a `private` file.

    Raises:
        StorageError: the file cannot be written; its old content is kept, and no temporary file is left.
    """
    temporary = path.with_name(f".{path.name[:_MAX_NAME]}.{secrets.token_hex(8)}{_SUFFIX}")
    with translate_os_errors("write", path):
        os.close(os.open(temporary, _NEW, 0o600 if private else 0o666))
        try:
            yield temporary
            sync_file(temporary)
            temporary.replace(path)
        except BaseException:
            remove_quietly(temporary)
            raise
        # Without this a power cut could undo the rename.
        sync_directory(path.parent)


def replace_file(path: Path, *content: bytes | memoryview, private: bool = False) -> None:
    """Replaces the content of `path`, as `replacing` does.

    The content may come in pieces, so that large ones need not be joined in memory.
    """
    with replacing(path, private=private) as temporary, temporary.open("wb") as file:
        file.writelines(content)


def remove_quietly(path: Path) -> None:
    """Removes a file if possible; a leftover is removed at the next open."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def set_aside(path: Path) -> Path:
    """Renames a file that cannot be used, so that somebody can look at it; returns its new path."""
    aside = path.with_name(f"{path.name}.damaged")
    with translate_os_errors("rename", path):
        path.replace(aside)
        sync_directory(path.parent)
    return aside


def remove_leftovers(directory: Path) -> None:
    """Removes what writers left that were killed; only for the one process that writes to `directory`."""
    for path in directory.glob(f".*{_SUFFIX}"):
        remove_quietly(path)


def read_bytes(
    path: Path, *, start: int = 0, max_bytes: int | None = MAX_BYTES, follow_links: bool = False
) -> bytes:
    """Reads a regular file, from byte `start` on; `max_bytes` is how large it may be, None for no limit.

    Links are for files that a user names, not for those of a run directory, which may come from somebody else
    and then point anywhere.

    Raises:
        StorageError: it is missing, too large, no regular file, or cannot be read.
    """
    # Without O_NONBLOCK a pipe would block here until somebody writes to it.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    with translate_os_errors("read", path), os.fdopen(os.open(path, flags), "rb") as file:
        size = _check_regular("read", path, file.fileno())
        if max_bytes is not None and size > max_bytes:
            raise StorageError(
                f"cannot read {path}: it has {size:,} bytes, at most {max_bytes:,} are allowed"
            )
        words = f"cannot read {path}: its {size:,} bytes do not fit into memory"
        if size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
            # The system would grant it, and end the process later.
            raise StorageError(words)
        try:
            file.seek(start)
            # Not more, even if somebody appends to it meanwhile.
            return file.read(max(0, size - start))
        except MemoryError as error:
            raise StorageError(words) from error


def open_log(path: Path) -> TextIO:
    """Opens a text file to append to; only this user may read it, and it must not be a link.

    Raises:
        StorageError: it is not a regular file, or cannot be read.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with translate_os_errors("write", path):
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            # A pipe that nobody reads.
            if error.errno == errno.ENXIO:
                raise StorageError(f"cannot write {path}: it is not a regular file") from error
            raise
        file = os.fdopen(descriptor, "a", encoding="utf-8")
        _check_regular("write", path, descriptor)
        return file


def _check_regular(verb: str, path: Path, descriptor: int) -> int:
    """The size of an open file, which has to be a regular one."""
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        raise StorageError(f"cannot {verb} {path}: it is not a regular file")
    return facts.st_size


def make_directory(path: Path, *, private: bool = False) -> None:
    """Makes a directory inside one that exists, unless it is there; a link or file in its place is an error.

    If it is made here and `private`, only this user may look into it.
    """
    check_directory(path)
    with translate_os_errors("create", path):
        path.mkdir(mode=0o700 if private else 0o777, exist_ok=True)


def check_directory(path: Path) -> None:
    """Raises a `StorageError` if a directory inside a run directory is a link; it need not exist."""
    # A name may be longer than the system allows.
    with translate_os_errors("read", path):
        is_link = path.is_symlink()
    if is_link:
        raise StorageError(
            f"{path} is a link, which is not followed here: remove it or copy what it points to"
        )
