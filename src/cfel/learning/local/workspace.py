"""A worker's scratch memory, and the two things done with it: fetching batches, taking a gradient.

One per worker, so that nothing large is allocated per device. It carries nothing from one device to the next:
whoever uses it loads a model first.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from cfel.arrays import IntArray
from cfel.errors import InputError
from cfel.learning.compression.compressors import Compressor
from cfel.learning.local.sgd import LocalParameters
from cfel.learning.task import DeviceData, Task

# Batches fetched at a time; eight of CIFAR-10's fit into a core's cache.
BATCHES_AT_ONCE = 8


class Workspace:
    """A worker's scratch memory: the module and what goes with it. Not to be shared between threads.

    Args:
        task: what is learned.
        local: how devices train.
        compress: the compressor of uploads.
        device: "cpu", "cuda", ..., or "auto" for a GPU where torch finds one.
    """

    def __init__(self, task: Task, local: LocalParameters, compress: Compressor, device: str = "cpu") -> None:
        self.task = task
        self.local = local
        self.compress = compress
        self.device = choose_device(device)
        self.flat = task.build(self.device)
        self.layers = [
            layer for layer in self.flat.module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)
        ]
        self._places = {id(leaf): place for place, leaf in enumerate(self.flat.leaves)}

    @property
    def is_layered(self) -> bool:
        """Do dense and convolution layers hold all parameters?"""
        return sum(len(self.find_places(layer)) for layer in self.layers) == len(self.flat.leaves)

    def find_places(self, layer: nn.Module) -> list[int]:
        """Where a layer's own parameters, weight first, stand among the module's."""
        return [self._places[id(own)] for own in layer.parameters(recurse=False)]

    def compute_gradient(self, inputs: Tensor, targets: Tensor) -> tuple[list[Tensor], float]:
        """The gradient of the mean loss over a batch, one tensor per parameter, and that loss."""
        loss = self.task.loss(self.flat.module(inputs), targets).mean()
        gradient = torch.autograd.grad(loss, self.flat.leaves)
        return list(gradient), float(loss.detach())

    def load_batches(
        self,
        data: DeviceData,
        rows: IntArray,
        streams: Sequence[Callable[[], np.random.Generator]],
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Augmented, scaled inputs and targets of some of a device's samples, one batch after the other.

        Several are fetched and scaled at a time: for small samples that costs hardly more than one.

        Args:
            data: the device's samples.
            rows: batches × size, positions among them.
            streams: for augmenting, one per batch.
        """
        for start in range(0, len(rows), BATCHES_AT_ONCE):
            own = slice(start, start + BATCHES_AT_ONCE)
            yield from self._load_slice(data, rows[own], streams[own])

    def _load_slice(
        self,
        data: DeviceData,
        rows: IntArray,
        streams: Sequence[Callable[[], np.random.Generator]],
    ) -> Iterator[tuple[Tensor, Tensor]]:
        places = torch.from_numpy(data.indices[rows.reshape(-1)])
        inputs = data.data.train_inputs.index_select(0, places).to(self.device)
        targets = data.data.train_targets.index_select(0, places).to(self.device)
        size, augment = rows.shape[1], self.task.augment
        if augment is not None:
            inputs = torch.cat(
                [
                    augment(part, stream())
                    for part, stream in zip(torch.split(inputs, size), streams, strict=True)
                ]
            )
        return zip(torch.split(data.data.scale(inputs), size), torch.split(targets, size), strict=True)


def choose_device(name: str) -> torch.device:
    """The torch device called `name`; "auto" is a GPU where torch finds one, else the CPU."""
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"simulation.device = {name!r}: cannot be used here: {reason}") from error
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
