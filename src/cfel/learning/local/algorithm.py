"""How devices train: the experiment file's `[local]`, and what a local algorithm is.

An algorithm is what a device does with its gradients and what it remembers, as a frozen value.

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

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from cfel import validation
from cfel.errors import InputError
from cfel.learning.edge_rule import EdgeRule
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import PARAMETERS, STATISTICS, Tensors
from cfel.system.batch_shares import DEFAULT_OVERHEAD
from cfel.validation import Range, check_fields

Schedule = Literal["constant", "linear", "cosine", "step"]
ScheduleBy = Literal["rounds", "budget"]

MomentumState = Literal["keep", "reset"]
StepRule = Literal["bernoulli", "systematic", "whole", "small_batches", "last_layers"]
Estimator = Literal["reuse", "fresh"]
Precision = Literal["float32", "bfloat16"]


def lower_rate(schedule: str, final_rate: float, used: float) -> float:
    """The share of a learning rate that is left when a share `used` of the run is over."""
    match schedule:
        case "linear":
            return final_rate + (1 - final_rate) * (1 - used)
        case "cosine":
            return final_rate + (1 - final_rate) * (1 + math.cos(math.pi * used)) / 2
        case _:
            return 1.0


@dataclass(frozen=True, slots=True)
class LocalParameters:
    """The experiment file's `[local]`: the steps of a device and its estimates.

    Attributes:
        algorithm: a built-in one, an entry point's name, or "module:function".
        options: settings of this algorithm.
        learning_rate: η > 0.
        schedule: how the learning rate changes in the course of the run: "constant", "linear", "cosine" or
            "step".
        schedule_by: whether the course of the run is counted in "rounds", or in what is used of the "budget".
        warmup: share of the run in which the rate rises, in [0, 1).
        final_rate: share of the rate that `linear` and `cosine` end with, in [0, 1].
        decay_at: shares of the run at which `step` lowers the rate, each in (0, 1).
        decay_factor: by which `step` does so, in (0, 1].
        momentum: in [0, 1).
        nesterov: whether a step looks ahead along the momentum.
        momentum_state: whether momentum, and what else an optimiser remembers, is kept across edge rounds or
            starts at zero in each.
        weight_decay: added to the gradient as weight_decay · x, ≥ 0.
        clip_gradient: a longer gradient is scaled down to this Euclidean norm, > 0; None for no limit.
        steps: bernoulli (the paper) runs each iteration with probability ρ; systematic runs ⌊ρτ⌋ or ⌈ρτ⌉ of
            them, evenly spread, with the same mean; whole runs the whole number nearest to ρτ, evenly spread;
            small_batches runs all of them, each on as many samples of its batch as cost a share ρ of it;
            last_layers runs all of them, and trains as many of the last layers as cost a share ρ of all.
        step_overhead: share of the cost of a step that does not depend on its batch, in [0, 1); for
            small_batches.
        estimator: σ² and G² from the first step's two halves (reuse) or from extra batches (fresh).
        fresh_batches: K ≥ 2, batches of a fresh estimate.
        precision: of convolutions and matrix products while training and evaluating. With bfloat16 they run
            under torch's autocast, faster where the processor has instructions for it; parameters, gradients,
            memory and updates stay float32.
        kept_energy_at: shares θ at which a report includes the energy of the largest entries; may be empty.
    """

    algorithm: str = "sgd"
    options: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: Annotated[float, Range(above=0)] = 0.05
    schedule: Schedule = "constant"
    schedule_by: ScheduleBy = "rounds"
    warmup: Annotated[float, Range(least=0, below=1)] = 0.0
    final_rate: Annotated[float, Range(least=0, most=1)] = 0.0
    decay_at: tuple[Annotated[float, Range(above=0, below=1)], ...] = (0.5, 0.75)
    decay_factor: Annotated[float, Range(above=0, most=1)] = 0.1
    momentum: Annotated[float, Range(least=0, below=1)] = 0.9
    nesterov: bool = False
    momentum_state: MomentumState = "keep"
    weight_decay: Annotated[float, Range(least=0)] = 0.0
    clip_gradient: Annotated[float, Range(above=0)] | None = None
    steps: StepRule = "bernoulli"
    step_overhead: Annotated[float, Range(least=0, below=1)] = DEFAULT_OVERHEAD
    estimator: Estimator = "reuse"
    fresh_batches: Annotated[int, Range(least=2)] = 2
    precision: Precision = "float32"
    kept_energy_at: tuple[Annotated[float, Range(least=0, most=1)], ...] = ()

    def __post_init__(self) -> None:
        check_fields("local", self)
        if not isinstance(self.options, Mapping):
            raise InputError(f"local.options = {self.options!r}: must be a table")
        if self.nesterov and not self.momentum:
            raise InputError("local.nesterov = true: needs local.momentum > 0")

    def find_rate(self, used: float) -> float:
        """The share of the learning rate that the schedule leaves when a share `used` of the run is over."""
        if self.schedule == "step":
            decayed = math.prod(self.decay_factor for share in self.decay_at if used >= share)
        else:
            decayed = lower_rate(self.schedule, self.final_rate, used)
        if used >= self.warmup:
            return decayed
        # From a tenth and not from zero, as the first round would then learn nothing.
        return decayed * (0.1 + (1 - 0.1) * used / self.warmup)

    def read_option(self, name: str, default: float, **limits: Unpack[validation.Limits]) -> float:
        """A number of `[local.options]`, or the default; an `InputError` if it is out of range."""
        value = self.options.get(name, default)
        return validation.check_number(f"local.options.{name}", value, **limits)


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


@dataclass(frozen=True, slots=True)
class TrainingParameters:
    """How a device trains: all that several sections of the experiment file and the scheme say about it.

    Attributes:
        local: its steps and estimates.
        batch: samples in a mini-batch, ≥ 1; a device with fewer samples uses all of them in each.
        error_feedback: whether the device keeps what compression drops and adds it to the next update.
        algorithm: what `local` names, built; None for SGD.
    """

    local: LocalParameters = field(default_factory=LocalParameters)
    batch: int = 50
    error_feedback: bool = False
    algorithm: LocalAlgorithm | None = None

    def __post_init__(self) -> None:
        validation.check_whole("data.batch", self.batch, least=1)
