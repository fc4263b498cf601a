"""Loaders on small files written here, good and bad."""

import hashlib
import io
import json
import os
import pickle
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from cfel.arrays import ByteArray
from cfel.errors import InputError
from cfel.learning.data import DataSet, Normalisation, cifar10, digits, femnist, load, synthetic
from cfel.learning.data.cifar10 import Archive, fetch_archive, read_python_batch
from cfel.learning.data.images import cache_directory, load_images

DRAW = np.random.default_rng(0)
COLOUR: ByteArray = DRAW.integers(0, 256, (7, 3, 32, 32), dtype=np.uint8)
GREY: ByteArray = DRAW.integers(0, 256, (12, 28, 28), dtype=np.uint8)


def _png(pixels: ByteArray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _parquet(path: Path, pictures: list[bytes | None], **columns: list[object]) -> None:
    name = "image" if "character" in columns else "img"
    cells = pa.array(
        [{"bytes": picture, "path": None} for picture in pictures],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: cells, **columns}), path)


def _colour_parquet(path: Path, images: ByteArray, labels: list[object]) -> None:
    _parquet(path, [_png(image.transpose(1, 2, 0)) for image in images], label=labels)


def _check_cifar(data: DataSet) -> None:
    assert torch.equal(data.train_inputs, torch.from_numpy(COLOUR[:5]))
    assert data.train_targets.tolist() == [0, 9, 3, 4, 1]
    assert torch.equal(data.test_inputs, torch.from_numpy(COLOUR[5:]))
    assert data.test_targets.tolist() == [2, 7]
    assert (data.classes, data.input_shape) == (10, (3, 32, 32))


def test_digits_are_always_split_the_same_way() -> None:
    one, two = digits(), digits()
    assert torch.equal(one.train_inputs, two.train_inputs)
    assert (len(one.train_targets), len(one.test_targets)) == (1438, 359)
    assert one.train_inputs.dtype == torch.uint8
    scaled = one.scale(one.train_inputs)
    assert float(scaled.mean()) == pytest.approx(0, abs=1e-4)
    assert float(scaled.std()) == pytest.approx(1, abs=1e-3)


def test_loading_by_name(tmp_path: Path) -> None:
    assert load("digits").name == "digits"
    assert load("synthetic").classes == 10
    with pytest.raises(InputError, match="did you mean 'femnist'"):
        load("femist", tmp_path)


def test_synthetic_data_are_keyed() -> None:
    assert torch.equal(synthetic(30).train_inputs, synthetic(30).train_inputs)
    assert not torch.equal(synthetic(30).train_inputs, synthetic(30, seed=1).train_inputs)


@pytest.mark.parametrize("sharded", [False, True])
def test_cifar10_from_parquet(tmp_path: Path, sharded: bool) -> None:
    if sharded:
        _colour_parquet(tmp_path / "plain_text" / "train-00000-of-00002.parquet", COLOUR[:3], [0, 9, 3])
        _colour_parquet(tmp_path / "plain_text" / "train-00001-of-00002.parquet", COLOUR[3:5], [4, 1])
        _colour_parquet(tmp_path / "plain_text" / "test-00000-of-00001.parquet", COLOUR[5:], [2, 7])
    else:
        _colour_parquet(tmp_path / "train.parquet", COLOUR[:5], [0, 9, 3, 4, 1])
        _colour_parquet(tmp_path / "test.parquet", COLOUR[5:], [2, 7])
    _check_cifar(cifar10(tmp_path))
    _check_cifar(load("cifar10", tmp_path))


def _binary(images: ByteArray, labels: list[int]) -> bytes:
    return b"".join(bytes([n]) + image.tobytes() for image, n in zip(images, labels, strict=True))


def _write_binary(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "data_batch_1.bin").write_bytes(_binary(COLOUR[:3], [0, 9, 3]))
    (directory / "data_batch_2.bin").write_bytes(_binary(COLOUR[3:5], [4, 1]))
    (directory / "test_batch.bin").write_bytes(_binary(COLOUR[5:], [2, 7]))


def test_cifar10_from_binary_batches(tmp_path: Path) -> None:
    _write_binary(tmp_path / "cifar-10-batches-bin")
    _check_cifar(cifar10(tmp_path))
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"123")
    with pytest.raises(InputError, match=r"test_batch\.bin: 3 bytes .*3073"):
        cifar10(tmp_path)


def _batch(images: ByteArray, labels: list[int], protocol: int, names: type) -> bytes:
    fields = {
        "batch_label": "batch",
        "labels": labels,
        "data": images.reshape(len(images), -1),
        "filenames": [],
    }
    keyed = {names(k, "ascii") if names is bytes else k: v for k, v in fields.items()}
    return pickle.dumps(keyed, protocol=protocol)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("names", [bytes, str])
def test_cifar10_from_python_batches(tmp_path: Path, protocol: int, names: type) -> None:
    (tmp_path / "data_batch_1").write_bytes(_batch(COLOUR[:5], [0, 9, 3, 4, 1], protocol, names))
    (tmp_path / "test_batch").write_bytes(_batch(COLOUR[5:], [2, 7], protocol, names))
    (tmp_path / "batches.meta").write_bytes(b"not read")
    _check_cifar(cifar10(tmp_path))


def test_a_python_2_batch_as_the_authors_wrote_it(tmp_path: Path) -> None:
    """Python 2 wrote byte strings as text opcodes and numpy.core.multiarray as the module."""
    content = _batch(COLOUR[5:], [2, 7], 2, str)
    old = content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert old != content
    (tmp_path / "batch").write_bytes(old)
    images, labels = read_python_batch(tmp_path / "batch")
    assert np.array_equal(images, COLOUR[5:])
    assert labels.tolist() == [2, 7]


class _Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_rejected_and_does_nothing(tmp_path: Path, protocol: int) -> None:
    trace, file = tmp_path / "trace", tmp_path / "data_batch_1"
    fields = {b"labels": [1], b"data": _Malicious(trace)}
    file.write_bytes(pickle.dumps(fields, protocol=protocol))
    with pytest.raises(InputError, match=r"data_batch_1: .*(posix|nt|os)\.system"):
        read_python_batch(file)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a CIFAR-10 batch"),
        (b"\x80\x02garbage", "not a CIFAR-10 batch"),
        (pickle.dumps([1, 2]), "holds a list"),
        (pickle.dumps({b"labels": [1]}), "needs an array 'data'"),
        (pickle.dumps({b"labels": [1], b"data": np.zeros((1, 5), np.uint8)}), "samples × 3072"),
        (pickle.dumps({b"labels": [1], b"data": np.zeros((1, 3072), np.float32)}), "samples × 3072"),
        (pickle.dumps({b"labels": ["x"], b"data": np.zeros((1, 3072), np.uint8)}), "integers"),
        (pickle.dumps({b"labels": [1, 2], b"data": np.zeros((1, 3072), np.uint8)}), "1 images and 2 labels"),
        (pickle.dumps(np.array([os.system], dtype=object)), "rejected"),
        (pickle.dumps(getattr), "rejected"),
    ],
)
def test_other_pickles_are_rejected_in_words(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_python_batch(tmp_path / "batch")


def test_cifar10_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no CIFAR-10"):
        cifar10(tmp_path)
    with pytest.raises(InputError, match="is not a directory"):
        cifar10(tmp_path / "absent")


def test_bad_parquet_is_named(tmp_path: Path) -> None:
    good = [_png(image.transpose(1, 2, 0)) for image in COLOUR[:2]]
    _parquet(tmp_path / "test.parquet", list(good), label=[1, 2])
    train = tmp_path / "train.parquet"
    _parquet(train, list(good), label=[1, 10])
    with pytest.raises(InputError, match=r"training labels: row 1 .* 10"):
        cifar10(tmp_path)
    _parquet(train, list(good), lable=[1, 1])
    with pytest.raises(InputError, match=r"train\.parquet: .*'label' .*lable"):
        cifar10(tmp_path)
    _parquet(train, [good[0], b"not a picture"], label=[1, 1])
    with pytest.raises(InputError, match="column 'img', row 1: not an image"):
        cifar10(tmp_path)
    _parquet(train, [good[0], None], label=[1, 1])
    with pytest.raises(InputError, match="row 1: not an image"):
        cifar10(tmp_path)
    _parquet(train, [good[0], _png(GREY[0])], label=[1, 1])
    with pytest.raises(InputError, match=r"row 1 is 28×28 .*row 0 is 32×32"):
        cifar10(tmp_path)
    _parquet(train, [], label=[])
    with pytest.raises(InputError, match="there are no rows"):
        cifar10(tmp_path)
    train.write_bytes(b"PAR1nonsense")
    with pytest.raises(InputError, match=r"train\.parquet: cannot be read"):
        cifar10(tmp_path)
    pq.write_table(pa.table({"img": [1], "label": [1]}), train)
    with pytest.raises(InputError, match="'bytes', is int64"):
        cifar10(tmp_path)


def test_decoded_images_are_kept_until_the_file_changes(tmp_path: Path) -> None:
    file, cache = tmp_path / "train.parquet", tmp_path / "kept"
    _colour_parquet(file, COLOUR[:2], [0, 1])
    first = load_images(file, "img", 3, cache)
    [kept] = cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1] + b"\x07")
    assert load_images(file, "img", 3, cache)[-1, -1, -1, -1] == 7
    kept.write_bytes(b"torn")
    assert np.array_equal(load_images(file, "img", 3, cache), first)
    _colour_parquet(file, COLOUR[2:4], [0, 1])
    os.utime(file, ns=(1, 1))
    assert np.array_equal(load_images(file, "img", 3, cache), COLOUR[2:4])


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    _colour_parquet(file, COLOUR[:2], [0, 1])
    (tmp_path / "taken").write_text("a file where the directory should be")
    assert np.array_equal(load_images(file, "img", 3, tmp_path / "taken"), COLOUR[:2])


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CFEL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "cfel"


def _letters(path: Path, split: list[object] | None) -> None:
    columns: dict[str, list[object]] = {
        "writer_id": [*["ann"] * 6, *["bob"] * 5, "cy"],
        "character": list(range(12)),
    }
    if split is not None:
        columns["leaf_split"] = split
    _parquet(path, [_png(image) for image in GREY], **columns)


def test_femnist_with_its_split(tmp_path: Path) -> None:
    _letters(tmp_path / "femnist.parquet", ["test", *["train"] * 6, "test", *["train"] * 4])
    data = femnist(tmp_path)
    assert data.test_targets.tolist() == [0, 7]
    assert data.test_writers is not None
    assert data.test_writers.tolist() == [0, 1]
    assert torch.equal(data.train_inputs[0, 0], torch.from_numpy(GREY[1]))
    assert data.train_writers is not None
    assert data.train_writers.tolist() == [0] * 5 + [1] * 4 + [2]
    assert (data.classes, data.input_shape) == (62, (1, 28, 28))
    assert femnist(tmp_path / "femnist.parquet").test_targets.tolist() == [0, 7]


def test_femnist_without_a_split_keeps_a_tenth_of_each_writer(tmp_path: Path) -> None:
    _letters(tmp_path / "femnist.parquet", None)
    data, again = femnist(tmp_path), femnist(tmp_path)
    assert data.test_writers is not None
    assert data.test_writers.tolist() == [0, 1]
    assert data.test_targets.tolist() == again.test_targets.tolist()


def test_femnist_that_is_wrong_or_absent(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist; get FEMNIST as"):
        femnist(tmp_path / "absent")
    with pytest.raises(InputError, match="neither Parquet files nor LEAF"):
        femnist(tmp_path)
    _letters(tmp_path / "femnist.parquet", ["tset", *["train"] * 11])
    with pytest.raises(InputError, match="'leaf_split', row 0 is 'tset'"):
        femnist(tmp_path)


def _leaf(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def _user(first: int, last: int) -> dict[str, list[object]]:
    rows = (GREY[first:last].reshape(-1, 784) / 255).tolist()
    return {"x": rows, "y": list(range(first, last))}


def test_femnist_from_leaf(tmp_path: Path) -> None:
    train = {"users": ["ann", "bob"], "user_data": {"ann": _user(0, 3), "bob": _user(3, 5)}}
    _leaf(tmp_path / "train" / "all_data_0_train.json", train)
    with pytest.raises(InputError, match="holds no"):
        femnist(tmp_path)
    _leaf(tmp_path / "test" / "all_data_0_test.json", {"user_data": {"bob": _user(5, 6)}})
    data = femnist(tmp_path)
    assert torch.equal(data.train_inputs[:, 0], torch.from_numpy(GREY[:5]))
    assert data.train_writers is not None
    assert data.train_writers.tolist() == [0, 0, 0, 1, 1]
    assert data.test_targets.tolist() == [5]
    _leaf(tmp_path / "test" / "all_data_0_test.json", {"user_data": {"bob": {"x": [[0.5, 2.0]], "y": [0]}}})
    with pytest.raises(InputError, match=r"user 'bob': 'x' .* 784"):
        femnist(tmp_path)
    _leaf(tmp_path / "test" / "all_data_0_test.json", {"users": []})
    with pytest.raises(InputError, match="not a LEAF file"):
        femnist(tmp_path)


def test_data_sets_check_themselves() -> None:
    inputs, targets = torch.zeros(3, 2), torch.zeros(3)
    with pytest.raises(InputError, match="3 train inputs and 2 targets"):
        DataSet("d", inputs, targets[:2], inputs, targets, 1)
    with pytest.raises(InputError, match="3 test inputs and 1 writers"):
        DataSet("d", inputs, targets, inputs, targets, 1, None, None, np.zeros(1, np.int64))
    with pytest.raises(InputError, match="classes"):
        DataSet("d", inputs, targets, inputs, targets, 0)
    with pytest.raises(InputError, match=r"\(2,\), test inputs .*\(4,\)"):
        DataSet("d", inputs, targets, torch.zeros(3, 4), targets, 1)
    with pytest.raises(InputError, match="names no writers"):
        DataSet("d", inputs, targets, inputs, targets, 1).select_writers(np.zeros(1, np.int64))
    with pytest.raises(InputError, match="deviation"):
        Normalisation((0.0,), (0.0,))
    with pytest.raises(InputError, match="2 means and 1 deviations"):
        Normalisation((0.0, 1.0), (1.0,))
    plain = DataSet("d", torch.full((1, 2), 51, dtype=torch.uint8), targets[:1], inputs.byte(), targets, 1)
    assert plain.scale(plain.train_inputs).tolist() == [[pytest.approx(0.2)] * 2]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server on this machine, and the directory it serves."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    directory = tmp_path / "served"
    directory.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(directory))) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", directory
        http.shutdown()
        thread.join()


def test_cifar10_is_downloaded_checked_and_kept(server: tuple[str, Path], tmp_path: Path) -> None:
    address, directory = server
    _write_binary(tmp_path / "cifar-10-batches-bin")
    with tarfile.open(directory / "cifar.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
    content = (directory / "cifar.tar.gz").read_bytes()
    archive = Archive(f"{address}/cifar.tar.gz", hashlib.sha256(content).hexdigest())
    cache = tmp_path / "store"
    _check_cifar(cifar10(cache=cache, archive=archive))
    (directory / "cifar.tar.gz").unlink()
    _check_cifar(cifar10(cache=cache, archive=archive))
    assert [path.name for path in cache.iterdir()] == ["cifar10"]


def test_a_wrong_or_missing_archive_leaves_nothing(server: tuple[str, Path], tmp_path: Path) -> None:
    address, directory = server
    (directory / "evil.tar.gz").write_bytes(b"something else")
    target = tmp_path / "store" / "cifar10"
    with pytest.raises(InputError, match=r"SHA-256 is .*, expected 00"):
        fetch_archive(Archive(f"{address}/evil.tar.gz", "00"), target)
    with pytest.raises(InputError, match=r"404.*set data\.path"):
        fetch_archive(Archive(f"{address}/absent.tar.gz", "00"), target)
    assert list(target.parent.iterdir()) == []


def test_another_process_finishes_the_same_download_first(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, directory = server
    (tmp_path / "batch").write_bytes(b"slower")
    with tarfile.open(directory / "small.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "batch", "batch")
    digest = hashlib.sha256((directory / "small.tar.gz").read_bytes()).hexdigest()
    target = tmp_path / "store" / "small"

    def finish_elsewhere(tar: tarfile.TarFile, unpacked: Path) -> None:
        target.mkdir()
        (target / "batch").write_bytes(b"faster")
        unpack(tar, unpacked)

    unpack = tarfile.TarFile.extractall
    monkeypatch.setattr(tarfile.TarFile, "extractall", finish_elsewhere)
    assert fetch_archive(Archive(f"{address}/small.tar.gz", digest), target) == target
    assert (target / "batch").read_bytes() == b"faster"
    assert list(target.parent.iterdir()) == [target]
