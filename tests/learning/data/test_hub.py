"""Data sets through Hugging Face `datasets`: small local ones, and what is asked of the hub. No network."""

import io
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cfel.errors import InputError
from cfel.learning.data import femnist, load
from cfel.learning.data.hub import make_spectrogram, parse_name, read_wav
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


def _texts(folder: Path, **columns: list[Any]) -> None:
    datasets.Dataset.from_dict(columns).save_to_disk(str(folder))


def test_the_next_character_anywhere_in_a_text(tmp_path: Path) -> None:
    """Windows of 3 bytes before each place but the first; the last tenth of each writer's is for testing."""
    _texts(tmp_path / "d", text=["abcd", "é", "x"], user_id=["u", "v", "u"])
    found = load("hf:x?next=character&length=3", tmp_path / "d", ANY_CODE)
    a, b, c, d = b"abcd"
    assert (found.classes, found.input_shape) == (256, (3,))
    assert found.train_inputs.tolist() == [[0, 0, a], [0, a, b], [0, 0, 0xC3]]
    assert found.train_targets.tolist() == [b, c, 0xA9]
    assert (found.test_inputs.tolist(), found.test_targets.tolist()) == ([[a, b, c]], [d])
    assert found.train_writers is not None
    assert found.train_writers.tolist() == [0, 0, 1]


def test_the_next_word_in_a_column_of_its_own(tmp_path: Path) -> None:
    """Words by frequency, then by the alphabet: "a" 4, "," 1, "b" 1, "it's" 1; others are 1."""
    both = {"train": {"x": ["A a", "a, it's"], "y": ["b", "a"]}, "test": {"x": ["a new b"], "y": ["zebra c"]}}
    parts = {name: datasets.Dataset.from_dict(columns) for name, columns in both.items()}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "d"))
    found = load("hf:x?text=x&label=y&next=word&length=4", tmp_path / "d", ANY_CODE)
    # Only the texts are counted, in which "a" comes three times; "b" is a label and so a rare word.
    assert found.train_inputs.tolist() == [[0, 0, 2, 2], [0, 2, 3, 4]]
    assert found.train_targets.tolist() == [1, 2]
    assert (found.test_inputs.tolist(), found.test_targets.tolist()) == ([[0, 2, 1, 1]], [1])
    assert found.classes == 8192


def test_texts_with_class_labels(tmp_path: Path) -> None:
    _texts(tmp_path / "d", text=["good good", "bad", "good", "bad bad bad"] * 5, label=[1, 0, 1, 0] * 5)
    found = load("hf:x?length=2", tmp_path / "d", ANY_CODE)
    assert (found.classes, found.input_shape, len(found.test_targets)) == (2, (2,), 2)
    assert {tuple(row) for row in found.train_inputs.tolist()} == {(3, 3), (0, 2), (0, 3), (2, 2)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("next=caracter", "next: unknown 'caracter'; did you mean 'character'?"),
        ("next=character&length=2.5", "length = '2.5': must be a whole number ≥ 1"),
        ("length=no", "length = 'no': must be a whole number ≥ 1"),
        ("text=label", "column 'label' must hold text, row 0 is 1"),
        ("next=word&label=none", "column 'none': row 1 is empty"),
        ("next=word&image=label", "'next' needs text"),
        ("next=word&text=none", "column 'none': all texts are too short"),
    ],
)
def test_texts_that_cannot_be_read(tmp_path: Path, options: str, message: str) -> None:
    _texts(tmp_path / "d", text=["one two", "three"], label=[1, 0], none=["x", " "])
    with pytest.raises(InputError) as caught:
        load(f"hf:x?{options}", tmp_path / "d", ANY_CODE)
    assert message in str(caught.value)


def _wav(samples: np.ndarray[Any, Any], rate: int, channels: int = 1, width: int = 2) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((channels, width, rate, 0, "NONE", ""))
        out.writeframes((samples * 32_767).astype("<i2").tobytes())
    return file.getvalue()


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
def test_a_tone_is_bright_where_its_pitch_is(rate: int) -> None:
    """A sine of 1,000 Hz is at mel 1,000; 40 bands and 2 edges up to half the rate: band 1,000 ÷ width − 1.

    Power falls by 20 of 80 dB from a tenth of full scale to a hundredth. Half of the clip is silence.
    """
    tone = np.sin(2 * np.pi * 1_000 * np.arange(rate // 2) / rate)
    loud, soft = (make_spectrogram(factor * tone, rate, 1.0) for factor in (0.1, 0.01))
    assert loud.shape == (40, 98)
    width = 2595 * np.log10(1 + rate / 1400) / 41
    assert abs(int(loud[:, 20].argmax()) - (1000 / width - 1)) < 1
    assert 180 < int(loud[:, 20].max()) < 210
    assert int(loud[:, 20].max()) - int(soft[:, 20].max()) in (63, 64, 65)
    assert loud[:, 60:].max() == 0


def test_channels_are_averaged_and_other_files_rejected() -> None:
    both = np.stack([np.full(5, 0.5), np.zeros(5)], 1)
    samples, rate = read_wav(_wav(both, 100, channels=2), "row 0")
    assert (rate, samples.tolist()) == (100, pytest.approx([0.25] * 5, abs=1e-4))
    for content, message in (
        (b"fLaC", "row 7: not a WAV"),
        (None, "not a WAV"),
        (_wav(both, 9, 1, 1), "8 bits"),
    ):
        with pytest.raises(InputError, match=message):
            read_wav(content, "row 7")


def test_what_the_hub_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def load_dataset(*arguments: object, **more: object) -> Any:
        asked.append((*arguments, *more.values()))
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for name in ("cifar100", "svhn", "shakespeare", "speech_commands", "sent140"):
        with pytest.raises(InputError, match=r"offline, give data\.path"):
            load(name)
    assert asked == [
        ("uoft-cs/cifar100", None),
        ("ufldl-stanford/svhn", "cropped_digits"),
        ("flwrlabs/shakespeare", None),
        ("google/speech_commands", "v0.02", "refs/convert/parquet"),
        ("stanfordnlp/sentiment140", None, "refs/convert/parquet"),
    ]
