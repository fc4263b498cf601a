"""All edge models of a run: as tensors of a checkpoint, read back from one, and averaged into one model.

Gossip is not here: see `learning.roles`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from cfel.arrays import IntArray
from cfel.errors import InputError
from cfel.learning.models.flat import FlatModel
from cfel.learning.roles import weighted_model
from cfel.runlog import Checkpoint


def edge_tensors(models: Sequence[FlatModel]) -> dict[str, np.ndarray]:
    """The edge models, in cluster order, as named tensors of a checkpoint."""
    tensors: dict[str, np.ndarray] = {}
    for number, model in enumerate(models):
        tensors[f"edge/{number}/parameters"] = model.parameters.numpy()
        tensors[f"edge/{number}/buffers"] = model.buffers.numpy()
        if model.memory.numel():
            tensors[f"edge/{number}/memory"] = model.memory.numpy()
    return tensors


def read_edge_models(checkpoint: Checkpoint, clusters: int, like: FlatModel) -> tuple[FlatModel, ...]:
    """The edge models in a checkpoint, by cluster.

    Args:
        checkpoint: where they are.
        clusters: how many there are.
        like: any model of the experiment.

    Raises:
        InputError: one is missing, or is of another size.
    """
    models = []
    for number in range(clusters):
        parts = [
            read_vector(checkpoint.tensors, f"edge/{number}/{part}", getattr(like, part).numel())
            for part in ("parameters", "buffers", *(("memory",) if like.memory.numel() else ()))
        ]
        models.append(FlatModel(*parts))
    return tuple(models)


def read_vector(tensors: Mapping[str, np.ndarray], name: str, size: int) -> torch.Tensor:
    """A copy of a float32 vector of a checkpoint.

    Raises:
        InputError: it is missing, or of another type or size.
    """
    found = tensors.get(name)
    if found is None or found.dtype != np.float32 or found.shape != (size,):
        given = "missing" if found is None else f"{found.dtype} of shape {found.shape}"
        raise InputError(f"tensor {name!r} is {given}; this experiment has {size} float32 numbers")
    # A copy: tensors of a checkpoint may be read-only views of a file.
    return torch.from_numpy(np.array(found))


def mean_model(sizes: IntArray, models: Mapping[int, FlatModel]) -> FlatModel:
    """The averaged model u: every device counts alike, so every edge model counts N_i / N.

    Args:
        sizes: devices of each cluster.
        models: by cluster; N counts the devices of these clusters only.
    """
    devices = sum(int(sizes[i]) for i in models)
    return weighted_model(models, {i: int(sizes[i]) / devices for i in models})
