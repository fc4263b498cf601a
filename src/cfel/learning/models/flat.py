"""A module as one flat vector of trained parameters and one of statistics.

`FlatModule` owns the two vectors and a module whose parameters and buffers are views of them, so loading a
model is one copy per vector. `FlatModel` is the model itself: a plain pair of vectors, which the roles
exchange. There is no optimiser and no data here.

Only what training changes is in the vectors, is sent and is charged: parameters that require a gradient, each
once even if several layers share it, and the floating buffers that training changes (batch-norm statistics).
All else (frozen parameters, tables of positions, counters) keeps the values that the builder gave it.

A personal part stays on the device: in both vectors it comes after the shared part, which alone is exchanged.
So a `FlatModel` of the shared part is a shorter one, and both can be loaded.

Tensors are stored from the largest to the smallest, so that the large ones start at a multiple of 64 bytes,
as fast kernels prefer. Four-dimensional ones (convolution kernels) are stored channels-last, for the same
reason. This order is part of the flat format; files (`safetensors_files`) use names and shapes instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cfel.errors import InputError
from cfel.learning.models.behaviour import Behaviour
from cfel.learning.models.flat_model import FlatModel, model_sha256
from cfel.learning.models.personal import PersonalPart, SharedPart, find_personal

__all__ = ["FlatModel", "FlatModule", "Slot", "lay_out_slots", "model_sha256"]


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one named tensor in a flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def view(self, vector: Tensor) -> Tensor:
        """The named tensor as a view of `vector`; kernels are strided channels-last."""
        piece = vector[self.start : self.stop]
        if len(self.shape) == 4:
            out, into, height, width = self.shape
            return piece.view(out, height, width, into).permute(0, 3, 1, 2)
        return piece.view(self.shape)

    def rows(self, matrix: Tensor) -> Tensor:
        """The named tensor of every row of `matrix` (models × d), as a view; strided like `view`."""
        piece = matrix[:, self.start : self.stop]
        if len(self.shape) == 4:
            out, into, height, width = self.shape
            return piece.view(-1, out, height, width, into).permute(0, 1, 4, 2, 3)
        return piece.view(-1, *self.shape)


def lay_out_slots(named: Iterable[tuple[str, Tensor]], start: int = 0) -> tuple[Slot, ...]:
    """Lays out the named tensors one after another, the largest first, from place `start` on."""
    laid: list[Slot] = []
    # The sort is stable, so tensors of equal size keep the module's order on every machine.
    for name, value in sorted(named, key=lambda pair: -pair[1].numel()):
        laid.append(Slot(name, tuple(value.shape), start, start + value.numel()))
        start += value.numel()
    return tuple(laid)


class FlatModule:
    """A module, and the two vectors that its trained parameters and its statistics are views of.

    Args:
        module: any module with trained parameters; it changes, and belongs to the FlatModule from now on.
        device: torch device of the vectors.
        behaviour: what the module was seen doing.
        personal: patterns of the names of tensors that stay on devices.

    Attributes:
        parameters: the parameter vector; writing to it changes the module.
        buffers: the vector of statistics.
        leaves: the module's trained parameters in slot order, to differentiate by.
        behaviour: as given.
        shared: how many of the parameters, of the statistics and of the leaves are shared, which come first.

    Raises:
        InputError: nothing in the module is trained, or not in float32, or a pattern is in vain.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device | str = "cpu",
        behaviour: Behaviour | None = None,
        personal: Sequence[str] = (),
    ) -> None:
        self.behaviour = behaviour or Behaviour()
        trained, statistics = _find_trained(module), _find_statistics(module, self.behaviour)
        own = find_personal(trained, statistics, personal)
        self.module = module.to(device)
        self.parameter_slots, parameters_shared = _lay_out_shared_first(trained, own)
        self.buffer_slots, buffers_shared = _lay_out_shared_first(statistics, own)
        leaves_shared = sum(slot.name not in own for slot in self.parameter_slots)
        self.shared = SharedPart(parameters_shared, buffers_shared, leaves_shared)
        self.parameters = _new_vector(self.parameter_slots, torch.device(device))
        self.buffers = _new_vector(self.buffer_slots, torch.device(device))
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        _make_views(self.parameter_slots, self.parameters, parameters)
        _make_views(self.buffer_slots, self.buffers, buffers)
        self.leaves = tuple(parameters[slot.name] for slot in self.parameter_slots)
        known = {slot.name for slot in (*self.parameter_slots, *self.buffer_slots)}
        # Counters and the like start anew with every model, or one device would leave them to the next.
        self._others = [(each, each.clone()) for name, each in buffers.items() if name not in known]
        self._first = self.read_personal()

    def load(self, model: FlatModel) -> None:
        """Loads a model's values: one copy per vector; all other buffers get their first values back.

        Args:
            model: a whole model, or the shared part, whose personal part then has its first values.
        """
        model = self.complete(model, {})
        self._check_size("parameters", model.parameters, self.parameters)
        self._check_size("buffers", model.buffers, self.buffers)
        self.parameters.copy_(model.parameters)
        self.buffers.copy_(model.buffers)
        for buffer, first in self._others:
            buffer.copy_(first)

    def complete(self, model: FlatModel, memory: Mapping[str, Tensor]) -> FlatModel:
        """The whole model: with a device's own part, or with that part's first values.

        Args:
            model: the shared part; a whole model stays as it is.
            memory: what the device remembers.
        """
        if (model.parameters.numel(), model.buffers.numel()) != self.shared[:2]:
            return model
        return (PersonalPart.from_memory(memory) or self._first).complete(model)

    def read_fixed(self) -> dict[str, Tensor]:
        """What is not in the vectors, by name: frozen parameters, and other buffers that are saved."""
        known = {slot.name for slot in (*self.parameter_slots, *self.buffer_slots)}
        saved = self.module.state_dict()
        fixed = [*self.module.named_parameters(), *self.module.named_buffers()]
        return {name: each.detach() for name, each in fixed if name not in known and name in saved}

    def read(self) -> FlatModel:
        """Copies the present values of the shared part, to the CPU."""
        parameters, buffers, _ = self.shared
        return FlatModel(self.parameters[:parameters].clone().cpu(), self.buffers[:buffers].clone().cpu())

    def read_personal(self) -> PersonalPart:
        """Copies the present values of the personal part, to the CPU."""
        parameters, buffers, _ = self.shared
        return PersonalPart(self.parameters[parameters:].clone().cpu(), self.buffers[buffers:].clone().cpu())

    def views(self, vector: Tensor) -> list[Tensor]:
        """Views of `vector` (d numbers), shaped and strided like `leaves`."""
        return [slot.view(vector) for slot in self.parameter_slots]

    @staticmethod
    def _check_size(name: str, given: Tensor, expected: Tensor) -> None:
        if given.numel() != expected.numel():
            raise InputError(f"model.{name}: {given.numel()} numbers given, the model has {expected.numel()}")


def _lay_out_shared_first(
    named: list[tuple[str, Tensor]], own: frozenset[str]
) -> tuple[tuple[Slot, ...], int]:
    """All slots, and how many numbers are shared."""
    shared = lay_out_slots(each for each in named if each[0] not in own)
    size = shared[-1].stop if shared else 0
    return shared + lay_out_slots((each for each in named if each[0] in own), size), size


def _new_vector(laid: tuple[Slot, ...], device: torch.device) -> Tensor:
    return torch.empty(laid[-1].stop if laid else 0, dtype=torch.float32, device=device)


def _make_views(laid: tuple[Slot, ...], vector: Tensor, tensors: Mapping[str, Tensor]) -> None:
    for slot in laid:
        view = slot.view(vector)
        view.copy_(tensors[slot.name].detach())
        tensors[slot.name].data = view


def _find_trained(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The parameters that require a gradient, each once."""
    trained: list[tuple[str, Tensor]] = [
        (name, each) for name, each in module.named_parameters() if each.requires_grad
    ]
    if not trained:
        frozen = " (all are frozen: requires_grad is False)" if any(True for _ in module.parameters()) else ""
        raise InputError(f"model: it has no parameters to train{frozen}")
    return _check_dtype(trained)


def _find_statistics(module: nn.Module, behaviour: Behaviour) -> list[tuple[str, Tensor]]:
    """The floating buffers that training changes; all floating ones if that is not known."""
    floating = [(name, each) for name, each in module.named_buffers() if each.is_floating_point()]
    names = behaviour.statistics
    return _check_dtype(floating if names is None else [each for each in floating if each[0] in names])


def _check_dtype(named: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    for name, value in named:
        if value.dtype != torch.float32:
            raise InputError(
                f"model: {name} is {value.dtype}, only float32 can be trained; freeze it or convert it "
                "with .float()"
            )
    return named
