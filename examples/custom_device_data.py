"""Samples that only one device has, loaded on the device by a function that its configuration names.

    # device-0.toml
    data = "custom_device_data:samples"
    data_path = "samples.npz"           # passed to the function; relative to this file
    import_from = ["."]                 # where to find the module

The function returns inputs and targets with the shape, type and range of the experiment's data. For `digits`
these are images of shape (n, 1, 8, 8), uint8, from 0 (paper) to 255 (ink), and n labels, int64, from 0 to 9:

    grey = np.random.default_rng(0).integers(0, 17, size=(20, 8, 8))        # your scans, 0 to 16
    images = (grey * (255 / 16)).round().astype(np.uint8)[:, np.newaxis]    # scaled as cfel does
    np.savez("samples.npz", images=images, digits=np.arange(20) % 10)

The samples never leave the device. It sends a compressed update of the model, its loss, σ² and G², the number
of samples it holds and the number of steps it took.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def samples(path: Path | None) -> tuple[Tensor, Tensor]:
    """Loads all samples of the file."""
    if path is None:
        raise ValueError("data_path is missing")
    with np.load(path) as held:
        return torch.from_numpy(held["images"]), torch.from_numpy(held["digits"])
