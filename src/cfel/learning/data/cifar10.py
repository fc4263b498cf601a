"""CIFAR-10 from a directory, in any of its three forms, or from the web.

The directory is searched, with everything below it, for these forms in this order: Parquet as on the Hugging
Face hub (`train*.parquet`, `test*.parquet` with `img` or `image`, and `label`), the binary version
(`data_batch_?.bin`, `test_batch.bin`) and the Python version (`data_batch_?`, `test_batch`). Without a path
the binary version is downloaded.
"""

import codecs
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

import numpy as np
import torch

from cfel.arrays import ByteArray, IntArray
from cfel.errors import InputError
from cfel.learning.data.dataset import DataSet, Normalisation, make_class_targets
from cfel.learning.data.images import cache_directory, load_images, read_column_names, read_columns
from cfel.validation import load_pickle

Labelled: TypeAlias = tuple[ByteArray, IntArray]

_BLOCK = 1 << 18
_PIXELS = 3 * 32 * 32
_CLASSES = 10
_SCALE = Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


@dataclass(frozen=True, slots=True)
class Archive:
    """A compressed tar file on the web."""

    url: str
    sha256: str


ARCHIVE = Archive(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)


def cifar10(path: Path | None = None, *, cache: Path | None = None, archive: Archive = ARCHIVE) -> DataSet:
    """Loads CIFAR-10, 3×32×32 images in 10 classes, from a directory; without one, downloads it.

    `cache` is for decoded images and downloads; by default it is the user's, see `cache_directory`.
    """
    cache = cache or cache_directory()
    directory = fetch_archive(archive, cache / "cifar10") if path is None else path
    if not directory.is_dir():
        raise InputError(f"data.path: {directory} is not a directory")
    train, test = _read_directory(directory, cache)
    return DataSet(
        "cifar10",
        torch.from_numpy(train[0]),
        make_class_targets(train[1], _CLASSES, f"{directory}: training labels"),
        torch.from_numpy(test[0]),
        make_class_targets(test[1], _CLASSES, f"{directory}: test labels"),
        _CLASSES,
        _SCALE,
    )


def _read_directory(directory: Path, cache: Path) -> tuple[Labelled, Labelled]:
    forms: tuple[tuple[str, str, Callable[[Path], Labelled]], ...] = (
        ("train*.parquet", "test*.parquet", lambda path: _read_parquet(path, cache)),
        ("data_batch_?.bin", "test_batch.bin", read_binary_batch),
        ("data_batch_?", "test_batch", read_python_batch),
    )
    for train_pattern, test_pattern, read in forms:
        train = sorted(filter(Path.is_file, directory.rglob(train_pattern)))
        test = sorted(filter(Path.is_file, directory.rglob(test_pattern)))
        if train and test:
            return _concatenate([read(file) for file in train]), _concatenate([read(file) for file in test])
    looked_for = "; ".join(f"{train} with {test}" for train, test, _ in forms)
    raise InputError(f"data.path: {directory} holds no CIFAR-10 (looked for {looked_for})")


def _read_parquet(path: Path, cache: Path) -> Labelled:
    names = read_column_names(path)
    image = "img" if "img" in names else "image"
    labels = read_columns(path, ["label"])["label"].to_numpy().astype(np.int64)
    return load_images(path, image, 3, cache), labels


def _concatenate(parts: list[Labelled]) -> Labelled:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def read_binary_batch(path: Path) -> Labelled:
    """Reads a `.bin` file: records of a label and 3,072 pixels; images are samples × 3 × 32 × 32."""
    content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    if content.size == 0 or content.size % (1 + _PIXELS):
        raise InputError(f"{path}: {content.size} bytes are not a whole number of records of {1 + _PIXELS}")
    records = content.reshape(-1, 1 + _PIXELS)
    return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].astype(np.int64)


def read_python_batch(path: Path) -> Labelled:
    """Reads images and labels of a Python batch, written by any version of Python."""
    content = load_pickle(path, "a CIFAR-10 batch", _KNOWN, encoding="bytes")
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}, a CIFAR-10 batch is a dictionary")
    fields = {k.decode() if isinstance(k, bytes) else k: v for k, v in content.items()}
    data, labels = fields.get("data"), fields.get("labels")
    if not isinstance(data, _Array) or not isinstance(labels, list):
        raise InputError(f"{path}: needs an array 'data' and a list 'labels', has {sorted(map(str, fields))}")
    if not all(isinstance(label, int) for label in labels):
        raise InputError(f"{path}: 'labels' must be integers")
    images = data.pixels(str(path))
    if len(labels) != len(images):
        raise InputError(f"{path}: {len(images)} images and {len(labels)} labels")
    return images, np.asarray(labels, dtype=np.int64)


class _Type:
    """Takes the place of a NumPy dtype while a batch is read: holds its name."""

    def __init__(self, name: str | bytes = "", *_: object) -> None:
        self.name = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)

    def __setstate__(self, state: object) -> None:
        """Ignores byte order and the like: single bytes have none."""


class _Array:
    """Takes the place of a NumPy array while a batch is read: holds shape, type and bytes."""

    def __init__(self, *_: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def pixels(self, where: str) -> ByteArray:
        match self.state:
            case (int(), (int() as rows, 3072), _Type() as kind, False | 0, bytes() as content) if (
                kind.name in ("u1", "uint8", "|u1") and len(content) == rows * _PIXELS
            ):
                return np.frombuffer(content, dtype=np.uint8).reshape(rows, 3, 32, 32).copy()
        raise InputError(f"{where}: 'data' must be bytes, samples × {_PIXELS} in C order")


def _encode_latin1(text: object, encoding: object = "latin1") -> bytes:
    """Makes bytes of the text that old pickle protocols store in their place."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise InputError("a CIFAR-10 batch holds no text in an encoding other than latin1")
    return codecs.encode(text, "latin1")


_KNOWN = {
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.ndarray": _Array,
    "numpy.dtype": _Type,
    "_codecs.encode": _encode_latin1,
}
"""Each is bound to a class that can hold bytes and shapes and do nothing else; NumPy's are not used."""


def fetch_archive(archive: Archive, target: Path, timeout: float = 30.0) -> Path:
    """Downloads and unpacks an archive, unless its directory exists already; returns the directory.

    The directory appears only when it is complete. `timeout` is in seconds without data.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may download at the same time. Each has its own files; the first to finish wins.
    file = target.with_name(f"{target.name}.{os.getpid()}.part")
    unpacked = target.with_name(f"{target.name}.{os.getpid()}.unpacked")
    try:
        _receive(archive, file, timeout)
        with tarfile.open(file) as tar:
            # Python has this from 3.11.4 on; what the archive holds is known by its SHA-256 anyway.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(unpacked)  # noqa: S202
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


def _receive(archive: Archive, file: Path, timeout: float) -> None:
    digest = hashlib.sha256()
    with urllib.request.urlopen(archive.url, timeout=timeout) as answer, file.open("wb") as out:  # noqa: S310
        while block := answer.read(_BLOCK):
            out.write(block)
            digest.update(block)
    if digest.hexdigest() != archive.sha256:
        raise InputError(f"{archive.url}: SHA-256 is {digest.hexdigest()}, expected {archive.sha256}")
