"""Samples that only one device has: a function that its configuration names, and that runs on the device.

    # device-0.toml
    data = "own_device_data:samples"
    data_path = "samples.npz"           # what the function is called with; relative to this file
    import_from = ["."]                 # where the module lies

It gives inputs and targets of the shape, type and range of the experiment's own data. For `digits` these are
images of shape (n, 1, 8, 8), uint8, from 0 (paper) to 255 (ink), and the n digits they show, int64, 0 to 9:

    grey = np.random.default_rng(0).integers(0, 17, size=(20, 8, 8))        # your scans, 0 to 16
    images = (grey * (255 / 16)).round().astype(np.uint8)[:, np.newaxis]    # stretched as cfel does
    np.savez("samples.npz", images=images, digits=np.arange(20) % 10)

They are read on the device and stay there: what it sends is a compressed update of the model, its loss, σ²
and G², and how many samples it holds and steps it took.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def samples(path: Path | None) -> tuple[Tensor, Tensor]:
    """Everything in the file."""
    if path is None:
        raise ValueError("data_path is missing")
    with np.load(path) as held:
        return torch.from_numpy(held["images"]), torch.from_numpy(held["digits"])
