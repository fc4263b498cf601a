"""A local algorithm: what a device does with its gradients, and what it remembers, as a frozen value.

The loop in `training` chooses iterations, loads batches, computes gradients and takes the estimates of σ² and
G² from them. An algorithm changes what happens in between:

    begin(run)                          once, before the first step
    choose(run, losses)                 before every step: positions of the samples to use, from their losses
    change_gradient(run, gradient)      before every step: adds terms to the gradient, in place
    step(x, gradient, memory, rate)     every step: changes the parameters, in place
    end(run)                            once, after the last step
    sent(run, update)                   once, with the update as it is sent, after compression

Only `step` is required: an optimiser is an algorithm with nothing else. Parameters, gradients and memory are
float32 vectors of all trained numbers, one after another. Where a part of the model is personal, `step` sees
all numbers, and the others the shared ones only. The algorithms themselves are in `algorithms`.

An algorithm with its own training loop (`train`) replaces all of this: it gets the model and a number of
steps, and returns the trained values. It draws its own batches, and σ² and G² are known only if it returns
them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from cfel.errors import InputError
from cfel.learning.edge_rule import EdgeRule
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import PARAMETERS, STATISTICS, Tensors

RESERVED = frozenset({"", "residual", "upload", PARAMETERS, STATISTICS})
"""Names that a device's file uses for other tensors."""


@dataclass(slots=True, eq=False)
class LocalRun:
    """The work of one device in one edge round, as its algorithm sees it.

    Attributes:
        parameters: x; writing to it changes the model.
        start: x at the beginning, the edge model's; must not be changed.
        memory: what the device remembers, by name; changed in place.
        rate: the learning rate of this edge round.
        edge_memory: what the edge server remembers for this algorithm, by name; must not be changed.
        tau: local iterations of an edge round, taken or not.
        find_gradient: what `gradient_at` calls; it gets the run, as a function that knew it would keep the
            run's vectors in memory until Python looks for cycles.
        make_stream: what `draw` calls, with a purpose and the number of a step.
        iteration: the number of the present step, from 0 to τ − 1.
        batch: its inputs and targets.
        steps: how many have been taken.
        scratch: the algorithm's own tensors, forgotten after the edge round.
    """

    parameters: Tensor
    start: Tensor
    memory: Tensors
    edge_memory: Tensors
    rate: float
    tau: int
    find_gradient: Callable[["LocalRun", Tensor], Tensor]
    make_stream: Callable[[str, int], np.random.Generator]
    iteration: int = 0
    batch: tuple[Tensor, Tensor] = field(default_factory=lambda: (torch.empty(0), torch.empty(0)))
    steps: int = 0
    scratch: dict[str, Tensor] = field(default_factory=dict)

    def gradient_at(self, parameters: Tensor) -> Tensor:
        """The gradient of the present batch at other parameters."""
        return self.find_gradient(self, parameters)

    def draw(self, purpose: str) -> np.random.Generator:
        """The random stream for a purpose, another one in each step; draw from nothing else."""
        return self.make_stream(purpose, self.iteration)


@dataclass(frozen=True, slots=True, eq=False)
class WholeRun:
    """The work of one device in one edge round, for an algorithm with its own training loop.

    Attributes:
        module: the model, with the edge model's values; only to be read.
        steps: how many to take, ≥ 1.
        rate: the learning rate of this edge round.
        device: the device's id.
        global_round, edge_round: from 0.
        seed: of this device and edge round, below 2³¹.
    """

    module: nn.Module
    steps: int
    rate: float
    device: int
    global_round: int
    edge_round: int
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class WholeResult:
    """What an algorithm's own training loop returns.

    Attributes:
        values: of the trained parameters and statistics, by their names in the module; others are ignored.
        loss: mean training loss of the steps.
        estimates: of σ² and G² at the model that the device got, or None.
    """

    values: Tensors
    loss: float
    estimates: Estimates | None = None


Step: TypeAlias = Callable[[Tensor, Tensor, Tensors, float], None]
"""(x, gradient, memory, learning rate): changes x and memory in place; the gradient may be overwritten."""

PartsStep: TypeAlias = Callable[
    [Sequence[Tensor], Sequence[Tensor], Mapping[str, Sequence[Tensor]], float], None
]
"""The same on lists of tensors, one per parameter of the module."""


@dataclass(frozen=True, slots=True)
class LocalAlgorithm:
    """What a device does in an edge round.

    Attributes:
        step: the optimiser; None where there is `train`.
        memory: names of the vectors that the optimiser remembers, zero at first; with
            `local.momentum_state = "reset"` they start at zero in every edge round.
        lasting: names of vectors that are kept from edge round to edge round in any case.
        counters: names of single numbers that the optimiser remembers, like `memory`.
        begin, choose, change_gradient, end, sent: see the top of the module; None for nothing.
        edge: what edge servers do with the mean of the updates; None for adding it to their model.
        step_parts: the same as `step`, on lists of tensors; saves a copy where nothing else needs a vector.
        options: names of the entries of `[local.options]` that it reads.
        personal_model: which of `lasting` is a whole model that the device keeps for itself, zero before its
            first order; None without one.
        gradients: how many gradients a step computes, as time and energy are charged; may be a part of one.
        train: its own training loop, instead of all others. Devices are then trained one after another, in
            one process.
    """

    step: Step | None = None
    memory: tuple[str, ...] = ()
    lasting: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    begin: Callable[[LocalRun], None] | None = None
    choose: Callable[[LocalRun, Tensor], Tensor] | None = None
    change_gradient: Callable[[LocalRun, Tensor], None] | None = None
    end: Callable[[LocalRun], None] | None = None
    sent: Callable[[LocalRun, Tensor], None] | None = None
    edge: EdgeRule | None = None
    step_parts: PartsStep | None = None
    options: tuple[str, ...] = ()
    personal_model: str | None = None
    gradients: float = 1
    train: Callable[[WholeRun], WholeResult] | None = None

    def __post_init__(self) -> None:
        if (self.step is None) == (self.train is None):
            raise InputError("local algorithm: it must have `step`, or `train` for its own training loop")
        if self.personal_model is not None and self.personal_model not in self.lasting:
            raise InputError(f"local algorithm: personal_model {self.personal_model!r} is not in lasting")
        names = (*self.memory, *self.lasting, *self.counters)
        for name in names:
            if name in RESERVED or "/" in name or names.count(name) > 1:
                raise InputError(f"local algorithm: memory {name!r} has a reserved name, or is named twice")

    def list_kept(self, *, keep: bool) -> tuple[str, ...]:
        """The names of what a device keeps from edge round to edge round."""
        return (*self.memory, *self.lasting, *self.counters) if keep else self.lasting

    @property
    def remembers(self) -> dict[str, bool]:
        """The names of everything that a device remembers, and whether it is a vector."""
        return {name: name not in self.counters for name in (*self.memory, *self.lasting, *self.counters)}
