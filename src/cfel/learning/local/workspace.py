"""A worker's scratch memory, with the two operations on it: loading batches and computing a gradient.

There is one per worker, so that nothing large is allocated per device. It carries nothing from one device to
the next: every function that uses it loads a model first.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from cfel.arrays import IntArray
from cfel.errors import InputError
from cfel.learning.compressors import Compressor, fit_compressor
from cfel.learning.local.algorithm import TrainingParameters
from cfel.learning.local.algorithms import find_algorithm
from cfel.learning.models.flat import PARAMETERS, STATISTICS
from cfel.learning.task import DeviceData, Task
from cfel.learning.torch_state import seed_generator

# Batches loaded at a time; eight of CIFAR-10's fit into a core's cache.
BATCHES_AT_ONCE = 8


class Workspace:
    """A worker's scratch memory: the module and its parameters. Do not share it between threads.

    Attributes:
        algorithm: what devices do with their gradients.
        kept_names: what devices keep from edge round to edge round.
        flat: the module and its vectors.
        layers: its plain dense and convolution layers.
        is_layered: whether these hold all trained parameters, each in one layer only.
    """

    def __init__(
        self, task: Task, training: TrainingParameters, compress: Compressor, device: str = "cpu"
    ) -> None:
        self.task = task
        self.training = training
        self.local = training.local
        self.algorithm = find_algorithm(training)
        kept = self.algorithm.list_kept(keep=self.local.momentum_state == "keep")
        self.kept_names = (*kept, PARAMETERS, STATISTICS)
        self.device = choose_device(device)
        self.flat = task.build(self.device)
        shared = self.flat.parameter_slots[: self.flat.shared.leaves]
        self.compress = fit_compressor(compress, [slot.shape for slot in shared])
        if self.algorithm.personal_model is not None and self.flat.shared.leaves < len(self.flat.leaves):
            raise InputError(
                f"local.algorithm = {self.local.algorithm!r}: keeps a whole model on each device; leave out "
                "model.personal, or choose another algorithm"
            )
        self._places = {id(leaf): place for place, leaf in enumerate(self.flat.leaves)}
        self.layers = [layer for layer in self.flat.module.modules() if self._is_plain_layer(layer)]
        named = self.flat.module.named_parameters(remove_duplicate=False)
        uses = sorted(self._places[id(each)] for _, each in named if each.requires_grad)
        held = sorted(place for layer in self.layers for place in self.find_places(layer))
        in_layers = uses == held == list(range(len(self.flat.leaves)))
        # Autocast hands layers other inputs than they are called with.
        self.is_layered = in_layers and self.local.precision == "float32"

    def _is_plain_layer(self, layer: nn.Module) -> bool:
        """Whether it is a dense or convolution layer as torch has it, with all its parameters trained."""
        own = dict(layer.named_parameters(recurse=False))
        return (
            # A subclass may compute anything, and so may hooks (weight norm).
            type(layer) in (nn.Linear, nn.Conv2d)
            and not (layer._forward_pre_hooks or layer._forward_hooks)
            and "weight" in own
            and own.keys() <= {"weight", "bias"}
            and all(id(each) in self._places for each in own.values())
            # Estimates are of the shared part, so they cannot use half of a layer.
            and len({self.is_shared(each) for each in own.values()}) == 1
        )

    def is_shared(self, parameter: Tensor) -> bool:
        """Whether a trained parameter belongs to the shared part."""
        return self._places[id(parameter)] < self.flat.shared.leaves

    def find_places(self, layer: nn.Module) -> list[int]:
        """Positions of a layer's parameters, weight first, among the module's trained parameters."""
        return [self._places[id(each)] for each in layer.parameters(recurse=False)]

    def seed_model(self, key: Callable[[], int]) -> AbstractContextManager[None]:
        """Seeds torch's generator for a block that calls the model, if the model draws from it."""
        return seed_generator(key(), self.device) if self.flat.behaviour.is_random else nullcontext()

    def run_model(self, inputs: Tensor) -> Tensor:
        """The module's outputs for a batch, computed with `local.precision`."""
        if self.local.precision == "float32":
            outputs: Tensor = self.flat.module(inputs)
            return outputs
        # Without autocast's cache of rounded weights: threads share it, and the first that leaves its model
        # empties it for all, which would change the gradient of a weight that is used twice.
        with torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False):
            outputs = self.flat.module(inputs)
        # Losses and metrics get float32, as without autocast.
        return outputs.float() if outputs.dtype == torch.bfloat16 else outputs

    def compute_gradient(
        self, inputs: Tensor, targets: Tensor, leaves: Sequence[Tensor] = ()
    ) -> tuple[list[Tensor], float]:
        """Computes the gradient of a batch's mean loss by some or all parameters, and the loss."""
        loss = self.task.loss(self.run_model(inputs), targets).mean()
        gradient = torch.autograd.grad(loss, leaves or self.flat.leaves, materialize_grads=True)
        return [part.to_dense() if part.is_sparse else part for part in gradient], float(loss.detach())

    def load_batches(
        self, data: DeviceData, rows: IntArray, streams: Sequence[Callable[[], np.random.Generator]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Loads batches of a device's samples: augmented and scaled inputs, and targets.

        It loads and scales several batches at a time: for small samples that hardly costs more than one. Each
        row has the positions of a batch; each batch has its stream for augmentation, however batches are
        grouped.
        """
        size, augment = rows.shape[1], self.task.augment
        for start in range(0, len(rows), BATCHES_AT_ONCE):
            part = slice(start, start + BATCHES_AT_ONCE)
            places = torch.from_numpy(data.indices[rows[part].reshape(-1)])
            inputs = data.data.train_inputs.index_select(0, places).to(self.device)
            targets = data.data.train_targets.index_select(0, places).to(self.device)
            if augment is not None:
                pairs = zip(torch.split(inputs, size), streams[part], strict=True)
                inputs = torch.cat([augment(batch, stream()) for batch, stream in pairs])
            yield from zip(
                torch.split(data.data.scale(inputs), size), torch.split(targets, size), strict=True
            )


def choose_device(name: str) -> torch.device:
    """The torch device called `name`; "auto" is a GPU where torch finds one, else the CPU."""
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"simulation.device = {name!r}: cannot be used here: {reason}") from error
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
