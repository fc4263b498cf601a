"""Downloads a data archive, checks its SHA-256, and moves it into place when it is complete.

Archives come from the address that their authors publish. A download happens only when `data.path` is not
set. Data sets of the Hugging Face hub are another matter (`hub`).
"""

import hashlib
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from cfel.errors import InputError

Progress: TypeAlias = Callable[[int, int], None]
"""(bytes so far, total bytes or 0 if unknown)."""

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


def fetch_archive(
    archive: Archive, target: Path, progress: Progress | None = None, timeout: float = 30.0
) -> Path:
    """Downloads and unpacks an archive, unless its directory exists already; returns the directory.

    Args:
        archive: what to download.
        target: the directory to create; it appears only when complete.
        progress: called with the bytes received so far and the total.
        timeout: seconds without data before giving up.

    Raises:
        InputError: the host cannot be reached, or the file is not the one expected.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may download at the same time. Each has its own files; the first to finish wins.
    file = target.with_name(f"{target.name}.{os.getpid()}.part")
    unpacked = target.with_name(f"{target.name}.{os.getpid()}.unpacked")
    try:
        _receive(archive, file, progress, timeout)
        with tarfile.open(file) as tar:
            _unpack(tar, unpacked)
        unpacked.replace(target)
    except (urllib.error.URLError, TimeoutError, OSError, tarfile.TarError) as error:
        if target.is_dir():
            return target
        raise InputError(
            f"{archive.url}: cannot be downloaded ({error}); download it by hand and set data.path"
        ) from error
    finally:
        file.unlink(missing_ok=True)
        shutil.rmtree(unpacked, ignore_errors=True)
    return target


def _unpack(tar: tarfile.TarFile, target: Path) -> None:
    """Unpacks plain files and directories that stay within the target.

    `extractall(filter="data")` would do, but Python has it from 3.11.4 on only.

    Raises:
        TarError: the archive has anything else.
    """
    for member in tar:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is not a plain file within the archive")
        place = target / path
        if member.isdir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None  # noqa: S101 — it is a file
            with content, place.open("xb") as out:
                shutil.copyfileobj(content, out)


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
