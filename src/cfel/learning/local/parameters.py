"""How devices train: the experiment file's `[local]`, and what other sections and the scheme add to it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Unpack

from cfel import validation
from cfel.errors import InputError
from cfel.learning.local.algorithm import LocalAlgorithm
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
