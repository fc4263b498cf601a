"""Files that survive a kill and a power cut: a file has its old content or its new content, never a part.

Knows files, `fsync` and the errors of the operating system; knows nothing of rounds or tensors.
POSIX only: a rename replaces its target in one step, and a directory can be synced like a file.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cfel.errors import StorageError

_REASONS = (
    (
        (errno.ENOSPC, errno.EDQUOT),
        "no space left; what was written before is safe, free some space and resume",
    ),
    ((errno.EROFS, errno.EACCES, errno.EPERM), "not writable for this user (read-only directory or device)"),
    ((errno.EFBIG,), "the file would be larger than the system allows; what was written before is safe"),
    ((errno.ENOENT,), "it does not exist"),
    ((errno.ENOTDIR, errno.EEXIST), "part of the path is a file, not a directory"),
)


def reason(error: OSError) -> str:
    """Why the operating system refused, in words that help the user."""
    for numbers, words in _REASONS:
        if error.errno in numbers:
            return words
    return error.strerror or str(error)


@contextmanager
def translate_os_errors(verb: str, path: Path) -> Iterator[None]:
    """Turns an `OSError` into a `StorageError` that says what failed, on which path, and why.

    Args:
        verb: what is done: "write", "read", "create".
        path: the file or directory.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {verb} {path}: {reason(error)}") from error


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


def temporary_name(path: Path) -> Path:
    """Where the new content of `path` is written until it is complete."""
    return path.with_name(f".{path.name}.tmp")


def replace_file(path: Path, *content: bytes | memoryview) -> None:
    """Replaces the content of `path`; at any time a reader finds the old content or the new, never a part.

    Args:
        path: the file.
        *content: the new content, in pieces, so that large ones need not be joined in memory.

    Raises:
        StorageError: the system refused; the old content is still there, and no temporary file is left.
    """
    temporary = temporary_name(path)
    with translate_os_errors("write", path):
        try:
            with temporary.open("wb") as file:
                file.writelines(content)
            sync_file(temporary)
            temporary.replace(path)
        except OSError:
            remove_quietly(temporary)
            raise
        # Without this a power cut could undo the rename.
        sync_directory(path.parent)


def remove_quietly(path: Path) -> None:
    """Removes a file if possible; a leftover is removed at the next open."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def read_bytes(path: Path) -> bytes:
    """Reads a whole file.

    Raises:
        StorageError: it is missing or cannot be read.
    """
    with translate_os_errors("read", path):
        return path.read_bytes()
