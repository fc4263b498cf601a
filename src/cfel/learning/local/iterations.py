"""Which of the τ iterations a device runs, and on which samples.

Every draw comes from a stream keyed by (seed, purpose, global round, edge round, device). All τ uniforms and
τ batches are drawn, whether they are used or not: two schemes that run the same iteration see the same batch.
A skipped iteration changes neither the model nor what the device remembers.
"""

import numpy as np

from cfel.arrays import BoolArray, IntArray
from cfel.learning.local.parameters import StepRule, TrainingParameters
from cfel.system.batch_shares import BatchShares


def choose_iterations(rule: StepRule, rho: float, tau: int, draw: np.random.Generator) -> BoolArray:
    """Chooses which of the τ iterations to run; draws τ uniforms under either rule.

    Args:
        rule: see `LocalParameters.steps`.
        rho: share of iterations, in [0, 1].
        tau: number of iterations, ≥ 1.
        draw: the device's stream of this edge round.
    """
    uniforms = draw.random(tau)
    if rule == "small_batches":
        return np.full(tau, rho > 0)
    if rule == "bernoulli":
        return np.asarray(uniforms < rho)
    # An iteration runs where the line ρ·t + u passes an integer: ⌊ρτ⌋ or ⌈ρτ⌉ times, ρτ on average.
    if rule == "whole":
        # In whole numbers, so that rounding never adds or drops a step.
        steps, start = round(rho * tau), int(uniforms[0] * tau)
        return np.asarray(np.diff((np.arange(tau + 1) * steps + start) // tau) > 0)
    marks = np.floor(np.arange(tau + 1) * rho + uniforms[0])
    return np.asarray(np.diff(marks) > 0)


def count_samples(training: TrainingParameters, rho: float, samples: int) -> int:
    """How many samples each step of a device uses: a batch, or with small batches what ρ pays for."""
    local, size = training.local, min(training.batch, samples)
    if local.steps != "small_batches":
        return size
    return min(size, BatchShares(training.batch, local.step_overhead).count_samples(rho))


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
