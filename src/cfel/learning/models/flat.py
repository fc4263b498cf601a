"""A module as one flat vector of trained parameters and one of statistics.

`FlatModule` owns the two vectors and a module whose parameters and buffers are views of them, so loading a
model is one copy per vector. `FlatModel` is the model itself: a plain pair of vectors, which the roles
exchange. There is no optimiser and no data here.

Only what training changes is in the vectors, is sent and is charged: parameters that require a gradient, each
once even if several layers share it, and the floating buffers that training changes (batch-norm statistics).
All else (frozen parameters, tables of positions, counters) keeps the values that the builder gave it.

Tensors are stored from the largest to the smallest, so that the large ones start at a multiple of 64 bytes,
as fast kernels prefer. Four-dimensional ones (convolution kernels) are stored channels-last, for the same
reason. This order is part of the flat format; files (`safetensors_files`) use names and shapes instead.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from cfel.errors import InputError
from cfel.learning.models.behaviour import Behaviour
from cfel.learning.worker_threads import map_in_threads


@dataclass(frozen=True, slots=True)
class FlatModel:
    """The values of a model. Several owners may share one, so its vectors must not be changed in place.

    Attributes:
        parameters: float32 vector of d trained numbers.
        buffers: float32 vector of the buffers that training changes (batch-norm statistics); may be empty.
        memory: float32 vector of what an edge server remembers beside its model (`edge_rule`); may be empty.
    """

    parameters: Tensor
    buffers: Tensor
    memory: Tensor = field(default_factory=lambda: torch.empty(0))

    def __post_init__(self) -> None:
        for name in ("parameters", "buffers", "memory"):
            value: Tensor = getattr(self, name)
            if value.dim() != 1 or value.dtype != torch.float32:
                raise InputError(
                    f"model.{name}: must be a float32 vector, is {value.dtype} {tuple(value.shape)}"
                )

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """All vectors, in the order of files and messages."""
        return self.parameters, self.buffers, self.memory

    def is_finite(self) -> bool:
        """Whether no value is infinite or NaN."""
        return all(bool(torch.isfinite(part).all()) for part in self.parts)

    def sha256(self) -> bytes:
        """The SHA-256 of the vectors' bytes, parameters first."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(part.detach().cpu().contiguous().numpy().data)
        return digest.digest()


def model_sha256(models: Sequence[FlatModel], workers: int = 0) -> str:
    """SHA-256, in hexadecimal, of the concatenated SHA-256s of the edge models in cluster order.

    Args:
        models: the edge models.
        workers: most threads to use; 0 for one per core.
    """
    digests = map_in_threads(FlatModel.sha256, models, workers)
    return hashlib.sha256(b"".join(digests)).hexdigest()


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


def lay_out_slots(named: Iterable[tuple[str, Tensor]]) -> tuple[Slot, ...]:
    """Lays out the named tensors one after another, the largest first."""
    laid: list[Slot] = []
    start = 0
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

    Attributes:
        parameters: the parameter vector; writing to it changes the module.
        buffers: the vector of statistics.
        leaves: the module's trained parameters in slot order, to differentiate by.
        behaviour: as given.

    Raises:
        InputError: nothing in the module is trained, or not in float32.
    """

    def __init__(
        self, module: nn.Module, device: torch.device | str = "cpu", behaviour: Behaviour | None = None
    ) -> None:
        self.behaviour = behaviour or Behaviour()
        trained, statistics = _find_trained(module), _find_statistics(module, self.behaviour)
        self.module = module.to(device)
        self.parameter_slots = lay_out_slots(trained)
        self.buffer_slots = lay_out_slots(statistics)
        self.parameters = _new_vector(self.parameter_slots, torch.device(device))
        self.buffers = _new_vector(self.buffer_slots, torch.device(device))
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        _make_views(self.parameter_slots, self.parameters, parameters)
        _make_views(self.buffer_slots, self.buffers, buffers)
        self.leaves = tuple(parameters[slot.name] for slot in self.parameter_slots)
        known = {slot.name for slot in (*self.parameter_slots, *self.buffer_slots)}
        # Counters and the like start anew with every model, or one device would leave them to the next.
        self._others = [(each, each.clone()) for name, each in buffers.items() if name not in known]

    def load(self, model: FlatModel) -> None:
        """Loads a model's values: one copy per vector; all other buffers get their first values back."""
        self._check_size("parameters", model.parameters, self.parameters)
        self._check_size("buffers", model.buffers, self.buffers)
        self.parameters.copy_(model.parameters)
        self.buffers.copy_(model.buffers)
        for buffer, first in self._others:
            buffer.copy_(first)

    def read_fixed(self) -> dict[str, Tensor]:
        """What is not in the vectors, by name: frozen parameters, and other buffers that are saved."""
        known = {slot.name for slot in (*self.parameter_slots, *self.buffer_slots)}
        saved = self.module.state_dict()
        fixed = [*self.module.named_parameters(), *self.module.named_buffers()]
        return {name: each.detach() for name, each in fixed if name not in known and name in saved}

    def read(self) -> FlatModel:
        """Copies the present values, to the CPU."""
        return FlatModel(self.parameters.clone().cpu(), self.buffers.clone().cpu())

    def views(self, vector: Tensor) -> list[Tensor]:
        """Views of `vector` (d numbers), shaped and strided like `leaves`."""
        return [slot.view(vector) for slot in self.parameter_slots]

    @staticmethod
    def _check_size(name: str, given: Tensor, expected: Tensor) -> None:
        if given.numel() != expected.numel():
            raise InputError(f"model.{name}: {given.numel()} numbers given, the model has {expected.numel()}")


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
