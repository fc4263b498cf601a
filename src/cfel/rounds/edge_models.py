"""The edge models of a run together: in a checkpoint, and averaged."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from cfel.arrays import IntArray
from cfel.learning.models.flat import FlatModel
from cfel.learning.roles import weighted_model
from cfel.runlog import Checkpoint


def edge_tensors(models: Sequence[FlatModel]) -> dict[str, np.ndarray]:
    """The edge models, in cluster order, as named tensors of a checkpoint."""
    tensors: dict[str, np.ndarray] = {}
    for number, model in enumerate(models):
        tensors[f"edge/{number}/parameters"] = model.parameters.numpy()
        tensors[f"edge/{number}/buffers"] = model.buffers.numpy()
    return tensors


def read_edge_models(checkpoint: Checkpoint, clusters: int) -> tuple[FlatModel, ...]:
    """The edge models in a checkpoint, by cluster."""

    def tensor(number: int, part: str) -> torch.Tensor:
        return torch.from_numpy(np.array(checkpoint.tensors[f"edge/{number}/{part}"]))

    return tuple(FlatModel(tensor(i, "parameters"), tensor(i, "buffers")) for i in range(clusters))


def mean_model(sizes: IntArray, models: Mapping[int, FlatModel]) -> FlatModel:
    """The averaged model u: every device counts alike, so every edge model counts N_i / N.

    Args:
        sizes: devices of each cluster.
        models: by cluster; N counts the devices of these clusters only.
    """
    devices = sum(int(sizes[i]) for i in models)
    return weighted_model(models, {i: int(sizes[i]) / devices for i in models})
