"""HCEF+: as much progress as both budgets pay for, planned from what devices measure.

P2 takes top-k's error to be (1 − θ)‖x‖² and has no term for progress, so it sends nearly everything and
leaves time unused. Here a step counts as progress, what an upload loses is measured, and what compression
drops is sent later. `docs/hcef-plus.md` has the derivation and the measured effect of every switch:

    progress        a step counts as progress; off: P2's own objective on the same list of θ
    curve           contraction κ(θ) as measured on real updates; off: κ = θ, as P2 assumes
    error_feedback  devices keep what compression dropped
    systematic      ⌊ρτ⌋ or ⌈ρτ⌉ steps instead of a draw for each
    frequency       devices that would finish early slow their clocks down
    whole_steps     exactly k steps each, so that what is planned happens; time and energy are spent where
                    they bring progress, not up to the caps (off by default: no measured results yet)
    dense_gossip    edge servers gossip after every edge round instead of every global round
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray
from cfel.control.device_overrides import DeviceOverrides
from cfel.control.gossip import Gossip
from cfel.control.grid.grid_solver import solve_on_grid
from cfel.control.grid.step_grid import StepTable
from cfel.control.grid.theta_grid import Objective
from cfel.control.grid.whole_steps import solve_whole_steps
from cfel.control.planning import Bounds, build_problem, make_plan
from cfel.control.scheme import Observation, RoundPlan, Scheme, SchemeParameters, make_empty_plan
from cfel.errors import InputError, unknown_name

LIST = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
"""The shares θ to choose from; those below `theta_min` are left out."""

SWITCHES = ("progress", "curve", "error_feedback", "systematic", "whole_steps", "frequency", "dense_gossip")
# With more local iterations than this, the numbers of steps to choose from are thinned out.
MOST_STEP_COUNTS = 20
# Before the first reports κ is taken to be θ to this power, about what trained networks show.
PRIOR = 0.3


@dataclass(frozen=True, slots=True)
class Options:
    """`[scheme.options]` of HCEF+.

    Attributes:
        progress, curve, error_feedback, systematic, whole_steps, frequency, dense_gossip: see the module.
        evenness: weight ω ≥ 0 of (1 − ρ)² beside progress; the larger, the more alike devices' shares.
        time_weight: a in (0, 1), with whole steps: how much time counts beside energy, whose weight is 1 − a.
        horizon: edge rounds within which what compression dropped should have arrived, > 0.
        least_speed: smallest share of its clock a device may run at, in (0, 1].
        gossip_steps: gossip steps at each exchange, ≥ 1.
    """

    progress: bool = True
    curve: bool = True
    error_feedback: bool = True
    systematic: bool = True
    frequency: bool = True
    dense_gossip: bool = True
    whole_steps: bool = False
    time_weight: float = 0.7
    evenness: float = 0.25
    horizon: float = 50.0
    least_speed: float = 0.5
    gossip_steps: int = 2

    def __post_init__(self) -> None:
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"scheme.options.{name} = {getattr(self, name)!r}: must be true or false")
        validation.check_number("scheme.options.evenness", self.evenness, least=0)
        validation.check_number("scheme.options.time_weight", self.time_weight, above=0, below=1)
        validation.check_number("scheme.options.horizon", self.horizon, above=0)
        validation.check_number("scheme.options.least_speed", self.least_speed, above=0, most=1)
        validation.check_whole("scheme.options.gossip_steps", self.gossip_steps, least=1)

    @classmethod
    def from_table(cls, given: Mapping[str, Any]) -> "Options":
        """Reads the options of an experiment file."""
        for name in given:
            if name not in cls.__slots__:
                raise InputError(unknown_name("scheme.options", name, cls.__slots__))
        return cls(**given)


def hcef_plus(parameters: SchemeParameters) -> Scheme:
    """Solves the progress problem in every edge round."""
    options = Options.from_table(parameters.options)
    theta = _list_theta(parameters.theta_min)
    bounds = Bounds(rho=(parameters.rho_min, 1.0), theta=(float(theta[0]), 1.0))

    def plan(observation: Observation) -> RoundPlan:
        present = observation.conditions.available
        if not present.any():
            return make_empty_plan(len(present))
        kept = _contraction(theta, observation.kept_energy if options.curve else theta)
        usable = replace(options, frequency=False) if observation.full_clocks else options
        if options.whole_steps:
            return _plan_whole_steps(observation, parameters, usable, theta, kept)
        problem = build_problem(observation, parameters, bounds)
        weight = (problem.noise_weight, problem.sigma2, problem.g2)
        solution = solve_on_grid(problem, _objective(usable, theta, kept, weight))
        return make_plan(problem, solution, present, speed=solution.speed)

    return Scheme(
        init=dict,
        plan=lambda state, observation: (plan(observation), state),
        gossip=Gossip(every_edge_round=options.dense_gossip, steps=options.gossip_steps),
        device_overrides=DeviceOverrides(
            steps="whole" if options.whole_steps else "systematic" if options.systematic else None,
            error_feedback=True if options.error_feedback else None,
            kept_energy_at=tuple(theta.tolist()) if options.curve else (),
        ),
        plans_clocks=options.frequency,
    )


def _list_theta(least: float) -> FloatArray:
    return np.array(sorted({least, *(share for share in LIST if share >= least)}))


def _contraction(theta: FloatArray, kept: FloatArray | None) -> FloatArray:
    """κ(θ), rising to 1; a guess before anything is measured."""
    curve = theta**PRIOR if kept is None else kept
    return np.maximum(np.maximum.accumulate(np.clip(curve, 0.0, 1.0)), theta)


def _objective(
    options: Options, theta: FloatArray, kept: FloatArray, weight: tuple[float, float, float]
) -> Objective:
    """The objective per step, for each θ.

    With error feedback nothing is lost, it arrives later: by (1 − κ)/κ edge rounds on average. That delay,
    relative to the horizon, reduces what a step is worth. Without it, a share 1 − κ of the update is lost.
    """
    least_speed = options.least_speed if options.frequency else 1.0
    if not options.progress:
        noise, sigma2, g2 = weight
        scale = sigma2 + g2 or 1.0
        return Objective(theta, noise * (2.0 - kept), 3.0 * g2 / scale, least_speed)
    worth = np.maximum(1.0 - (1.0 - kept) / (kept * options.horizon), 0.0)
    return Objective(theta, -(worth if options.error_feedback else kept), options.evenness, least_speed)


def _plan_whole_steps(
    observation: Observation,
    parameters: SchemeParameters,
    options: Options,
    theta: FloatArray,
    kept: FloatArray,
) -> RoundPlan:
    """Chooses a whole number of steps, a θ from the list and a clock for every device."""
    tau = observation.rounds.local_steps
    steps = _list_steps(parameters.rho_min, tau)
    bounds = Bounds(rho=(steps[0] / tau, 1.0), theta=(float(theta[0]), 1.0))
    problem = build_problem(observation, parameters, bounds)
    objective = _objective(options, theta, kept, (problem.noise_weight, problem.sigma2, problem.g2))
    count, share = np.repeat(steps, theta.size), np.tile(np.arange(theta.size), steps.size)
    cost = objective.costs(share, count / tau)
    table = StepTable(count, theta[share], cost, objective.least_speed)
    # Without progress in the objective nothing says what time and energy are worth.
    solution = solve_whole_steps(problem, table, options.time_weight if options.progress else None)
    return make_plan(problem, solution, observation.conditions.available, speed=solution.speed)


def _list_steps(rho_min: float, tau: int) -> FloatArray:
    """The numbers of steps to choose from, beginning with the fewest that keep to ρ_min."""
    fewest = max(1, math.ceil(rho_min * tau - 1e-9))
    return np.unique(np.linspace(fewest, tau, min(tau - fewest + 1, MOST_STEP_COUNTS)).round())
