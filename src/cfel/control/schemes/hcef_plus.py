"""HCEF+: as much progress as time and energy are worth, within both budgets.

P2 takes top-k's error to be (1 − θ)‖x‖² and has no term for progress, so it sends nearly everything and
leaves time unused. Here a step counts as progress, what an upload loses is measured, and what compression
drops is sent later. `docs/explanations/hcef-plus.md` has the derivation and the measured effect of every
switch; `Options` says what each does. With `scheme.steps = "small_batches"`, devices take all steps, on
batches as small as the noise allows, instead of leaving steps out.
"""

from dataclasses import dataclass

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray
from cfel.control.list_solver import PairTable, list_steps, list_theta, pair_up, solve_on_list
from cfel.control.planning import Bounds, build_problem, estimate_contraction, make_plan
from cfel.control.problem import RoundProblem
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
from cfel.errors import InputError
from cfel.system.batch_shares import BatchShares

SWITCHES = (
    *("progress", "curve", "error_feedback", "whole_steps", "efficiency", "frequency", "dense_gossip"),
)
# Chosen by hand; on held-out samples of CIFAR-10, seed 0, accuracy with 10 was within the noise of one seed
# (results/README.md, "One gossip step or two").
HORIZON = 50.0
# Small batches make a round so cheap that sending late costs more than sending. Chosen against 50 on held-out
# samples of CIFAR-10, seed 10: rows `small-shared` and `small-shared-horizon_50` of the study `learning`.
SMALL_BATCH_HORIZON = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """`[scheme.options]` of HCEF+.

    Attributes:
        progress: a step counts as progress; off: P2's own objective on the same list.
        curve: what top-k keeps is measured on real updates; off: κ(θ) = θ, as P2 assumes.
        error_feedback: devices keep what compression dropped, and add it to their next upload.
        whole_steps: every device takes exactly the k steps of its plan; off: each of τ with probability k/τ.
        efficiency: time and energy are spent where they bring progress; off: the caps are used up.
        frequency: devices that would finish early run at a slower clock.
        dense_gossip: edge servers gossip after every edge round instead of every global round.
        evenness: weight ω ≥ 0 of (1 − ρ)² beside progress; the larger, the more alike devices' shares.
        time_weight: a in (0, 1): how much time counts beside energy, whose weight is 1 − a.
        horizon: edge rounds within which what compression dropped should have arrived, > 0; None for 50, or
            for 5 with small batches.
        least_speed: smallest share of its clock a device may run at, in (0, 1].
        gossip_steps: gossip steps at each exchange, ≥ 1.
        noise: share of a step's progress that the noise of full batches costs where σ² = G², ≥ 0; for small
            batches.
        least_batch: smallest batch, as a share of the full one, in (0, 1]; for small batches.
    """

    progress: bool = True
    curve: bool = True
    error_feedback: bool = True
    whole_steps: bool = True
    efficiency: bool = True
    frequency: bool = True
    dense_gossip: bool = True
    evenness: float = 0.25
    time_weight: float = 0.8
    horizon: float | None = None
    least_speed: float = 0.5
    gossip_steps: int = 2
    noise: float = 0.1
    least_batch: float = 0.2

    def __post_init__(self) -> None:
        for name in SWITCHES:
            validation.check_switch(f"scheme.options.{name}", getattr(self, name))
        validation.check_number("scheme.options.evenness", self.evenness, least=0)
        validation.check_number("scheme.options.time_weight", self.time_weight, above=0, below=1)
        if self.horizon is not None:
            validation.check_number("scheme.options.horizon", self.horizon, above=0)
        validation.check_number("scheme.options.least_speed", self.least_speed, above=0, most=1)
        validation.check_number("scheme.options.noise", self.noise, least=0)
        validation.check_number("scheme.options.least_batch", self.least_batch, above=0, most=1)
        validation.check_whole("scheme.options.gossip_steps", self.gossip_steps, least=1)


def hcef_plus(parameters: SchemeParameters) -> Scheme:
    """Solves the progress problem in every edge round."""
    options = read_options(Options, parameters.options)
    theta = list_theta(parameters.theta_min)
    # Without progress in the objective nothing says what time and energy are worth.
    time_weight = options.time_weight if options.efficiency and options.progress else None
    small_batches = parameters.steps == "small_batches"

    def plan(observation: Observation) -> RoundPlan:
        present = observation.conditions.available
        if not present.any():
            return make_empty_plan(len(present))
        tau = observation.rounds.local_steps
        shares = _need_batch(observation) if small_batches else None
        if shares is None:
            steps = list_steps(parameters.rho_min, tau)
        else:
            # On a part of its batch, a step costs as much as a part of a step.
            listed = shares.list_shares(options.least_batch)
            steps = tau * listed[listed >= parameters.rho_min]
        bounds = Bounds(rho=(steps[0] / tau, 1.0), theta=(float(theta[0]), 1.0))
        problem = build_problem(observation, parameters, bounds)
        kept = estimate_contraction(theta, observation.kept_energy if options.curve else theta)
        count, share = pair_up(steps, theta)
        part = None if shares is None else shares.find_part(count / tau)
        cost = _pair_costs(options, problem, count / tau, kept[share], part)
        slow_clocks = options.frequency and not observation.full_clocks
        table = PairTable(count, theta[share], cost, options.least_speed if slow_clocks else 1.0)
        return make_plan(problem, solve_on_list(problem, table, time_weight), present)

    return Scheme(
        init=dict,
        plan=lambda state, observation: (plan(observation), state),
        gossip=Gossip(every_edge_round=options.dense_gossip, steps=options.gossip_steps),
        device_overrides=DeviceOverrides(
            steps="whole" if options.whole_steps else None,
            error_feedback=True if options.error_feedback else None,
            kept_energy_at=tuple(theta.tolist()) if options.curve else (),
        ),
        plans_clocks=options.frequency,
        chooses_theta=parameters.theta_min < 1,
        keeps_budgets=True,
    )


def _need_batch(observation: Observation) -> BatchShares:
    if observation.small_batches is None:
        raise InputError(
            "scheme.steps = 'small_batches': plans need the size of a full batch, which is not known here; "
            "plan in whole steps, or for an experiment, which has a batch"
        )
    return observation.small_batches


def _pair_costs(
    options: Options, problem: RoundProblem, rho: FloatArray, kept: FloatArray, part: FloatArray | None
) -> FloatArray:
    """The objective of every pair (k, θ), given its ρ = k/τ and κ(θ).

    With error feedback nothing is lost, it arrives later: by (1 − κ)/κ edge rounds on average. That delay,
    relative to the horizon, reduces what a step is worth. Without it, a share 1 − κ of the update is lost.

    With small batches all steps are taken, on a part of each batch. Noise is taken to be inversely
    proportional to the batch, which it is for devices with many more samples than a batch has: a step is
    worth 1 + ν − ν/part, where ν is what the noise of a full batch costs.
    """
    if not options.progress:
        scale = problem.sigma2 + problem.g2 or 1.0
        return problem.noise_weight * (2.0 - kept) * rho + 3.0 * problem.g2 / scale * (1.0 - rho) ** 2
    horizon = options.horizon or (HORIZON if part is None else SMALL_BATCH_HORIZON)
    delayed = np.maximum(1.0 - (1.0 - kept) / (kept * horizon), 0.0)
    value = delayed if options.error_feedback else kept
    if part is None:
        return options.evenness * (1.0 - rho) ** 2 - rho * value
    noise = min(1.0, options.noise * problem.sigma2 / problem.g2) if problem.g2 else 1.0
    return -np.maximum(1.0 + noise - noise / part, 0.0) * value
