"""CIFAR-10 from a directory, in any of its three forms, or from the web.

The directory is searched, with everything below it, for these forms in this order: Parquet as on the Hugging
Face hub (`train*.parquet`, `test*.parquet` with `img` or `image`, and `label`), the binary version
(`data_batch_?.bin`, `test_batch.bin`) and the Python version (`data_batch_?`, `test_batch`). Without a path
the binary version is downloaded.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from cfel.errors import InputError
from cfel.learning.data.cifar10_files import Labelled, read_binary_batch, read_python_batch
from cfel.learning.data.dataset import DataSet, Normalisation, make_class_targets
from cfel.learning.data.download import Archive, Progress, fetch_archive
from cfel.learning.data.images import cache_directory, load_images, read_column_names, read_columns

_CLASSES = 10
_SCALE = Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
ARCHIVE = Archive(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)


def cifar10(
    path: Path | None = None,
    *,
    cache: Path | None = None,
    archive: Archive = ARCHIVE,
    progress: Progress | None = None,
) -> DataSet:
    """Loads CIFAR-10: 3×32×32 images in 10 classes.

    Args:
        path: the directory that holds it; None downloads it into the cache.
        cache: directory for decoded images and downloads; by default the user's, see `cache_directory`.
        archive: what to download.
        progress: called during the download.
    """
    cache = cache or cache_directory()
    directory = fetch_archive(archive, cache / "cifar10", progress) if path is None else path
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
