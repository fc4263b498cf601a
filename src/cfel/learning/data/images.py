"""Random changes to training images, and images from Parquet files, decoded once and cached.

A column of images, in the Hugging Face schema, holds structs {bytes, path} with PNG (or other) files.
Decoding 60,000 of them takes about fifteen seconds, reading the decoded array a tenth of a second. So the
array is kept in a cache directory, under a name made from the file's path, size and modification time. If the
cache cannot be written, images are decoded each time.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from cfel.arrays import ByteArray
from cfel.durable import replacing
from cfel.errors import InputError, StorageError
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, check_call, resolve

if TYPE_CHECKING:
    import pyarrow as pa

Augmentation: TypeAlias = Callable[[Tensor, np.random.Generator], Tensor]
"""(batch, generator) → batch; draws from the generator only, and works on the whole batch at once."""


def crop_and_flip(padding: int = 4) -> Augmentation:
    """Shifts each image by up to `padding` pixels each way, fills with zeros, and mirrors half of them."""
    if padding < 0:
        raise InputError(f"augmentation: padding must not be negative, got {padding}")

    def augment(batch: Tensor, draw: np.random.Generator) -> Tensor:
        count, channels, height, width = batch.shape
        shift = torch.from_numpy(draw.integers(0, 2 * padding + 1, (2, count, 1))).to(batch.device)
        mirrored = torch.from_numpy(draw.random((count, 1)) < 0.5).to(batch.device)
        rows = torch.arange(height, device=batch.device) + shift[0]
        columns = torch.arange(width, device=batch.device).expand(count, width)
        columns = torch.where(mirrored, width - 1 - columns, columns) + shift[1]
        wide = width + 2 * padding
        padded = torch.nn.functional.pad(batch, (padding,) * 4)
        place = (rows * wide)[:, :, None] + columns[:, None, :]
        place = place.view(count, 1, height * width).expand(count, channels, height * width)
        return padded.view(count, channels, -1).gather(2, place).view_as(batch)

    return augment


BUILTIN: Mapping[str, Callable[[], Augmentation | None]] = MappingProxyType(
    {"none": lambda: None, "crop_flip": crop_and_flip, "flip": lambda: crop_and_flip(padding=0)}
)


def augmentation(name: str, code: CodePolicy = BUILT_IN_ONLY) -> Augmentation | None:
    """The augmentation called `name`: built in, an entry point `cfel.augmentation`, "module:function"."""
    builder: Callable[[], Augmentation | None] = resolve("augmentation", name, BUILTIN, (), code=code)
    found = builder()
    if found is not None:
        if not callable(found):
            raise InputError(f"augmentation {name!r} returned a {type(found).__name__}, not a function")
        check_call(f"augmentation {name!r}", found, ("batch", "generator"))
    return found


GREY = ("1", "L", "LA", "I", "F")
"""Pillow's modes for images without colour."""


def cache_directory() -> Path:
    """Where decoded images are cached: $CFEL_CACHE, else $XDG_CACHE_HOME/cfel, else ~/.cache/cfel."""
    if chosen := os.environ.get("CFEL_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cfel"


def read_columns(path: Path, wanted: list[str]) -> dict[str, "pa.ChunkedArray"]:
    """Reads some columns of a Parquet file."""
    # Here and below, because most devices read no such files, and the packages take 30 MB.
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = read_column_names(path)
    for name in wanted:
        if name not in names:
            raise InputError(f"{path}: there is no column {name!r} (it has {', '.join(names)})")
    try:
        table = pq.read_table(path, columns=wanted)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error
    return {name: table.column(name) for name in table.column_names}


def read_column_names(path: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(path).names)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error


def load_images(path: Path, column: str, channels: int, cache: Path) -> ByteArray:
    """Loads all images of a column of a Parquet file, as samples × channels × height × width."""
    status = path.stat()
    text = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}|{column}|{channels}|1"
    fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return load_cached_array(cache / f"{fingerprint}.npy", lambda: _decode_column(path, column, channels))


def load_cached_array(file: Path, make: Callable[[], ByteArray]) -> ByteArray:
    """Loads images from a file of the cache, or makes them and writes the file."""
    try:
        found: ByteArray = np.load(file, allow_pickle=False)
        if found.dtype == np.uint8 and found.ndim == 4:
            return found
    except (OSError, ValueError, EOFError):
        pass  # a missing or damaged file of the cache is made again
    images = make()
    with suppress(OSError, StorageError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary, temporary.open("wb") as out:
            np.save(out, images, allow_pickle=False)
    return images


def _decode_column(path: Path, column: str, channels: int) -> ByteArray:
    import pyarrow as pa

    cells = read_columns(path, [column])[column].combine_chunks()
    if not pa.types.is_struct(cells.type) or cells.type.get_field_index("bytes") < 0:
        raise InputError(f"{path}: column {column!r} must hold structs with a field 'bytes', is {cells.type}")
    contents = (cell.as_py() for cell in cells.field("bytes"))
    return decode_images(contents, len(cells), channels, f"{path}: column {column!r}")


def decode_images(
    contents: Iterable[bytes | None], count: int, channels: int | None, where: str
) -> ByteArray:
    """Decodes so many image files into one array, samples × channels × height × width.

    They become grey (1 channel) or coloured (3); None keeps the channels of the first. `where` is for
    messages.
    """
    images: ByteArray = np.empty(0, dtype=np.uint8)
    for row, content in enumerate(contents):
        image = _decode_image(content, channels, f"{where}, row {row}")
        if row == 0:
            channels = 1 if image.ndim == 2 else 3
            # One array from the beginning: stacking them would take the memory of the data set once more.
            images = np.empty((count, *image.shape), dtype=np.uint8)
        if image.shape != images.shape[1:]:
            raise InputError(
                f"{where}, row {row} is {image.shape[0]}×{image.shape[1]} pixels, "
                f"row 0 is {images.shape[1]}×{images.shape[2]}"
            )
        images[row] = image
    if not images.size or channels is None:
        raise InputError(f"{where}: there are no rows")
    return np.ascontiguousarray(images.reshape(*images.shape[:3], channels).transpose(0, 3, 1, 2))


def _decode_image(content: bytes | None, channels: int | None, where: str) -> ByteArray:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content or b"")) as image:
            grey = channels == 1 if channels is not None else image.mode in GREY
            return np.asarray(image.convert("L" if grey else "RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{where}: not an image: {error}") from error
