"""FEMNIST from local files: handwritten characters by writer, 28×28 grey images, 62 classes.

Either one or more Parquet files in the schema of `flwrlabs/femnist` on the Hugging Face hub (`image`,
`writer_id`, `character`, and optionally `leaf_split` = train or test), or the JSON files that LEAF's tools
write, in `train/` and `test/`. Without a given split, a tenth of each writer's samples is for testing, always
the same one. Without a path the Parquet form is downloaded through `hub`.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from cfel.arrays import BoolArray, ByteArray, IntArray
from cfel.errors import InputError
from cfel.learning.data.dataset import DataSet, Normalisation, choose_test_tenth, make_class_targets
from cfel.learning.data.hub import load_splits, parse_name, read_part
from cfel.learning.data.images import cache_directory, load_images, read_column_names, read_columns

if TYPE_CHECKING:
    import pyarrow as pa

HUB = "hf:flwrlabs/femnist?image=image&label=character&writer=writer_id"
_CLASSES = 62
_SIDE = 28
_SCALE = Normalisation((0.9616,), (0.1639,))


def femnist(path: Path | None = None, *, cache: Path | None = None) -> DataSet:
    """Loads FEMNIST, with the writer of every sample.

    `path` is a Parquet file, a directory of them, or a directory with LEAF's `train/` and `test/`; None
    downloads it from the Hugging Face hub. Decoded images are cached, by default in `cache_directory`.
    """
    if path is None:
        return _load_from_hub()
    if not path.exists():
        raise InputError(
            f"data.path: {path} does not exist; get FEMNIST as Parquet (flwrlabs/femnist on the Hugging "
            "Face hub) or from LEAF's preprocessing scripts"
        )
    if path.is_dir() and any((path / "train").glob("*.json")):
        return _load_from_leaf(path)
    files = [path] if path.is_file() else sorted(filter(Path.is_file, path.rglob("*.parquet")))
    if not files:
        raise InputError(f"data.path: {path} holds neither Parquet files nor LEAF's train/*.json")
    return _load_from_parquet(files, cache or cache_directory())


def _load_from_hub() -> DataSet:
    wanted = parse_name(HUB)
    try:
        part = read_part(wanted, load_splits(wanted, None)["train"])
    except InputError as error:
        raise InputError(f"data.path: is not given, and FEMNIST cannot be downloaded: {error}") from error
    assert part.writers is not None  # noqa: S101 — named in HUB
    writers = np.unique(part.writers, return_inverse=True)[1].astype(np.int64)
    return _build_data_set(part.inputs, part.labels, writers, choose_test_tenth(writers), HUB)


def _load_from_parquet(files: list[Path], cache: Path) -> DataSet:
    images = np.concatenate([load_images(file, "image", 1, cache) for file in files])
    split = "leaf_split" if all("leaf_split" in read_column_names(file) for file in files) else None
    wanted = ["writer_id", "character", *([split] if split else [])]
    tables = [read_columns(file, wanted) for file in files]
    labels = np.concatenate([table["character"].to_numpy() for table in tables])
    names = np.concatenate([np.asarray(table["writer_id"].to_pylist(), dtype=np.str_) for table in tables])
    # Names become numbers in their sorted order, so that the order of files does not matter.
    writers = np.unique(names, return_inverse=True)[1].astype(np.int64)
    if split:
        test = np.concatenate(
            [_is_test(table[split], file) for table, file in zip(tables, files, strict=True)]
        )
    else:
        test = choose_test_tenth(writers)
    return _build_data_set(images, labels, writers, test, str(files[0]))


def _is_test(column: "pa.ChunkedArray", file: Path) -> BoolArray:
    values = np.asarray(column.to_pylist(), dtype=np.str_)
    bad = np.flatnonzero((values != "train") & (values != "test"))
    if bad.size:
        raise InputError(
            f"{file}: column 'leaf_split', row {bad[0]} is {str(values[bad[0]])!r}, neither train nor test"
        )
    return np.asarray(values == "test")


def _load_from_leaf(path: Path) -> DataSet:
    parts = [
        (file, name == "test")
        for name in ("train", "test")
        for file in sorted(filter(Path.is_file, (path / name).glob("*.json")))
    ]
    if not any(is_test for _, is_test in parts):
        raise InputError(f"data.path: {path / 'test'} holds no *.json")
    pixels: list[ByteArray] = []
    labels: list[int] = []
    names: list[str] = []
    test: list[bool] = []
    for file, is_test in parts:
        for user, samples, targets in _read_leaf_users(file):
            pixels.append(samples)
            labels += targets
            names += [user] * len(targets)
            test += [is_test] * len(targets)
    writers = np.unique(np.asarray(names), return_inverse=True)[1].astype(np.int64)
    images = np.concatenate(pixels).reshape(-1, 1, _SIDE, _SIDE)
    return _build_data_set(images, np.asarray(labels), writers, np.asarray(test, dtype=np.bool_), str(path))


def _read_leaf_users(file: Path) -> list[tuple[str, ByteArray, list[int]]]:
    try:
        content = json.loads(file.read_text())["user_data"]
        return [(user, _read_leaf_pixels(own["x"], file, user), own["y"]) for user, own in content.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file}: not a LEAF file ({type(error).__name__}: {error})") from error


def _read_leaf_pixels(rows: list[list[float]], file: Path, user: str) -> ByteArray:
    values = np.asarray(rows, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != _SIDE**2 or not ((values >= 0) & (values <= 1)).all():
        raise InputError(f"{file}: user {user!r}: 'x' must be rows of {_SIDE**2} numbers in [0, 1]")
    return np.rint(values * 255).astype(np.uint8)


def _build_data_set(
    images: ByteArray,
    labels: NDArray[np.integer],
    writers: IntArray,
    test: BoolArray,
    where: str,
) -> DataSet:
    if len(labels) != len(images):
        raise InputError(f"{where}: {len(images)} images and {len(labels)} labels")
    targets = make_class_targets(labels, _CLASSES, where)
    inputs = torch.from_numpy(images)
    for_training, for_testing = np.flatnonzero(~test), np.flatnonzero(test)
    return DataSet(
        "femnist",
        inputs[torch.from_numpy(for_training)],
        targets[torch.from_numpy(for_training)],
        inputs[torch.from_numpy(for_testing)],
        targets[torch.from_numpy(for_testing)],
        _CLASSES,
        _SCALE,
        writers[for_training],
        writers[for_testing],
    )
