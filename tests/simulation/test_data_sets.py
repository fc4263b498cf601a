"""Well-known data sets train from start to end; on small files of their schema on the Hugging Face hub."""

import io
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cfel.learning.data import BUILTIN, load
from cfel.plugins import BUILT_IN_ONLY
from tests.simulation.drive import records, tiny

datasets = pytest.importorskip("datasets", reason="the extra `hf` is not installed")

DRAW = np.random.default_rng(0)
ROWS = 96


@pytest.fixture(autouse=True)
def _quiet_and_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.disable_progress_bars()
    monkeypatch.setenv("CFEL_CACHE", str(tmp_path / "cache"))


def _picture(label: int) -> dict[str, Any]:
    """Noise, with a bright row that says which class it is."""
    pixels = DRAW.integers(0, 80, (32, 32, 3), dtype=np.uint8)
    pixels[label * 3 : label * 3 + 3] = 250
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": f"{label}.png"}


def _tone(label: int) -> dict[str, Any]:
    """Less than a second, of a pitch that says which class it is."""
    times = np.arange(14_000 + 100 * label) / 16_000
    samples = 0.5 * np.sin(2 * np.pi * 200 * (1 + label) * times) + 0.01 * DRAW.standard_normal(times.size)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 16_000, 0, "NONE", ""))
        out.writeframes((samples * 32_000).astype("<i2").tobytes())
    return {"bytes": file.getvalue(), "path": f"{label}.wav"}


def _cifar100(rows: int) -> tuple[Any, dict[str, list[Any]]]:
    labels = [n % 10 for n in range(rows)]
    features = {
        "img": datasets.Image(),
        "fine_label": datasets.ClassLabel(num_classes=100),
        "coarse_label": datasets.ClassLabel(num_classes=20),
    }
    return features, {"img": [_picture(n) for n in labels], "fine_label": labels, "coarse_label": labels}


def _svhn(rows: int) -> tuple[Any, dict[str, list[Any]]]:
    labels = [n % 10 for n in range(rows)]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)}
    return features, {"image": [_picture(n) for n in labels], "label": labels}


def _shakespeare(rows: int) -> tuple[Any, dict[str, list[Any]]]:
    text = "to be, or not to be, that is the question. " * 20
    starts = [3 * n % 200 for n in range(rows)]
    return {key: datasets.Value("string") for key in ("character_id", "x", "y")}, {
        "character_id": [f"PLAY_{n % 8}" for n in range(rows)],
        "x": [text[start : start + 80] for start in starts],
        "y": [text[start + 80] for start in starts],
    }


def _sent140(rows: int) -> tuple[Any, dict[str, list[Any]]]:
    liked = [bool(n % 2) for n in range(rows)]
    columns: dict[str, list[Any]] = {
        "text": [f"{'so happy and great' if like else 'sad, awful'} day {n}" for n, like in enumerate(liked)],
        "date": ["Mon"] * rows,
        "user": [f"user{n // 8}" for n in range(rows)],
        "sentiment": [4 * like for like in liked],
        "query": ["NO_QUERY"] * rows,
    }
    return {key: datasets.Value("int32" if key == "sentiment" else "string") for key in columns}, columns


def _speech_commands(rows: int) -> tuple[Any, dict[str, list[Any]]]:
    """Speakers of one split are in no other."""
    labels = [n % 6 for n in range(rows)]
    features = {
        "file": datasets.Value("string"),
        "audio": datasets.Audio(16_000),
        "label": datasets.ClassLabel(num_classes=36),
        "is_unknown": datasets.Value("bool"),
        "speaker_id": datasets.Value("string"),
        "utterance_id": datasets.Value("int8"),
    }
    return features, {
        "file": [f"{n}.wav" for n in labels],
        "audio": [_tone(n) for n in labels],
        "label": labels,
        "is_unknown": [False] * rows,
        "speaker_id": [f"{rows}-{n // 8}" for n in range(rows)],
        "utterance_id": [0] * rows,
    }


def _save(
    make: Callable[[int], tuple[Any, dict[str, list[Any]]]], folder: Path, splits: tuple[str, ...]
) -> None:
    """Parquet files as the hub has them; `datasets` itself could write sound only with further packages."""
    folder.mkdir()
    for split in splits:
        features, columns = make(ROWS if split == "train" else 24)
        schema = datasets.Features(features).arrow_schema
        pq.write_table(pa.table(columns, schema=schema), folder / f"{split}-00000-of-00001.parquet")


@pytest.mark.parametrize(
    ("name", "make", "splits", "model", "partition"),
    [
        ("cifar100", _cifar100, ("train", "test"), "small_cnn", "classes"),
        ("svhn", _svhn, ("train", "test"), "small_cnn", "iid"),
        ("shakespeare", _shakespeare, ("train",), "gru", "writer"),
        ("sent140", _sent140, ("train", "test"), "word_average", "writer"),
        ("speech_commands", _speech_commands, ("train", "validation", "test"), "small_cnn", "writer"),
    ],
)
def test_a_well_known_data_set_is_learned(
    tmp_path: Path, name: str, make: Any, splits: tuple[str, ...], model: str, partition: str
) -> None:
    _save(make, tmp_path / "data", splits)
    found, known = load(name, tmp_path / "data", BUILT_IN_ONLY), BUILTIN[name]
    assert (found.name, found.input_shape, found.classes) == (name, known.input_shape, known.classes)
    log = records(
        tiny(
            rounds={"global": 3, "edge": 2, "local": 6},
            data={
                "name": name,
                "path": str(tmp_path / "data"),
                "partition": partition,
                "classes_per_device": 3,
                "batch": 8,
            },
            model={"name": model},
            local={"learning_rate": 0.02 if model == "small_cnn" else 0.5},
            scheme={"name": "cef"},
        )
    )
    assert (log[-1].loss or 9) < 0.7 * (log[0].loss or 0)
