"""Local SGD with momentum: which of the τ iterations run, on which samples, and what a step does.

Every draw comes from a stream keyed by (seed, purpose, global round, edge round, device). All τ uniforms and
τ batches are drawn, whether they are used or not: two schemes that run the same iteration see the same batch.
A skipped iteration changes neither the model nor the momentum. `roles` puts the parts together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.optim.sgd import sgd

from cfel import validation
from cfel.arrays import BoolArray, IntArray
from cfel.errors import InputError, unknown_name

MomentumState = Literal["keep", "reset"]
StepRule = Literal["bernoulli", "systematic", "whole"]
Estimator = Literal["reuse", "fresh"]


@dataclass(frozen=True, slots=True)
class LocalParameters:
    """The experiment file's `[local]`: the steps of a device and its estimates.

    Attributes:
        learning_rate: η > 0.
        momentum: in [0, 1).
        momentum_state: whether the buffer is kept across edge rounds, or starts at zero in each.
        weight_decay: added to the gradient as weight_decay · x, ≥ 0.
        steps: bernoulli (the paper) runs each iteration with probability ρ; systematic runs ⌊ρτ⌋ or ⌈ρτ⌉ of
            them, evenly spread, with the same mean; whole runs the whole number nearest to ρτ, evenly spread.
        estimator: σ² and G² from the first step's two halves (reuse) or from extra batches (fresh).
        fresh_batches: K ≥ 2, batches of a fresh estimate.
        kept_energy_at: shares θ at which a report includes the energy of the largest entries; may be empty.
    """

    learning_rate: float = 0.05
    momentum: float = 0.9
    momentum_state: MomentumState = "keep"
    weight_decay: float = 0.0
    steps: StepRule = "bernoulli"
    estimator: Estimator = "reuse"
    fresh_batches: int = 2
    kept_energy_at: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        validation.check_number("local.learning_rate", self.learning_rate, above=0)
        validation.check_number("local.momentum", self.momentum, least=0, below=1)
        validation.check_number("local.weight_decay", self.weight_decay, least=0)
        validation.check_whole("local.fresh_batches", self.fresh_batches, least=2)
        for place, share in enumerate(validation.check_list("local.kept_energy_at", self.kept_energy_at)):
            validation.check_number(f"local.kept_energy_at[{place}]", share, least=0, most=1)
        for name, kind in (("momentum_state", MomentumState), ("steps", StepRule), ("estimator", Estimator)):
            if getattr(self, name) not in get_args(kind):
                raise InputError(unknown_name(f"local.{name}", getattr(self, name), get_args(kind)))


@dataclass(frozen=True, slots=True)
class TrainingParameters:
    """How a device trains: all that several sections of the experiment file and the scheme say about it.

    Attributes:
        local: its steps and estimates.
        batch: samples in a mini-batch, ≥ 1; a device with fewer samples uses all of them in each.
        error_feedback: whether the device keeps what compression drops and adds it to the next update.
    """

    local: LocalParameters = field(default_factory=LocalParameters)
    batch: int = 50
    error_feedback: bool = False

    def __post_init__(self) -> None:
        validation.check_whole("data.batch", self.batch, least=1)


def choose_iterations(rule: StepRule, rho: float, tau: int, draw: np.random.Generator) -> BoolArray:
    """Chooses which of the τ iterations to run; draws τ uniforms under either rule.

    Args:
        rule: see `LocalParameters.steps`.
        rho: share of iterations, in [0, 1].
        tau: number of iterations, ≥ 1.
        draw: the device's stream of this edge round.
    """
    uniforms = draw.random(tau)
    if rule == "bernoulli":
        return np.asarray(uniforms < rho)
    # An iteration runs where the line ρ·t + u passes an integer: ⌊ρτ⌋ or ⌈ρτ⌉ times, ρτ on average.
    if rule == "whole":
        # In whole numbers, so that rounding never adds or drops a step.
        steps, start = round(rho * tau), int(uniforms[0] * tau)
        return np.asarray(np.diff((np.arange(tau + 1) * steps + start) // tau) > 0)
    marks = np.floor(np.arange(tau + 1) * rho + uniforms[0])
    return np.asarray(np.diff(marks) > 0)


def draw_batches(samples: int, batch: int, count: int, draw: np.random.Generator) -> IntArray:
    """Draws `count` mini-batches, as rows of positions 0 … samples − 1.

    Batches are cut from one shuffle after another, never across two. So each batch is a simple random sample
    of min(batch, samples) positions. A device sees all its samples before it sees one again, except for the
    rest of a shuffle that does not fill a batch.
    """
    size = min(batch, samples)
    # Whole batches in one shuffle.
    each = samples // size
    shuffles = [draw.permutation(samples)[: each * size] for _ in range(-(-count // each))]
    return np.concatenate(shuffles).reshape(-1, size)[:count]


def apply_momentum_step(
    parameters: Sequence[Tensor],
    gradient: Sequence[Tensor],
    momentum: Sequence[Tensor],
    local: LocalParameters,
) -> None:
    """Applies one step, in place and in one pass over memory: m ← βm + g + decay·x, x ← x − ηm.

    Args:
        parameters: x, one tensor per parameter.
        gradient: g, likewise; may be overwritten.
        momentum: m, likewise, strided like the parameters; may be empty if β = 0.
        local: learning rate η, momentum β and weight decay.
    """
    with torch.no_grad():
        # Torch's own function without the optimiser around it, which would keep state between devices.
        sgd(
            list(parameters),
            [_match_strides(part, parameter) for part, parameter in zip(gradient, parameters, strict=True)],
            list(momentum) or [None] * len(parameters),
            fused=True,
            weight_decay=local.weight_decay,
            momentum=local.momentum,
            lr=local.learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


def _match_strides(part: Tensor, parameter: Tensor) -> Tensor:
    """Gives a gradient the strides of its parameter: the fused step ignores strides, so they must agree."""
    if part.stride() == parameter.stride():
        return part
    return torch.empty_like(parameter).copy_(part)
