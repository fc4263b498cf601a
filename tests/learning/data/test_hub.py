"""Data sets through Hugging Face `datasets`: small local ones, and what is asked of the hub. No network."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cfel.errors import InputError
from cfel.learning.data import femnist, load
from cfel.learning.data.hub import parse_name
from cfel.plugins import ANY_CODE

datasets = pytest.importorskip("datasets", reason="the extra `hf` is not installed")

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def _silent() -> None:
    datasets.disable_progress_bars()


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any access to the hub fails at once."""

    def reject(name: str, *_: object, **__: object) -> None:
        raise ConnectionError(f"Couldn't reach {name!r} on the Hub")

    local = datasets.load_dataset
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda name, *a, **k: (local if Path(name).is_dir() else reject)(name, *a, **k),
    )


def pictures(count: int, shape: tuple[int, ...] = (4, 4)) -> list[Image.Image]:
    """Picture n has the value n in every pixel."""
    return [Image.fromarray(np.full(shape, n, dtype=np.uint8)) for n in range(count)]


def written(count: int, shape: tuple[int, ...] = (4, 4)) -> Any:
    """Picture n with label n mod 3, by writer n mod 2."""
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "writer_id": datasets.Value("string"),
            "character": datasets.ClassLabel(num_classes=3),
        }
    )
    columns = {
        "image": pictures(count, shape),
        "writer_id": [f"w{n % 2}" for n in range(count)],
        "character": [n % 3 for n in range(count)],
    }
    return datasets.Dataset.from_dict(columns, features=features)


def test_a_saved_folder_with_both_splits(tmp_path: Path) -> None:
    datasets.DatasetDict({"test": written(4), "train": written(9)}).save_to_disk(str(tmp_path / "d"))
    found = load("hf:some/name", tmp_path / "d", ANY_CODE)
    assert (found.name, found.classes, found.input_shape) == ("some/name", 3, (1, 4, 4))
    assert found.train_inputs[:, 0, 0, 0].tolist() == list(range(9))
    assert found.train_targets.tolist() == [0, 1, 2] * 3
    assert found.test_targets.tolist() == [0, 1, 2, 0]
    assert found.train_writers is not None
    assert found.test_writers is not None
    assert found.train_writers.tolist() == [0, 1] * 4 + [0]
    assert found.test_writers.tolist() == [0, 1, 0, 1]


def test_one_split_gives_a_tenth_of_each_writers_samples(tmp_path: Path) -> None:
    """20 of each writer's samples: 2 of each are kept for testing, the same ones every time."""
    written(40).save_to_disk(str(tmp_path / "d"))
    found = load("hf:x", tmp_path / "d", ANY_CODE)
    assert (len(found.train_targets), len(found.test_targets)) == (36, 4)
    assert found.test_writers is not None
    assert np.bincount(found.test_writers).tolist() == [2, 2]
    again = load("hf:x", tmp_path / "d", ANY_CODE)
    assert found.test_inputs.equal(again.test_inputs)


def test_a_folder_of_parquet_files_in_colour(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    written(6, (4, 5, 3)).to_parquet(str(tmp_path / "d" / "train-00000.parquet"))
    written(3, (4, 5, 3)).to_parquet(str(tmp_path / "d" / "test-00000.parquet"))
    found = load("hf:x", tmp_path / "d", ANY_CODE)
    assert found.input_shape == (3, 4, 5)
    assert (len(found.train_targets), len(found.test_targets)) == (6, 3)
    assert found.train_inputs[:, 2, 3, 4].tolist() == list(range(6))


def test_rows_of_numbers_and_columns_by_name(tmp_path: Path) -> None:
    columns = {"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "y": [0, 1, 1], "z": [2, 2, 2]}
    parts = {"fit": datasets.Dataset.from_dict(columns), "check": datasets.Dataset.from_dict(columns)}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "d"))
    found = load("hf:x?image=x&label=y&train=fit&test=check", tmp_path / "d", ANY_CODE)
    assert found.train_inputs.tolist() == columns["x"]
    assert (found.classes, found.test_targets.tolist(), found.train_writers) == (2, [0, 1, 1], None)


def test_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(12).save_to_disk(str(tmp_path / "d"))
    first = load("hf:x", tmp_path / "d", ANY_CODE)
    monkeypatch.setattr("cfel.learning.data.images._decode_image", None)
    assert load("hf:x", tmp_path / "d", ANY_CODE).train_inputs.equal(first.train_inputs)


def test_what_the_hub_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def load_dataset(*arguments: object) -> Any:
        asked.append(arguments)
        return datasets.DatasetDict({"train": written(20)})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load("hf:owner/name?config=big", code=ANY_CODE).name == "owner/name"
    found = femnist()
    assert asked == [("owner/name", "big"), ("flwrlabs/femnist", None)]
    assert (found.name, found.classes, len(found.test_targets)) == ("femnist", 62, 2)
    assert found.normalisation is not None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:", "data.name = 'hf:': must name a data set"),
        ("hf:x?labl=a", "data.name = 'hf:x?labl=a': option: unknown 'labl'; did you mean 'label'?"),
    ],
)
def test_names_that_say_nothing(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_name(name)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("label=charcter", "column: unknown 'charcter'; did you mean 'character'?"),
        ("writer=who", "column: unknown 'who' (allowed: character, image, writer_id)"),
        ("test=tst", "split: unknown 'tst'"),
        ("label=writer_id", "column 'writer_id' must hold whole numbers"),
        ("image=character", "column 'character' must hold images, or rows of equally many numbers"),
    ],
)
def test_what_a_data_set_does_not_have(tmp_path: Path, options: str, message: str) -> None:
    written(4).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(InputError) as caught:
        load(f"hf:x?{options}", tmp_path / "d", ANY_CODE)
    assert message in str(caught.value)


def test_columns_that_are_ambiguous(tmp_path: Path) -> None:
    twice = written(4)
    twice.add_column("other", [0, 1, 0, 1]).cast_column(
        "other", datasets.ClassLabel(num_classes=2)
    ).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(InputError, match=r"add \?label=NAME"):
        load("hf:x", tmp_path / "d", ANY_CODE)


def test_what_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'hf:a/b': .*hub: .*data\.path"):
        load("hf:a/b", code=ANY_CODE)
    with pytest.raises(InputError, match=r"FEMNIST .* from the hub"):
        femnist()
    with pytest.raises(InputError, match=r"neither .*`save_to_disk` .*Parquet"):
        load("hf:a/b", tmp_path, ANY_CODE)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(InputError, match="cannot be loaded from"):
        load("hf:a/b", tmp_path, ANY_CODE)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"`datasets` .*pip install 'cfel\[hf\]'"):
        load("hf:a/b", code=ANY_CODE)
    with pytest.raises(InputError, match=r"^data\.path: .*FEMNIST.*'cfel\[hf\]'"):
        femnist()
