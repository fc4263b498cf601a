"""Images from Parquet files in the Hugging Face schema, decoded once and kept.

A column of images is a struct {bytes, path} with PNG (or other) files inside. Decoding 60,000 of them takes
some fifteen seconds, reading the decoded array a tenth of one. So it is kept in a cache directory under a
name made of the file's path, size and time of change; it is written aside and renamed, so that nobody ever
reads half of it. A cache that cannot be written is done without.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, UnidentifiedImageError

from cfel.arrays import ByteArray
from cfel.errors import InputError

GREY = ("1", "L", "LA", "I", "F")
"""Modes of Pillow in which a picture has no colours."""


def cache_directory() -> Path:
    """Where decoded images are kept: $CFEL_CACHE, else $XDG_CACHE_HOME/cfel, else ~/.cache/cfel."""
    if chosen := os.environ.get("CFEL_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cfel"


def columns(path: Path, wanted: list[str]) -> dict[str, pa.ChunkedArray]:
    """Some columns of a Parquet file.

    Raises:
        InputError: naming the file, and the column it lacks.
    """
    try:
        table = pq.read_table(path, columns=None if not wanted else _present(path, wanted))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error
    return {name: table.column(name) for name in table.column_names}


def _present(path: Path, wanted: list[str]) -> list[str]:
    names = pq.read_schema(path).names
    for name in wanted:
        if name not in names:
            raise InputError(f"{path}: there is no column {name!r} (it has {', '.join(names)})")
    return wanted


def column_names(path: Path) -> list[str]:
    """What columns a Parquet file has."""
    try:
        return list(pq.read_schema(path).names)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error


def decoded(path: Path, column: str, channels: int, cache: Path | None) -> ByteArray:
    """All images of a Parquet file's column, as samples × channels × height × width.

    Args:
        path: the Parquet file.
        column: a struct column with a field `bytes`.
        channels: 1 (grey) or 3 (colour); images are converted.
        cache: directory to keep the decoded array in, or None.
    """
    kept = None if cache is None else cache / f"{_fingerprint(path, column, channels)}.npy"
    return kept_array(kept, lambda: _decode(path, column, channels))


def kept_array(kept: Path | None, make: Callable[[], ByteArray]) -> ByteArray:
    """The images in a file of the cache; made, and written there, if it does not hold them yet."""
    if kept is not None and (images := _read(kept)) is not None:
        return images
    images = make()
    if kept is not None:
        _write(kept, images)
    return images


def _decode(path: Path, column: str, channels: int) -> ByteArray:
    cells = columns(path, [column])[column].combine_chunks()
    if not pa.types.is_struct(cells.type) or cells.type.get_field_index("bytes") < 0:
        raise InputError(f"{path}: column {column!r} must hold structs with a field 'bytes', is {cells.type}")
    contents = (cell.as_py() for cell in cells.field("bytes"))
    return decoded_cells(contents, channels, f"{path}: column {column!r}", len(cells))


def decoded_cells(
    contents: Iterable[bytes | None], channels: int | None, where: str, count: int = 0
) -> ByteArray:
    """Image files as one array, samples × channels × height × width.

    Args:
        contents: the files, PNG or other.
        channels: 1 (grey) or 3 (colour), images are converted; None for what the first image has.
        where: what to call their place in messages.
        count: how many they are, where that is known; saves a copy.

    Raises:
        InputError: there are none, one is no image, or they are not all of one size.
    """
    images: list[ByteArray] | ByteArray = []
    shape: tuple[int, ...] | None = None
    for row, content in enumerate(contents):
        image = _picture(content, channels, f"{where}, row {row}")
        if shape is None:
            shape, channels = image.shape, 1 if image.ndim == 2 else 3
            images = np.empty((count, *shape), dtype=np.uint8) if count else []
        if image.shape != shape:
            raise InputError(
                f"{where}, row {row} is {image.shape[0]}×{image.shape[1]} pixels, "
                f"row 0 is {shape[0]}×{shape[1]}"
            )
        if isinstance(images, list):
            images.append(image)
        else:
            images[row] = image
    if shape is None or channels is None:
        raise InputError(f"{where}: there is not a single row")
    stacked = np.stack(images) if isinstance(images, list) else images
    return np.ascontiguousarray(stacked.reshape(*stacked.shape[:3], channels).transpose(0, 3, 1, 2))


def _picture(content: bytes | None, channels: int | None, where: str) -> ByteArray:
    try:
        with Image.open(io.BytesIO(content or b"")) as picture:
            grey = channels == 1 if channels is not None else picture.mode in GREY
            return np.asarray(picture.convert("L" if grey else "RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{where}: not an image: {error}") from error


def _fingerprint(path: Path, column: str, channels: int) -> str:
    about = path.stat()
    text = f"{path.resolve()}|{about.st_size}|{about.st_mtime_ns}|{column}|{channels}|1"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _read(kept: Path) -> ByteArray | None:
    try:
        images: ByteArray = np.load(kept, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return images if images.dtype == np.uint8 and images.ndim == 4 else None


def _write(kept: Path, images: ByteArray) -> None:
    aside = kept.with_name(f"{kept.stem}.{os.getpid()}.part")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            np.save(file, images, allow_pickle=False)
        aside.replace(kept)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
