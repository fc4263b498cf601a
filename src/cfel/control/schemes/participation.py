"""Who takes part, and for how long: FedPAQ, Luo et al. and SD-FEEL with device heterogeneity.

None of them plans an upload: what is sent is fixed. Devices are sampled alike within every cluster, as each
edge server needs some. None keeps to the budgets; a run ends when they are used up.
"""

from dataclasses import dataclass

import numpy as np

from cfel import validation
from cfel.arrays import BoolArray, FloatArray, IntArray
from cfel.control.list_solver import list_steps
from cfel.control.planning import compute_costs
from cfel.control.scheme import (
    DeviceOverrides,
    Gossip,
    Observation,
    RoundPlan,
    Scheme,
    SchemeParameters,
    make_empty_plan,
    read_options,
)
from cfel.errors import InputError, unknown_name
from cfel.seeding import make_generator

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Of each cluster's devices, to choose from."""

UNBIASED = ("quantise", "uveqfed", "atomo")
"""Compressors whose result is the vector on average, so that devices need no error feedback."""


def draw_devices(seen: Observation, share: float, purpose: str) -> BoolArray:
    """Draws a share of the devices that are there, at least one of every cluster that has any."""
    present = seen.conditions.available
    # Every device has its draw, present or not.
    draws = make_generator(seen.seed, purpose, seen.global_round, seen.edge_round).random(len(present))
    there = np.flatnonzero(present)
    ordered = there[np.lexsort((draws[there], seen.cluster[there]))]
    counts = np.bincount(seen.cluster[there], minlength=seen.clusters)
    first = np.cumsum(counts) - counts
    place = np.arange(there.size) - first[seen.cluster[ordered]]
    chosen = np.zeros(len(present), dtype=bool)
    chosen[ordered[place < count_devices(counts, share)[seen.cluster[ordered]]]] = True
    return chosen


def count_devices(sizes: IntArray, share: float) -> IntArray:
    """How many devices are asked in clusters of these sizes."""
    return np.where(sizes > 0, np.maximum(1, np.rint(share * sizes)), 0).astype(np.int64)


@dataclass(frozen=True, slots=True)
class FedPaqOptions:
    """`[scheme.options]` of FedPAQ.

    Attributes:
        share: of a cluster's available devices to ask, in (0, 1]; at least one.
        theta: size of an upload, in (0, 1]; bits per entry are 32·θ for a quantiser.
        compressor: "quantise" (the paper's), "uveqfed" or "atomo".
    """

    share: float = 0.5
    theta: float = 0.125
    compressor: str = "quantise"

    def __post_init__(self) -> None:
        for name in ("share", "theta"):
            validation.check_number(f"scheme.options.{name}", getattr(self, name), above=0, most=1)
        if self.compressor not in UNBIASED:
            raise InputError(unknown_name("scheme.options.compressor", self.compressor, UNBIASED))


def fedpaq(parameters: SchemeParameters) -> Scheme:
    """A random part of the devices takes every step and sends quantised updates; no caps.

    Reference: Reisizadeh, Mokhtari, Hassani, Jadbabaie, Pedarsani, "FedPAQ: A Communication-Efficient
    Federated Learning Method with Periodic Averaging and Quantization", AISTATS 2020 (arXiv 1909.13014).

    Kept: averaging after τ local steps, partial participation drawn anew in every round, and an unbiased
    quantiser of the update with a fixed number of bits. Not kept: its one server is here the edge server of
    each cluster; the quantiser has one scale per 1,024 entries, where the paper has one for all. Other
    unbiased compressors (UVeQFed, ATOMO) take the quantiser's place by an option.
    """
    options = read_options(FedPaqOptions, parameters.options)

    def plan(seen: Observation) -> RoundPlan:
        if not seen.conditions.available.any():
            return make_empty_plan(len(seen.cluster))
        asked = draw_devices(seen, options.share, "fedpaq").astype(np.float64)
        return RoundPlan(asked, options.theta * asked)

    return Scheme(
        init=dict,
        plan=lambda state, seen: (plan(seen), state),
        device_overrides=DeviceOverrides(error_feedback=False, compressor=options.compressor),
        chooses_theta=options.theta < 1,
    )


@dataclass(frozen=True, slots=True)
class CostEffectiveOptions:
    """`[scheme.options]` of the cost-effective design.

    Attributes:
        time_weight: γ, how much time counts beside energy, in [0, 1].
        drift: b ≥ 0, what local steps add to the rounds needed, relative to what they save.
    """

    time_weight: float = 0.5
    drift: float = 0.04

    def __post_init__(self) -> None:
        validation.check_number("scheme.options.time_weight", self.time_weight, least=0, most=1)
        validation.check_number("scheme.options.drift", self.drift, least=0)


def cost_effective(parameters: SchemeParameters) -> Scheme:
    """How many random devices take part, and how many steps all of them take, for the least cost; no caps.

    Reference: Luo, Li, Wang, Huang, Tassiulas, "Cost-Effective Federated Learning Design", INFOCOM 2021
    (arXiv 2012.08336).

    Kept: K participants and E local steps minimise expected cost per round, γ·time + (1 − γ)·energy, times
    the rounds that a convergence bound asks for, 1/E + b·(1 + (N − K)/(K(N − 1)))·E. Time is the expected
    maximum over K devices drawn at random. Not kept: the paper learns its two constants from trial runs, of
    which only the ratio b matters, an option here; costs are relative to those of full work, so that γ weighs
    seconds against joules; K is a share of each cluster.
    """
    options = read_options(CostEffectiveOptions, parameters.options)

    def plan(seen: Observation) -> RoundPlan:
        if not seen.conditions.available.any():
            return make_empty_plan(len(seen.cluster))
        share, steps = find_cheapest(seen, list_steps(parameters.rho_min, seen.rounds.local_steps), options)
        asked = draw_devices(seen, share, "cost effective").astype(np.float64)
        return RoundPlan(steps / seen.rounds.local_steps * asked, asked)

    return Scheme(
        init=dict,
        plan=lambda state, seen: (plan(seen), state),
        device_overrides=DeviceOverrides(steps="whole"),
    )


def find_cheapest(seen: Observation, steps: FloatArray, options: CostEffectiveOptions) -> tuple[float, float]:
    """The share of devices and the number of steps of least total cost."""
    present = seen.conditions.available
    full_seconds, full_joules = compute_costs(seen, 1.0, 1.0)
    # Relative to full work; what costs nothing there costs nothing.
    seconds_unit, joules_unit = (
        float(full_seconds[present].max()) or 1.0,
        float(full_joules[present].sum()) or 1.0,
    )
    devices, weight = int(present.sum()), options.time_weight
    costs = {}
    for count in steps.tolist():
        _, joules = compute_costs(seen, count / seen.rounds.local_steps, 1.0)
        for share, (asked, longest) in _expect_rounds(seen, count).items():
            scarce = (devices - asked) / (asked * max(1, devices - 1))
            rounds = 1 / count + options.drift * (1 + scarce) * count
            spent = float(joules[present].sum()) * asked / devices
            costs[share, count] = rounds * (
                weight * longest / seconds_unit + (1 - weight) * spent / joules_unit
            )
    return min(costs, key=lambda pair: costs[pair])


def _expect_rounds(seen: Observation, steps: float) -> dict[float, tuple[int, float]]:
    """For each share of devices, how many are asked, and how long so many steps take on average."""
    seconds, _ = compute_costs(seen, steps / seen.rounds.local_steps, 1.0)
    there = np.flatnonzero(seen.conditions.available)
    ordered = there[np.lexsort((seconds[there], seen.cluster[there]))]
    sizes = np.bincount(seen.cluster[there], minlength=seen.clusters)
    groups = np.split(seconds[ordered], np.cumsum(sizes)[:-1])
    found = {}
    for share in SHARES:
        asked = count_devices(sizes, share)
        longest = (expect_longest(own, int(count)) for own, count in zip(groups, asked, strict=True))
        found[share] = (int(asked.sum()), max(longest))
    return found


def expect_longest(ordered: FloatArray, drawn: int) -> float:
    """The expected maximum of `drawn` of some numbers, given in ascending order; 0 of none.

    The i-th smallest of n is the largest of K drawn with probability C(i − 1, K − 1)/C(n, K).
    """
    if not drawn:
        return 0.0
    size = ordered.size
    # From the largest down: K/n, then (i − K)/(i − 1) times as much for each place below i.
    place = np.arange(size, 1, -1)
    chances = drawn / size * np.cumprod(np.concatenate([[1.0], np.maximum(0, place - drawn) / (place - 1)]))
    return float(chances @ ordered[::-1])


@dataclass(frozen=True, slots=True)
class DeadlineOptions:
    """`[scheme.options]` of SD-FEEL with deadlines.

    Attributes:
        deadline: of each cluster, as the percentile of what its devices take for all steps, in [0, 100].
        steps: gossip steps in a row at each exchange, ≥ 1, as in `sd_feel`.
    """

    deadline: float = 50.0
    steps: int = 2

    def __post_init__(self) -> None:
        validation.check_number("scheme.options.deadline", self.deadline, least=0, most=100)
        validation.check_whole("scheme.options.steps", self.steps, least=1)


def sd_feel_hetero(parameters: SchemeParameters) -> Scheme:
    """SD-FEEL in which every device steps until its cluster's deadline; updates count per step; no caps.

    Reference: Sun, Shao, Mao, Wang, Zhang, "Semi-Decentralized Federated Edge Learning with Data and Device
    Heterogeneity", IEEE Transactions on Network and Service Management 2023 (arXiv 2112.10313).

    Kept: each edge server sets its own deadline, until which its devices take as many steps as they can, at
    least one; full models are sent; updates are weighted by samples and divided by their number of steps, so
    that fast devices do not rule. Not kept: its edge servers exchange models at their own pace and discount
    stale ones, where here clusters wait for each other at an exchange; dividing by steps is done with the
    weights of the mean, which scales it to the harmonic mean of the steps. The paper leaves the deadline
    open; a percentile sets it.
    """
    options = read_options(DeadlineOptions, parameters.options)

    def plan(seen: Observation) -> RoundPlan:
        present = seen.conditions.available
        if not present.any():
            return make_empty_plan(len(present))
        tau, now = seen.rounds.local_steps, seen.conditions
        seconds, _ = compute_costs(seen, 1.0, 1.0)
        until = np.zeros(seen.clusters)
        for cluster in np.unique(seen.cluster[present]):
            until[cluster] = np.percentile(seconds[present & (seen.cluster == cluster)], options.deadline)
        # What is left of rounding must not cost a step.
        left = np.floor((until[seen.cluster] - now.nu) / now.mu + 1e-9)
        steps = np.where(present, np.clip(left, 1, tau), 0.0)
        samples = np.ones(len(present)) if seen.samples is None else seen.samples
        weight = np.where(present, samples / np.maximum(steps, 1), 1.0)
        return RoundPlan(steps / tau, present.astype(np.float64), weight=weight)

    return Scheme(
        init=dict,
        plan=lambda state, seen: (plan(seen), state),
        gossip=Gossip(steps=options.steps, weights="samples"),
        device_overrides=DeviceOverrides(steps="whole"),
    )
