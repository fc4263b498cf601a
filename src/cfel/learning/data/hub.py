"""Images, sound, text or rows of numbers through Hugging Face `datasets`: from the hub, or a local folder.

    hf:uoft-cs/cifar10                      from the hub; `datasets` keeps it in its cache
    hf:ylecun/mnist, with `data.path`       a folder made by `save_to_disk`, or of Parquet files; no network
    hf:uoft-cs/cifar100?label=fine_label    columns by name: image, audio or text, label, writer; also config,
                                            revision, train, test
    hf:stanfordnlp/imdb?length=100          text with class labels, as its last 100 words
    hf:karpathy/tiny_shakespeare?next=character&length=80    what comes next, in windows of 80 characters
    hf:owner/name?next=word&label=y         what comes next, where the column y has it

Columns are found by their types (an image; sound; class labels) where that is unambiguous. `datasets` is an
optional extra, imported only when needed. Nothing here trains or partitions.
"""

import importlib
import io
import math
import re
import wave
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import numpy as np
import torch
from numpy.typing import NDArray

from cfel.arrays import BoolArray, ByteArray, FloatArray, IntArray
from cfel.errors import InputError, unknown_name
from cfel.extras import MissingExtraError, install_command
from cfel.learning.data.dataset import DataSet, choose_test_tenth, make_class_targets
from cfel.learning.data.images import cache_directory, decode_images, load_cached_array

Split: TypeAlias = Any
"""A `datasets.Dataset`: the package is imported only when it is needed."""

PREFIX = "hf:"
INPUTS = ("image", "audio", "text")
OPTIONS = ("config", "revision", "train", "test", *INPUTS, "label", "writer", "next", "length")
WRITERS = ("writer_id", "client_id", "user_id")
NEXT = ("character", "word")
LENGTHS = {"character": 80, "word": 32, "audio": 1}
"""Of a sample, unless the name says otherwise: characters, words, seconds."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A parsed name like "hf:owner/name?label=fine_label"."""

    text: str
    repository: str
    options: dict[str, str]

    def error(self, reason: str) -> InputError:
        return InputError(f"data.name = {self.text!r}: {reason}")


@dataclass(frozen=True, slots=True)
class Part:
    """One split as arrays."""

    # Uint8 images (samples × channels × height × width), int32 codes of text, or float32 rows.
    inputs: NDArray[Any]
    labels: IntArray  # one per sample
    classes: int  # how many there are
    writers: NDArray[np.str_] | None  # who wrote each sample, or None if there is no such column


# Text as numbers: characters or words, cut into samples of one length. Characters are the bytes of UTF-8, so
# that every text has the same 256 codes and nobody needs a table. Words are numbered by how often they occur
# in the training samples. The code 0 fills up what is too short.


BYTES = 256
VOCABULARY = 8192
"""Codes of words: 0 for nothing, 1 for a rare word, the others for the most frequent ones."""

_WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")

Codes = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TextCode:
    """How texts become samples."""

    length: int  # codes in a sample
    words: Mapping[str, int] | None = None  # the code of each known word; None for characters

    @property
    def codes(self) -> int:
        return BYTES if self.words is None else VOCABULARY

    def encode(self, text: str) -> Codes:
        if self.words is None:
            return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)
        return np.array([self.words.get(word, 1) for word in split_words(text)], dtype=np.int32)

    def fit(self, texts: Iterable[str]) -> Codes:
        """One row per text: its last codes, after zeros where it is shorter."""
        rows = [self.encode(text)[-self.length :] for text in texts]
        fitted = np.zeros((len(rows), self.length), dtype=np.int32)
        for place, row in zip(fitted, rows, strict=True):
            place[self.length - row.size :] = row
        return fitted

    def make_windows(self, texts: Sequence[str]) -> tuple[Codes, IntArray, IntArray]:
        """For every place of each text but its first: the codes before it, its own, the text's number."""
        windows, rows = [np.zeros((0, self.length + 1), dtype=np.int32)], [np.zeros(0, dtype=np.int64)]
        for number, text in enumerate(texts):
            codes = self.encode(text)
            if codes.size < 2:
                continue
            padded = np.concatenate([np.zeros(self.length, dtype=np.int32), codes])
            windows.append(np.lib.stride_tricks.sliding_window_view(padded, self.length + 1)[1:])
            rows.append(np.full(len(windows[-1]), number, dtype=np.int64))
        whole = np.concatenate(windows)
        return whole[:, :-1].copy(), whole[:, -1].astype(np.int64), np.concatenate(rows)


def split_words(text: str) -> list[str]:
    """Words and signs in small letters."""
    return _WORD.findall(text.lower())


def number_words(texts: Iterable[str]) -> dict[str, int]:
    """Numbers the most frequent words from 2, equally frequent ones by the alphabet."""
    counts = Counter(word for text in texts for word in split_words(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[: VOCABULARY - 2], start=2)}


# Reading a data set.


def parse_name(text: str) -> HubName:
    """Parses a name that starts with "hf:"."""
    repository, _, query = text.removeprefix(PREFIX).partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    for key in options:
        if key not in OPTIONS:
            raise InputError(f"data.name = {text!r}: {unknown_name('option', key, OPTIONS)}")
    if options.get("next", "word") not in NEXT:
        raise InputError(f"data.name = {text!r}: {unknown_name('next', options['next'], NEXT)}")
    if not repository:
        raise InputError(f"data.name = {text!r}: must name a data set, as hf:uoft-cs/cifar10")
    return HubName(text, repository, options)


def load_from_hub(name: str, path: Path | None = None) -> DataSet:
    """Loads "hf:…", from a folder if there is one; without a test split, a tenth is for testing."""
    wanted = parse_name(name)
    splits = load_splits(wanted, path)
    train_name, test_name = _choose_splits(wanted, splits)
    code = _make_code(wanted, splits[train_name])
    train = read_part(wanted, splits[train_name], code)
    if test_name is not None:
        return _build_data_set(wanted, train, read_part(wanted, splits[test_name], code))
    # Without writers all samples are one group.
    groups = np.zeros(len(train.labels), np.str_) if train.writers is None else train.writers
    numbers = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    # Windows of a text share most of their characters with their neighbours.
    test = choose_test_tenth(numbers, last="next" in wanted.options)
    return _build_data_set(wanted, _select(train, ~test), _select(train, test))


def load_splits(wanted: HubName, path: Path | None) -> dict[str, Split]:
    """Loads the splits, by name, from the folder if one is given, else from the hub."""
    datasets = _import_datasets(wanted)
    config = wanted.options.get("config")
    if path is not None and config is not None:
        # A copy of a whole repository has a folder, or a line of its README, for every configuration.
        path = path / config if (path / config).is_dir() else path
        config = config if (path / "README.md").is_file() else None
    saved = path is not None and any((path / file).is_file() for file in ("dataset_dict.json", "state.json"))
    if path is not None and not saved and not any(path.rglob("*.parquet")):
        raise InputError(
            f"data.path: {path} is neither a folder made by `save_to_disk` nor one with Parquet files"
        )
    try:
        if path is None:
            revision = {key: value for key, value in wanted.options.items() if key == "revision"}
            found = datasets.load_dataset(wanted.repository, config, **revision)
        elif saved:
            found = datasets.load_from_disk(str(path))
        else:
            cache = str(cache_directory() / "huggingface")
            found = datasets.load_dataset(str(path), config, cache_dir=cache)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        where = "from the hub" if path is None else f"from {path}"
        hint = "; offline, give data.path" if path is None else ""
        raise wanted.error(f"cannot be loaded {where}: {error}{hint}") from error
    return dict(found) if isinstance(found, dict) else {"train": found}


def _import_datasets(wanted: HubName) -> Any:  # noqa: ANN401 — a module that may be missing
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise MissingExtraError(
            f"data.name = {wanted.text!r}: needs the package `datasets` ({error}); "
            f"install it with: {install_command('datasets')}",
        ) from error


def _choose_splits(wanted: HubName, splits: dict[str, Split]) -> tuple[str, str | None]:
    train = wanted.options.get("train", "train" if "train" in splits else next(iter(splits)))
    # Data sets on the hub name their splits differently.
    likely = next((name for name in ("test", "validation", "valid") if name in splits), None)
    test = wanted.options.get("test", likely)
    for name in (train, test):
        if name is not None and name not in splits:
            raise wanted.error(unknown_name("split", name, splits))
    return train, None if test == train else test


def read_part(wanted: HubName, split: Split, code: TextCode | None = None) -> Part:
    """Reads one split into arrays; decoded images and sounds are cached. Text needs its code."""
    kind, column = _find_input(wanted, split)
    writers = _read_writers(wanted, split)
    if "next" in wanted.options and code is not None:
        return _read_next(wanted, split, column, code, writers)
    label = _find_column(wanted, split, "label", "ClassLabel")
    labels = np.asarray(split.with_format("numpy")[label][:])
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or not labels.size:
        raise wanted.error(f"column {label!r} must hold whole numbers, one each")
    known = getattr(split.features[label], "num_classes", None)
    if code is not None:
        inputs: NDArray[Any] = code.fit(_read_texts(wanted, split, column))
    elif kind == "audio":
        inputs = _read_sounds(wanted, split, column)
    else:
        inputs = _read_inputs(wanted, split, column)
    return Part(inputs, labels.astype(np.int64), known or int(labels.max()) + 1, writers)


def _find_input(wanted: HubName, split: Split) -> tuple[str, str]:
    """What the inputs are ("image", which includes rows of numbers, "audio" or "text"), and their column."""
    types = {name: type(feature).__name__ for name, feature in split.features.items()}
    for kind in INPUTS:
        if kind in wanted.options or kind.capitalize() in types.values():
            return kind, _find_column(wanted, split, kind, kind.capitalize())
    # Columns of text have no type of their own.
    kind = "text" if "text" in types and "image" not in types else "image"
    return kind, _find_column(wanted, split, kind, kind.capitalize())


def _make_code(wanted: HubName, split: Split) -> TextCode | None:
    """How text becomes numbers, the same for both splits; None where the inputs are something else."""
    kind, column = _find_input(wanted, split)
    if kind != "text":
        if "next" in wanted.options:
            raise wanted.error("'next' needs text; add ?text=NAME")
        return None
    unit = wanted.options.get("next", "word")
    words = number_words(_read_texts(wanted, split, column)) if unit == "word" else None
    return TextCode(round(_read_length(wanted, unit)), words)


def _read_length(wanted: HubName, unit: str) -> float:
    text = wanted.options.get("length", str(LENGTHS[unit]))
    try:
        length = float(text)
    except ValueError:
        length = 0.0
    if not 0 < length < math.inf or (unit != "audio" and length != round(length)):
        what = "seconds > 0" if unit == "audio" else "a whole number ≥ 1"
        raise wanted.error(f"length = {text!r}: must be {what}")
    return length


def _read_texts(wanted: HubName, split: Split, column: str) -> list[str]:
    texts = list(split[column])
    odd = next((row for row, text in enumerate(texts) if not isinstance(text, str)), None)
    if odd is not None:
        raise wanted.error(f"column {column!r} must hold text, row {odd} is {texts[odd]!r}")
    return texts


def _read_writers(wanted: HubName, split: Split) -> NDArray[np.str_] | None:
    writer = wanted.options.get("writer") or next((w for w in WRITERS if w in split.features), None)
    if writer is None:
        return None
    _check_column(wanted, split, writer)
    return np.asarray([str(each) for each in split[writer]], dtype=np.str_)


def _read_next(
    wanted: HubName, split: Split, column: str, code: TextCode, writers: NDArray[np.str_] | None
) -> Part:
    """What comes next: in a column of its own, or anywhere in the texts."""
    texts = _read_texts(wanted, split, column)
    if "label" not in wanted.options:
        inputs, labels, rows = code.make_windows(texts)
        if not labels.size:
            raise wanted.error(f"column {column!r}: all texts are too short")
        return Part(inputs, labels, code.codes, None if writers is None else writers[rows])
    label = _find_column(wanted, split, "label", "ClassLabel")
    first = [code.encode(text)[:1] for text in _read_texts(wanted, split, label)]
    empty = next((row for row, found in enumerate(first) if not found.size), None)
    if empty is not None:
        raise wanted.error(f"column {label!r}: row {empty} is empty")
    return Part(code.fit(texts), np.concatenate(first).astype(np.int64), code.codes, writers)


def _read_sounds(wanted: HubName, split: Split, column: str) -> NDArray[Any]:
    """Spectrograms, as images with one channel."""
    seconds = _read_length(wanted, "audio")
    plain = split.cast_column(column, type(split.features[column])(decode=False))
    where = f"data.name = {wanted.text!r}: column {column!r}"

    def decode() -> NDArray[Any]:
        clips = (read_wav(cell["bytes"], f"{where}, row {row}") for row, cell in enumerate(plain[column]))
        return np.stack([make_spectrogram(*clip, seconds) for clip in clips])[:, None]

    file = cache_directory() / f"hub-{split._fingerprint}-{column}-{seconds:g}s.npy"
    return load_cached_array(file, decode)


def _find_column(wanted: HubName, split: Split, key: str, kind: str) -> str:
    """The column that the name gives, or the only one of its type."""
    given = wanted.options.get(key)
    if given is not None:
        _check_column(wanted, split, given)
        return given
    found: list[str] = [name for name, feature in split.features.items() if type(feature).__name__ == kind]
    found = found or [name for name in split.features if name == key]
    if len(found) == 1:
        return found[0]
    raise wanted.error(
        f"cannot tell which column is the {key}; add ?{key}=NAME (it has {', '.join(split.features)})"
    )


def _check_column(wanted: HubName, split: Split, name: str) -> None:
    if name not in split.features:
        raise wanted.error(unknown_name("column", name, split.features))


def _read_inputs(wanted: HubName, split: Split, column: str) -> NDArray[Any]:
    if type(split.features[column]).__name__ != "Image":
        rows = np.asarray(split.with_format("numpy")[column][:])
        if rows.dtype == object or rows.ndim < 2 or not np.issubdtype(rows.dtype, np.number):
            raise wanted.error(
                f"column {column!r} must hold images, or rows of equally many "
                f"numbers, is {split.features[column]}"
            )
        return rows.astype(np.float32)
    # Undecoded bytes: `datasets` would decode images one by one into Python objects.
    plain = split.cast_column(column, type(split.features[column])(decode=False))
    where = f"data.name = {wanted.text!r}: column {column!r}"
    file = cache_directory() / f"hub-{split._fingerprint}-{column}.npy"
    return load_cached_array(
        file, lambda: decode_images((cell["bytes"] for cell in plain[column]), len(plain), None, where)
    )


def _select(part: Part, mask: BoolArray) -> Part:
    writers = None if part.writers is None else part.writers[mask]
    return Part(part.inputs[mask], part.labels[mask], part.classes, writers)


def _build_data_set(wanted: HubName, train: Part, test: Part) -> DataSet:
    classes = max(train.classes, test.classes)
    train_writers, test_writers = _number_writers(train.writers, test.writers)
    return DataSet(
        wanted.repository,
        torch.from_numpy(train.inputs),
        make_class_targets(train.labels, classes, f"{wanted.text}: training labels"),
        torch.from_numpy(test.inputs),
        make_class_targets(test.labels, classes, f"{wanted.text}: test labels"),
        classes,
        train_writers=train_writers,
        test_writers=test_writers,
    )


def _number_writers(
    train: NDArray[np.str_] | None, test: NDArray[np.str_] | None
) -> tuple[IntArray | None, IntArray | None]:
    """Numbers the writers, with the same number for a writer in both parts."""
    if train is None or test is None:
        return None, None
    numbers = np.unique(np.concatenate([train, test]), return_inverse=True)[1].astype(np.int64)
    return numbers[: len(train)], numbers[len(train) :]


# Sound as pictures: WAV files become spectrograms with 40 bands on the mel scale and a column every 10
# milliseconds. A byte is the power of a band in decibels, from 80 below that of a full-scale sine to the
# sine's own. So sound is trained on, cached and scaled as images are, and any model for images takes it.


BANDS = 40
_WINDOW_SECONDS, _STEP_SECONDS = 0.025, 0.010
_RANGE_DECIBELS = 80.0


def read_wav(content: bytes | None, where: str) -> tuple[FloatArray, int]:
    """Samples of a WAV file in [−1, 1], averaged over channels, and how many there are per second."""
    try:
        with wave.open(io.BytesIO(content or b"")) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise InputError(f"{where}: not a WAV file: {error}") from error
    if width != 2:
        raise InputError(f"{where}: has {8 * width} bits per number, must have 16")
    samples = np.frombuffer(frames, dtype="<i2").astype(np.float64) / 2**15
    return samples.reshape(-1, channels).mean(1), rate


def make_spectrogram(samples: FloatArray, rate: int, seconds: float) -> ByteArray:
    """Bands × moments of the first seconds, with silence where there are not so many."""
    clip = np.zeros(round(seconds * rate))
    clip[: samples.size] = samples[: clip.size]
    window = np.hanning(round(_WINDOW_SECONDS * rate))
    frames = np.lib.stride_tricks.sliding_window_view(clip, window.size)[:: round(_STEP_SECONDS * rate)]
    # A full-scale sine has power 1.
    points = 2 * window.size
    power = np.square(np.abs(np.fft.rfft(frames * window, points)) * 2 / window.sum())
    bands = _make_filters(rate, points) @ power.T
    decibels = 10 * np.log10(np.maximum(bands, 10 ** (-_RANGE_DECIBELS / 10)))
    return np.asarray(np.rint((1 + np.minimum(decibels, 0) / _RANGE_DECIBELS) * 255), dtype=np.uint8)


@lru_cache(maxsize=4)
def _make_filters(rate: int, points: int) -> FloatArray:
    """Bands × frequencies: triangles that are equally wide on the mel scale (O'Shaughnessy's formula)."""
    frequencies = np.fft.rfftfreq(points, 1 / rate)
    mels = np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), BANDS + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    low, middle, high = (edges[k : k + BANDS, None] for k in range(3))
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return np.asarray(np.maximum(0, np.minimum(rising, falling)))
