"""Data sets in memory, their loaders, and their partition over devices.

A loader is a function `path -> DataSet`. Built-in ones are listed below; two need no file: scikit-learn's
digits, and synthetic clusters of any size. User-defined ones are added by entry point (`cfel.data`) or as
"module:function".
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import torch

from cfel.arrays import FloatArray
from cfel.errors import InputError
from cfel.learning.data.cifar10 import cifar10
from cfel.learning.data.dataset import DataSet, Normalisation, make_class_targets
from cfel.learning.data.femnist import femnist
from cfel.learning.data.hub import BYTES, PREFIX, load_from_hub
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, call_part, check_result, resolve
from cfel.seeding import make_generator
from cfel.wording import show

__all__ = ["BUILTIN", "DataSet", "Normalisation", "cifar10", "digits", "femnist", "load", "synthetic"]

Loader: TypeAlias = Callable[[Path | None], DataSet]


@dataclass(frozen=True, slots=True)
class BuiltInData:
    """A data set that comes with cfel; shape and classes serve planning without its files."""

    load: Loader
    input_shape: tuple[int, ...]
    classes: int


def digits() -> DataSet:
    """Loads the 1,797 handwritten digits of 8×8 pixels that come with scikit-learn.

    A fifth is for testing, always the same; it does not depend on the experiment's seed.
    """
    table = _read_digits()
    order = make_generator(0, "digits split").permutation(len(table))
    # Bytes, like all images, so that the same scaling applies.
    images = torch.from_numpy((table[:, :64] * (255 / 16)).round().astype(np.uint8)).view(-1, 1, 8, 8)
    targets = make_class_targets(table[:, 64].astype(np.int64), 10, "digits")
    test = torch.from_numpy(order[: round(0.2 * len(order))])
    train = torch.from_numpy(order[len(test) :])
    pixels = images[train].to(torch.float64) / 255
    scale = Normalisation((float(pixels.mean()),), (float(pixels.std()),))
    return DataSet("digits", images[train], targets[train], images[test], targets[test], 10, scale)


def synthetic(
    samples: int = 6000,
    shape: tuple[int, ...] = (1, 8, 8),
    classes: int = 10,
    noise: float = 1.0,
    seed: int = 0,
) -> DataSet:
    """Makes noisy copies of one random prototype per class, as float32; a sixth is for testing.

    `noise` is its standard deviation; that of the prototypes is 1.
    """
    draw = make_generator(seed, "synthetic data")
    prototypes = draw.standard_normal((classes, *shape), dtype=np.float32)
    labels = draw.integers(classes, size=samples)
    inputs = torch.from_numpy(prototypes[labels])
    inputs += torch.from_numpy(draw.standard_normal((samples, *shape), dtype=np.float32)) * noise
    targets, cut = make_class_targets(labels, classes, "synthetic"), max(1, samples // 6)
    return DataSet("synthetic", inputs[cut:], targets[cut:], inputs[:cut], targets[:cut], classes)


def _read_digits() -> FloatArray:
    """Reads rows of 64 pixels (0 … 16) and the digit."""
    # Importing scikit-learn takes seconds; its file can be read without that.
    package = find_spec("sklearn")
    if package is not None and package.submodule_search_locations:
        file = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def _from_hub(name: str, repository: str, normalisation: Normalisation | None = None) -> Loader:
    """A loader of a well-known data set of the Hugging Face hub, or of a folder of the same schema."""
    return lambda path: replace(
        load_from_hub(f"{PREFIX}{repository}", path), name=name, normalisation=normalisation
    )


def _load_sent140(path: Path | None) -> DataSet:
    """Tweets, of which a tenth of each user's is for testing: the test split is by other users."""
    found = _SENT140(path)
    # The labels are 0 and 4.
    targets = {part: getattr(found, part).clamp(max=1) for part in ("train_targets", "test_targets")}
    return replace(found, classes=2, **targets)


# Two of them have no Parquet files of their own; the hub converts them.
_SENT140 = _from_hub(
    "sent140",
    "stanfordnlp/sentiment140?revision=refs/convert/parquet&text=text&label=sentiment&writer=user&test=train",
)
_SPEECH_COMMANDS = "google/speech_commands?config=v0.02&revision=refs/convert/parquet&writer=speaker_id"
_SHAKESPEARE = "flwrlabs/shakespeare?text=x&label=y&writer=character_id&next=character"
_CIFAR100_SCALE = Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
_SVHN_SCALE = Normalisation((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))

BUILTIN: Mapping[str, BuiltInData] = MappingProxyType(
    {
        "cifar10": BuiltInData(cifar10, (3, 32, 32), 10),
        "cifar100": BuiltInData(
            _from_hub("cifar100", "uoft-cs/cifar100?label=fine_label", _CIFAR100_SCALE), (3, 32, 32), 100
        ),
        "digits": BuiltInData(lambda _: digits(), (1, 8, 8), 10),
        "femnist": BuiltInData(femnist, (1, 28, 28), 62),
        "sent140": BuiltInData(_load_sent140, (32,), 2),
        "shakespeare": BuiltInData(_from_hub("shakespeare", _SHAKESPEARE), (80,), BYTES),
        "speech_commands": BuiltInData(_from_hub("speech_commands", _SPEECH_COMMANDS), (1, 40, 98), 36),
        "svhn": BuiltInData(
            _from_hub("svhn", "ufldl-stanford/svhn?config=cropped_digits", _SVHN_SCALE), (3, 32, 32), 10
        ),
        "synthetic": BuiltInData(lambda _: synthetic(), (1, 8, 8), 10),
    }
)


def load(name: str, path: Path | None = None, code: CodePolicy = BUILT_IN_ONLY) -> DataSet:
    """The data set called `name`: built in, "hf:…", an entry point `cfel.data`, or "module:function"."""
    if name in BUILTIN:
        return BUILTIN[name].load(path)
    if name.startswith(PREFIX):
        # The hub's package fetches what it is asked for, and some versions of it run scripts that come along.
        code.check("data", name)
        return load_from_hub(name, path)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        hub = "a data set of the Hugging Face hub"
        raise InputError(f"data: unknown {show(name)}; if it is {hub}, write {show(PREFIX + name)}")
    loader: Loader = resolve("data", name, BUILTIN, ("path",), code=code)
    place = "without data.path" if path is None else f"with data.path = {str(path)!r}"
    found: DataSet = call_part(f"data {name!r}, called {place},", loader, path)
    check_result(f"data {name!r}", found, DataSet)
    return found
