"""Fetching an archive for users who are online: checked against its SHA-256, put into place when complete.

Only data archives are fetched, from the address their authors publish. Nothing else in this package uses the
network, and this is only called when no local path was given.
"""

import hashlib
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from cfel.errors import InputError

Progress: TypeAlias = Callable[[int, int], None]
"""(bytes so far, bytes in all or 0 if unknown)."""

_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True)
class Archive:
    """A compressed tar file on the web.

    Attributes:
        url: where it is.
        sha256: of the file, in hexadecimal.
    """

    url: str
    sha256: str


def fetched(archive: Archive, target: Path, progress: Progress | None = None, timeout: float = 30.0) -> Path:
    """The directory `target` with the archive's content, downloaded unless it is there already.

    Args:
        archive: what to fetch.
        target: the directory to make; it appears only when complete.
        progress: called with the bytes received so far and in all.
        timeout: seconds without an answer before giving up.

    Raises:
        InputError: the host cannot be reached, or the file is not the one expected.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    file = target.with_name(f"{target.name}.{os.getpid()}.part")
    unpacked = target.with_name(f"{target.name}.{os.getpid()}.unpacked")
    try:
        _receive(archive, file, progress, timeout)
        with tarfile.open(file) as tar:
            tar.extractall(unpacked, filter="data")
        unpacked.replace(target)
    except (urllib.error.URLError, TimeoutError, OSError, tarfile.TarError) as error:
        raise InputError(
            f"{archive.url}: cannot be downloaded ({error}); fetch it by hand and set data.path"
        ) from error
    finally:
        file.unlink(missing_ok=True)
        shutil.rmtree(unpacked, ignore_errors=True)
    return target


def _receive(archive: Archive, file: Path, progress: Progress | None, timeout: float) -> None:
    digest, received = hashlib.sha256(), 0
    with urllib.request.urlopen(archive.url, timeout=timeout) as answer, file.open("wb") as out:  # noqa: S310
        total = int(answer.headers.get("Content-Length") or 0)
        while block := answer.read(_BLOCK):
            out.write(block)
            digest.update(block)
            received += len(block)
            if progress is not None:
                progress(received, total)
    if digest.hexdigest() != archive.sha256:
        raise InputError(f"{archive.url}: SHA-256 is {digest.hexdigest()}, expected {archive.sha256}")
