"""Samples that only one device has: a function that its configuration names, and that runs on the device.

    # device-0.toml
    data = "own_device_data:samples"
    data_path = "samples.npz"           # what the function is called with; relative to this file
    import_from = ["."]                 # where the module lies

It gives inputs and targets like those of the experiment's data, here 8 × 8 images and the digits they show.
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
