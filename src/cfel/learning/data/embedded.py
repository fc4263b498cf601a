"""Data that needs no file: scikit-learn's digits, and synthetic clusters of any size.

Both are small and take well under a second. Neither uses the network, or the disk beyond site-packages.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from cfel.arrays import FloatArray
from cfel.learning.data.dataset import DataSet, Normalisation, make_class_targets
from cfel.seeding import make_generator


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
