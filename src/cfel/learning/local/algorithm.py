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
    """The experiment file's `[local]`: the steps of a device and its estimates."""

    algorithm: str = "sgd"  # a built-in one, an entry point's name, or "module:function"
    options: Mapping[str, Any] = field(default_factory=dict)  # settings of this algorithm
    learning_rate: Annotated[float, Range(above=0)] = 0.05  # η > 0
    # How the learning rate changes in the course of the run: "constant", "linear", "cosine" or "step".
    schedule: Schedule = "constant"
    # Whether the course of the run is counted in "rounds", or in what is used of the "budget".
    schedule_by: ScheduleBy = "rounds"
    # Share of the run in which the rate rises, in [0, 1).
    warmup: Annotated[float, Range(least=0, below=1)] = 0.0
    # Share of the rate that `linear` and `cosine` end with, in [0, 1].
    final_rate: Annotated[float, Range(least=0, most=1)] = 0.0
    # Shares of the run at which `step` lowers the rate, each in (0, 1).
    decay_at: tuple[Annotated[float, Range(above=0, below=1)], ...] = (0.5, 0.75)
    decay_factor: Annotated[float, Range(above=0, most=1)] = 0.1  # by which `step` does so, in (0, 1]
    momentum: Annotated[float, Range(least=0, below=1)] = 0.9  # in [0, 1)
    nesterov: bool = False  # whether a step looks ahead along the momentum
    # Whether momentum, and what else an optimiser remembers, is kept across edge rounds or starts at zero in
    # each.
    momentum_state: MomentumState = "keep"
    weight_decay: Annotated[float, Range(least=0)] = 0.0  # added to the gradient as weight_decay · x, ≥ 0
    # A longer gradient is scaled down to this Euclidean norm, > 0; None for no limit.
    clip_gradient: Annotated[float, Range(above=0)] | None = None
    # Bernoulli (the paper) runs each iteration with probability ρ; systematic runs ⌊ρτ⌋ or ⌈ρτ⌉ of them,
    # evenly spread, with the same mean; whole runs the whole number nearest to ρτ, evenly spread;
    # small_batches runs all of them, each on as many samples of its batch as cost a share ρ of it;
    # last_layers runs all of them, and trains as many of the last layers as cost a share ρ of all.
    steps: StepRule = "bernoulli"
    # Share of the cost of a step that does not depend on its batch, in [0, 1); for small_batches.
    step_overhead: Annotated[float, Range(least=0, below=1)] = DEFAULT_OVERHEAD
    # σ² and G² from the first step's two halves (reuse) or from extra batches (fresh).
    estimator: Estimator = "reuse"
    fresh_batches: Annotated[int, Range(least=2)] = 2  # K ≥ 2, batches of a fresh estimate
    # Of convolutions and matrix products while training and evaluating. With bfloat16 they run under torch's
    # autocast, faster where the processor has instructions for it; parameters, gradients, memory and updates
    # stay float32.
    precision: Precision = "float32"
    # Shares θ at which a report includes the energy of the largest entries; may be empty.
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
    """The work of one device in one edge round, as its algorithm sees it."""

    parameters: Tensor  # x; writing to it changes the model
    start: Tensor  # x at the beginning, the edge model's; must not be changed
    memory: Tensors  # what the device remembers, by name; changed in place
    edge_memory: Tensors  # what the edge server remembers for this algorithm, by name; must not be changed
    rate: float  # the learning rate of this edge round
    tau: int  # local iterations of an edge round, taken or not
    # What `gradient_at` calls; it gets the run, as a function that knew it would keep the run's vectors in
    # memory until Python looks for cycles.
    find_gradient: Callable[["LocalRun", Tensor], Tensor]
    # What `draw` calls, with a purpose and the number of a step.
    make_stream: Callable[[str, int], np.random.Generator]
    iteration: int = 0  # the number of the present step, from 0 to τ − 1
    # Its inputs and targets.
    batch: tuple[Tensor, Tensor] = field(default_factory=lambda: (torch.empty(0), torch.empty(0)))
    steps: int = 0  # how many have been taken
    # The algorithm's own tensors, forgotten after the edge round.
    scratch: dict[str, Tensor] = field(default_factory=dict)

    def gradient_at(self, parameters: Tensor) -> Tensor:
        """The gradient of the present batch at other parameters."""
        return self.find_gradient(self, parameters)

    def draw(self, purpose: str) -> np.random.Generator:
        """The random stream for a purpose, another one in each step; draw from nothing else."""
        return self.make_stream(purpose, self.iteration)


@dataclass(frozen=True, slots=True, eq=False)
class WholeRun:
    """The work of one device in one edge round, for an algorithm with its own training loop."""

    module: nn.Module  # the model, with the edge model's values; only to be read
    steps: int  # how many to take, ≥ 1
    rate: float  # the learning rate of this edge round
    device: int  # the device's id
    # global_round, edge_round: from 0.
    global_round: int
    edge_round: int
    seed: int  # of this device and edge round, below 2³¹


@dataclass(frozen=True, slots=True, eq=False)
class WholeResult:
    """What an algorithm's own training loop returns."""

    # Of the trained parameters and statistics, by their names in the module; others are ignored.
    values: Tensors
    loss: float  # mean training loss of the steps
    estimates: Estimates | None = None  # of σ² and G² at the model that the device got, or None


Step: TypeAlias = Callable[[Tensor, Tensor, Tensors, float], None]
"""(x, gradient, memory, learning rate): changes x and memory in place; the gradient may be overwritten."""

PartsStep: TypeAlias = Callable[
    [Sequence[Tensor], Sequence[Tensor], Mapping[str, Sequence[Tensor]], float], None
]
"""The same on lists of tensors, one per parameter of the module."""


@dataclass(frozen=True, slots=True)
class LocalAlgorithm:
    """What a device does in an edge round."""

    step: Step | None = None  # the optimiser; None where there is `train`
    # Names of the vectors that the optimiser remembers, zero at first; with `local.momentum_state = "reset"`
    # they start at zero in every edge round.
    memory: tuple[str, ...] = ()
    lasting: tuple[str, ...] = ()  # names of vectors that are kept from edge round to edge round in any case
    counters: tuple[str, ...] = ()  # names of single numbers that the optimiser remembers, like `memory`
    # begin, choose, change_gradient, end, sent: see the top of the module; None for nothing.
    begin: Callable[[LocalRun], None] | None = None
    choose: Callable[[LocalRun, Tensor], Tensor] | None = None
    change_gradient: Callable[[LocalRun, Tensor], None] | None = None
    end: Callable[[LocalRun], None] | None = None
    sent: Callable[[LocalRun, Tensor], None] | None = None
    # What edge servers do with the mean of the updates; None for adding it to their model.
    edge: EdgeRule | None = None
    # The same as `step`, on lists of tensors; saves a copy where nothing else needs a vector.
    step_parts: PartsStep | None = None
    options: tuple[str, ...] = ()  # names of the entries of `[local.options]` that it reads
    # Which of `lasting` is a whole model that the device keeps for itself, zero before its first order; None
    # without one.
    personal_model: str | None = None
    # How many gradients a step computes, as time and energy are charged; may be a part of one.
    gradients: float = 1
    # Its own training loop, instead of all others. Devices are then trained one after another, in one
    # process.
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
    """How a device trains: all that several sections of the experiment file and the scheme say about it."""

    local: LocalParameters = field(default_factory=LocalParameters)  # its steps and estimates
    batch: int = 50  # samples in a mini-batch, ≥ 1; a device with fewer samples uses all of them in each
    # Whether the device keeps what compression drops and adds it to the next update.
    error_feedback: bool = False
    algorithm: LocalAlgorithm | None = None  # what `local` names, built; None for SGD

    def __post_init__(self) -> None:
        validation.check_whole("data.batch", self.batch, least=1)
