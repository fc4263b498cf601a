"""Bytes that survive a kill and a power cut: whole or not at all.

Knows files, `fsync` and what the operating system says when it refuses; knows nothing of rounds or tensors.
POSIX only: a rename replaces its target in one step, and a directory can be synced like a file.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cfel.errors import RunDirectoryError

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
    """Why the operating system refused, in words a user can act on."""
    for numbers, words in _REASONS:
        if error.errno in numbers:
            return words
    return error.strerror or str(error)


@contextmanager
def reported(doing: str, path: Path) -> Iterator[None]:
    """Turns an `OSError` inside into a `RunDirectoryError` saying what failed, on which path, and why.

    Args:
        doing: a verb: "write", "read", "create".
        path: what it is done to.
    """
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(f"cannot {doing} {path}: {reason(error)}") from error


def sync_file(path: Path) -> None:
    """Returns when the file's content is on the device."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Returns when the directory's entries (new names, renames, removals) are on the device."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """Where the new content of `path` grows until it is whole."""
    return path.with_name(f".{path.name}.tmp")


def replace_file(path: Path, *content: bytes | memoryview) -> None:
    """Gives `path` this content; at every instant a reader finds the old content or the new, never a part.

    Args:
        path: the file.
        *content: what it is to hold, in pieces, so that large ones need not be put together in memory.

    Raises:
        RunDirectoryError: the system refused; the old content is still there and nothing is left behind.
    """
    temporary = temporary_name(path)
    with reported("write", path):
        try:
            with temporary.open("wb") as file:
                file.writelines(content)
            sync_file(temporary)
            temporary.replace(path)
        except OSError:
            remove_quietly(temporary)
            raise
        sync_directory(path.parent)


def remove_quietly(path: Path) -> None:
    """Removes a file that may be gone already or may refuse to go; it is swept up at the next open."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def read_bytes(path: Path) -> bytes:
    """The file's content.

    Raises:
        RunDirectoryError: it is missing or cannot be read.
    """
    with reported("read", path):
        return path.read_bytes()
