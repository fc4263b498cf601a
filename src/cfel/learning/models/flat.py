"""A module as one flat vector of trained parameters and one of statistics.

`FlatModule` owns the two vectors and a module whose parameters and buffers are views of them, so loading a
model is one copy per vector. `FlatModel` is the model itself: a plain pair of vectors, which the roles
exchange. There is no optimiser and no data here.

Only what training changes is in the vectors, is sent and is charged: parameters that require a gradient, each
once even if several layers share it, and the floating buffers that training changes (batch-norm statistics).
All else (frozen parameters, tables of positions, counters) keeps the values that the builder gave it.

A personal part (FedPer, local heads, FedBN) stays on the device: in both vectors it comes after the shared
part, which alone is sent, aggregated and charged. So a `FlatModel` of the shared part is a shorter one, and
both can be loaded.

Tensors are stored from the largest to the smallest, so that the large ones start at a multiple of 64 bytes,
as fast kernels prefer. Four-dimensional ones (convolution kernels) are stored channels-last, for the same
reason. This order is part of the flat format; `files` uses names and shapes instead.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from cfel.errors import InputError
from cfel.learning.torch_state import map_in_threads, seed_generator

Tensors: TypeAlias = Mapping[str, Tensor]
"""Tensors by name, such as what a device or an edge server remembers."""

PARAMETERS, STATISTICS = "personal", "personal_statistics"
"""The names of the personal part in a device's memory."""


@dataclass(frozen=True, slots=True)
class FlatModel:
    """The values of a model. Several owners may share one, so its vectors must not be changed in place."""

    parameters: Tensor  # float32 vector of d trained numbers
    # Float32 vector of the buffers that training changes (batch-norm statistics); may be empty.
    buffers: Tensor
    # Float32 vector of what an edge server remembers beside its model (`edge_rule`); may be empty.
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
        return all(bool(torch.isfinite(part).all()) for part in self.parts)

    def sha256(self) -> bytes:
        """The SHA-256 of the vectors' bytes, parameters first."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(part.detach().cpu().contiguous().numpy().data)
        return digest.digest()


def model_sha256(models: Sequence[FlatModel], workers: int = 0) -> str:
    """SHA-256, in hexadecimal, of the concatenated SHA-256s of the edge models in cluster order."""
    return join_digests(digest_models(models, workers))


def digest_models(models: Sequence[FlatModel], workers: int = 0) -> list[bytes]:
    return map_in_threads(FlatModel.sha256, models, workers)


def join_digests(digests: Iterable[bytes]) -> str:
    """SHA-256, in hexadecimal, of concatenated SHA-256s."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def complete_model(model: FlatModel, memory: Tensors) -> FlatModel:
    """An edge server's model with the device's own part, if its memory has one."""
    empty = torch.empty(0)
    parameters, buffers = memory.get(PARAMETERS, empty), memory.get(STATISTICS, empty)
    if not (parameters.numel() or buffers.numel()):
        return model
    return replace(
        model,
        parameters=torch.cat([model.parameters, parameters]),
        buffers=torch.cat([model.buffers, buffers]),
    )


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


class SharedPart(NamedTuple):
    """How many numbers of the parameters and of the statistics are shared, and how many parameter tensors."""

    parameters: int
    buffers: int
    leaves: int


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a module behaves."""

    is_random: bool = False  # it draws from torch's generator, in training or in evaluation
    # Names of the floating buffers that training changes; None if that is not known.
    statistics: frozenset[str] | None = None
    least_batch: int = 1  # the fewest samples it trains on; 2 with batch norm over single values


class FlatModule:
    """A module, and the two vectors that its trained parameters and its statistics are views of.

    The module changes, and belongs to the FlatModule from now on. `personal` are patterns of the names of
    tensors that stay on devices.

    Attributes:
        parameters: the parameter vector; writing to it changes the module.
        buffers: the vector of statistics.
        leaves: the module's trained parameters in slot order, to differentiate by.
        behaviour: what the module was seen doing.
        shared: how many of the parameters, of the statistics and of the leaves are shared, which come first.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device | str = "cpu",
        behaviour: Behaviour | None = None,
        personal: Sequence[str] = (),
    ) -> None:
        self.behaviour = behaviour or Behaviour()
        trained, statistics = _find_trained(module), _select_statistics(module, self.behaviour)
        own = _find_personal(trained, statistics, personal)
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
        """Loads a whole model or its shared part; all that it does not have gets its first values back."""
        model = self.complete(model, {})
        for name, own in (("parameters", self.parameters), ("buffers", self.buffers)):
            given = getattr(model, name).numel()
            if given != own.numel():
                raise InputError(f"model.{name}: {given} numbers given, the model has {own.numel()}")
        self.parameters.copy_(model.parameters)
        self.buffers.copy_(model.buffers)
        for buffer, first in self._others:
            buffer.copy_(first)

    def complete(self, model: FlatModel, memory: Tensors) -> FlatModel:
        """The whole model: a shared part with the device's own part, or with that part's first values."""
        if (model.parameters.numel(), model.buffers.numel()) != self.shared[:2]:
            return model
        is_known = PARAMETERS in memory or STATISTICS in memory
        return complete_model(model, memory if is_known else self._first)

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

    def find_variances(self) -> Tensor:
        """Per number of the shared statistics, whether it is a variance, by torch's name for it."""
        found = torch.zeros(self.shared.buffers, dtype=torch.bool)
        for slot in self.buffer_slots:
            if slot.name.rpartition(".")[2] == "running_var":
                found[slot.start : slot.stop] = True
        return found

    def read_personal(self) -> dict[str, Tensor]:
        """Copies the present values of the personal part, to the CPU, by their names in a device's memory."""
        parameters, buffers, _ = self.shared
        own = {PARAMETERS: self.parameters[parameters:], STATISTICS: self.buffers[buffers:]}
        return {name: each.clone().cpu() for name, each in own.items() if each.numel()}

    def find_hidden_matrices(self) -> tuple[Slot, ...]:
        """The shared weight matrices and kernels; without embeddings and without the last layer's."""
        tables = {
            f"{name}.weight".lstrip(".")
            for name, module in self.module.named_modules()
            if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        }
        known = {slot.name: slot for slot in self.parameter_slots if len(slot.shape) > 1}
        in_order = [name for name, _ in self.module.named_parameters() if name in known]
        hidden = {name for name in in_order[:-1] if name not in tables}
        return tuple(
            slot
            for slot in self.parameter_slots
            if slot.name in hidden and slot.stop <= self.shared.parameters
        )

    def views(self, vector: Tensor) -> list[Tensor]:
        return [slot.view(vector) for slot in self.parameter_slots]


def _find_trained(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The parameters that require a gradient, each once."""
    trained: list[tuple[str, Tensor]] = [
        (name, each) for name, each in module.named_parameters() if each.requires_grad
    ]
    if not trained:
        frozen = " (all are frozen: requires_grad is False)" if any(True for _ in module.parameters()) else ""
        raise InputError(f"model: it has no parameters to train{frozen}")
    return _check_dtype(trained)


def _select_statistics(module: nn.Module, behaviour: Behaviour) -> list[tuple[str, Tensor]]:
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


def _find_personal(
    trained: Sequence[tuple[str, Tensor]], statistics: Sequence[tuple[str, Tensor]], patterns: Sequence[str]
) -> frozenset[str]:
    """The names of the tensors that stay on devices, by patterns as in file names."""
    names = [name for name, _ in (*trained, *statistics)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(
                f"model.personal: {pattern!r} matches no trained parameter; there are {', '.join(names)}"
            )
    found = frozenset(name for name in names if any(fnmatchcase(name, each) for each in patterns))
    if all(name in found for name, _ in trained):
        raise InputError(
            "model.personal: all trained parameters would stay on devices, so nothing is left to share"
        )
    return found


def _lay_out_shared_first(
    named: list[tuple[str, Tensor]], own: frozenset[str]
) -> tuple[tuple[Slot, ...], int]:
    """All slots, and how many numbers are shared."""
    shared = _lay_out(each for each in named if each[0] not in own)
    size = shared[-1].stop if shared else 0
    return shared + _lay_out((each for each in named if each[0] in own), size), size


def _lay_out(named: Iterable[tuple[str, Tensor]], start: int = 0) -> tuple[Slot, ...]:
    """Lays out the named tensors one after another, the largest first, from place `start` on."""
    laid: list[Slot] = []
    # The sort is stable, so tensors of equal size keep the module's order on every machine.
    for name, value in sorted(named, key=lambda pair: -pair[1].numel()):
        laid.append(Slot(name, tuple(value.shape), start, start + value.numel()))
        start += value.numel()
    return tuple(laid)


def _new_vector(laid: tuple[Slot, ...], device: torch.device) -> Tensor:
    return torch.empty(laid[-1].stop if laid else 0, dtype=torch.float32, device=device)


def _make_views(laid: tuple[Slot, ...], vector: Tensor, tensors: Tensors) -> None:
    for slot in laid:
        view = slot.view(vector)
        view.copy_(tensors[slot.name].detach())
        tensors[slot.name].data = view


def observe_behaviour(module: nn.Module, inputs: Tensor) -> Behaviour:
    """Calls a module, on the CPU, on two samples and on the first of them, and observes what happens.

    A module's code cannot be read for this: `F.dropout` is no layer, and only some buffers are statistics.
    Its buffers are restored, and it is left in training mode. One that does something that cannot be
    repeated, or replaces a buffer, is rejected.
    """
    before = dict(module.named_buffers())
    values = {name: buffer.clone() for name, buffer in before.items()}
    with torch.no_grad(), seed_generator(0):
        start = torch.default_generator.get_state()
        module.train()
        _reject_other_randomness(lambda: module(inputs))
        statistics = _find_statistics(module, before, values)
        least_batch = 1 if _accepts(module, inputs[:1]) else 2
        module.eval()
        module(inputs)
        is_random = not torch.equal(start, torch.default_generator.get_state())
        for name, buffer in before.items():
            buffer.copy_(values[name])
    module.train()
    return Behaviour(is_random, statistics, least_batch)


def _accepts(module: nn.Module, inputs: Tensor) -> bool:
    try:
        module(inputs)
    except (ValueError, RuntimeError):
        return False
    return True


def _find_statistics(
    module: nn.Module, before: dict[str, Tensor], values: dict[str, Tensor]
) -> frozenset[str]:
    """The floating buffers of every layer that has changed one of them."""
    after = dict(module.named_buffers())
    for name, buffer in before.items():
        if after.get(name) is not buffer:
            raise InputError(
                f"model: buffer {name!r} is replaced by the forward pass; change it in place, with copy_()"
            )
    changed = {
        name.rpartition(".")[0]
        for name, buffer in before.items()
        if buffer.is_floating_point() and not torch.equal(buffer.nan_to_num(), values[name].nan_to_num())
    }
    # Not buffer by buffer: the mean of a layer that has seen zeros only does not change.
    return frozenset(
        name for name in before if before[name].is_floating_point() and name.rpartition(".")[0] in changed
    )


def _reject_other_randomness(call: Callable[[], object]) -> None:
    """Calls the module, and rejects it if it draws from a generator that is not torch's."""
    states: dict[str, Callable[[], object]] = {
        "Python's random module": random.getstate,
        "NumPy's global generator": _read_numpy_state,
    }
    # Another thread may draw at the same moment, but hardly in each of three calls.
    suspected = set(states)
    for _ in range(3):
        before = {name: states[name]() for name in suspected}
        call()
        suspected = {name for name in suspected if states[name]() != before[name]}
        if not suspected:
            return
    raise InputError(
        f"model: it draws from {min(suspected)}, so runs could not be repeated; draw with torch, e.g. "
        "torch.rand, which is seeded for every step"
    )


def _read_numpy_state() -> object:
    state = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 — nothing is drawn
    return bytes(state["key"]), state["pos"]
