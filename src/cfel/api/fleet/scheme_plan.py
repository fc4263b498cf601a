"""A fleet's round as any scheme plans it: what the first edge round of a simulation would ask of the devices.

The scheme gets the observation that it would get there, and is asked in the same way.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cfel import validation
from cfel.api.fleet.problem_file import OptionName, RunLength
from cfel.arrays import FloatArray
from cfel.control.caps import Budget, Rounds
from cfel.control.planning import plan_by_scheme
from cfel.control.problem import RoundProblem
from cfel.control.scheme import Observation, RoundPlan, Scheme, SchemeBuilder, SchemeParameters
from cfel.control.schemes import build_scheme
from cfel.control.solution import ROUNDING, Solution
from cfel.control.solver.feasible_limits import MOST_SENTENCES
from cfel.control.solver.solve import Method
from cfel.cost import cluster_seconds, device_joules, device_seconds, open_ledger
from cfel.errors import InputError
from cfel.plugins import ANY_CODE, CodePolicy, label_object
from cfel.scheme_names import parse_variants
from cfel.system.batch_shares import DEFAULT_OVERHEAD, BatchShares
from cfel.system.conditions import Conditions

HCEF = "hcef"
"""The scheme that solves the problem of the table itself, with bounds per device."""


@dataclass(frozen=True, slots=True)
class SchemeRequest:
    """Which scheme is to plan, and what the user says about it; None where nothing is said.

    Attributes:
        scheme: its name, also with variants, or a function that builds it.
        scheme_options: `[scheme.options]` of the experiment file.
        batch: samples of a full batch, ≥ 1; required with small batches.
        step_overhead: share of the cost of a step that its batch does not change, in [0, 1); for small
            batches, by default as in the experiment file.
        seed: of schemes that draw, ≥ 0; 0 by default.
    """

    scheme: str | SchemeBuilder = HCEF
    scheme_options: Mapping[str, Any] | None = None
    batch: int | None = None
    step_overhead: float | None = None
    seed: int | None = None

    def reject_given(self, names: Sequence[str], why: str, option_name: OptionName) -> None:
        """Raises for the first of these fields that is given: an ignored option would mislead."""
        for name in names:
            if getattr(self, name) is not None:
                raise InputError(f"{option_name(name)}: {why}")

    @property
    def name(self) -> str:
        """What the plan calls the scheme."""
        return self.scheme if isinstance(self.scheme, str) else label_object("scheme", self.scheme)

    def find_scheme(self) -> tuple[SchemeParameters, CodePolicy]:
        """Its parameters as far as they are known, and a policy that finds its code."""
        options = self.scheme_options or {}
        if isinstance(self.scheme, str):
            return SchemeParameters(**parse_variants(self.scheme), options=options), ANY_CODE
        return SchemeParameters(self.name, options=options), ANY_CODE.add_objects({self.name: self.scheme})


def plan_by_request(
    problem: RoundProblem,
    request: SchemeRequest,
    method: Method,
    length: RunLength | None,
    option_name: OptionName,
) -> tuple[Solution, FloatArray | None]:
    """Plans the first edge round of a run.

    Args:
        problem: the fleet, with the caps of that round.
        request: who plans.
        method: how schemes solve P2, if they do.
        length: the run; None for a run of this round only.
        option_name: what the user knows an option by.

    Returns:
        The plan, with the scheme's name for its method, and the share of its clock that each device runs at,
        or None for full clocks. The plan is not feasible if it exceeds a cap, whatever the scheme says.

    Raises:
        InputError: the scheme cannot plan this problem; the message says why.
    """
    found, code = request.find_scheme()
    parameters = replace(found, solver=method, **_read_bounds(problem, found.name, option_name))
    scheme = build_scheme(parameters, code)
    observation = replace(
        _observe(problem, length, option_name),
        seed=0 if request.seed is None else validation.check_whole("seed", request.seed, least=0),
        small_batches=_find_small_batches(scheme, request, option_name),
    )
    plan, _ = plan_by_scheme(scheme, scheme.init(), observation)
    return _count(problem, observation, plan, request.name), plan.speed


def _read_bounds(problem: RoundProblem, scheme: str, option_name: OptionName) -> dict[str, Any]:
    """The keys of `[scheme]` that the problem states."""
    for name in ("rho_max", "theta_max"):
        if (getattr(problem, name) < 1).any():
            raise InputError(f"{name}: only with the scheme hcef; for {scheme} it is 1 everywhere")
    for name in ("rho_min", "theta_min"):
        if np.ptp(getattr(problem, name)) > 0:
            raise InputError(
                f"{option_name(name)}: one value per device is only for the scheme hcef; {scheme} takes one"
            )
    return {
        "rho_min": float(problem.rho_min[0]),
        "theta_min": float(problem.theta_min[0]),
        "noise_weight": problem.noise_weight,
        "on_unreachable": problem.on_unreachable,
    }


def _find_small_batches(
    scheme: Scheme, request: SchemeRequest, option_name: OptionName
) -> BatchShares | None:
    if scheme.device_overrides.steps != "small_batches":
        why = "only with small batches, as in hcef_plus+small_batches"
        request.reject_given(("batch", "step_overhead"), why, option_name)
        return None
    if request.batch is None:
        raise InputError(
            f"{option_name('batch')}: required with small batches, which are parts of a full one"
        )
    overhead = DEFAULT_OVERHEAD if request.step_overhead is None else request.step_overhead
    validation.check_number(option_name("step_overhead"), overhead, least=0, below=1)
    return BatchShares(validation.check_whole(option_name("batch"), request.batch, least=1), overhead)


def _observe(problem: RoundProblem, length: RunLength | None, option_name: OptionName) -> Observation:
    """What a scheme knows before the first edge round of a run with these caps, or these budgets."""
    edge_rounds, run = (1, 1) if length is None else (length.edge_rounds, length.rounds * length.edge_rounds)
    rounds = Rounds(run // edge_rounds, edge_rounds, problem.tau)
    caps, most = problem.time_cap, float(problem.time_cap.max())
    for name, cap in (("time_cap", most), ("energy_cap", problem.energy_cap)):
        # A problem may have been overspent; a run begins with something to spend.
        validation.check_number(option_name(name), cap, above=0, finite=False)
    if math.isinf(most) and np.isfinite(caps).any():
        raise InputError(f"{option_name('time_cap')}: limits all clusters or none, where a scheme plans")
    seconds = None if length is None else length.time_budget
    joules = None if length is None else length.energy_budget
    everybody = np.ones(problem.devices)
    return Observation(
        global_round=0,
        edge_round=0,
        rounds=rounds,
        conditions=Conditions(
            mu=problem.mu,
            alpha=problem.alpha,
            nu=problem.nu,
            power=problem.power,
            available=everybody > 0,
            clock_static=problem.clock_static,
            clock_exponent=problem.clock_exponent,
        ),
        cluster=problem.cluster,
        sigma2=problem.sigma2 * everybody,
        g2=problem.g2 * everybody,
        ledger=open_ledger(problem.clusters),
        # A scheme knows totals: what a cap or a battery allows in this round is that share of one.
        budget=Budget(
            most * run if seconds is None else seconds, problem.energy_cap * run if joules is None else joules
        ),
        # A cluster with less time than others has as much less as if its edge server were busy meanwhile.
        gossip_seconds_left=np.zeros(problem.clusters) if math.isinf(most) else (most - caps) * edge_rounds,
        battery=None if problem.battery is None else problem.battery * run,
    )


def _count(problem: RoundProblem, observation: Observation, plan: RoundPlan, scheme: str) -> Solution:
    """The plan with what it costs, and what it exceeds."""
    now, tau = plan.apply_speed(observation.conditions), problem.tau
    seconds = device_seconds(plan.rho, plan.theta, tau, now.mu, now.nu)
    joules = device_joules(plan.rho, plan.theta, tau, now.alpha, now.nu, now.power)
    # A scheme that ignores caps, as CEF does, reports none of them as exceeded.
    violations = plan.violations or _find_excess(problem, seconds, joules)
    return Solution(
        rho=plan.rho,
        theta=plan.theta,
        objective=plan.objective,
        lower_bound=plan.lower_bound,
        feasible=plan.feasible and not violations,
        violations=violations,
        device_seconds=seconds,
        device_joules=joules,
        time_cap=problem.time_cap,
        energy_cap=problem.energy_cap,
        multiplier=math.nan,
        method=scheme,
    )


def _find_excess(problem: RoundProblem, seconds: FloatArray, joules: FloatArray) -> tuple[str, ...]:
    used = cluster_seconds(seconds, problem.cluster, problem.clusters)
    words = _describe_excess("cluster", used, problem.time_cap, "s")
    if (total := float(joules.sum())) > problem.energy_cap * (1 + ROUNDING):
        words.append(f"energy cap {problem.energy_cap:g} J: the plan takes {total:.6g} J")
    if problem.battery is not None:
        words += _describe_excess("device", joules, problem.battery, "J")
    return tuple(words)


def _describe_excess(what: str, used: FloatArray, allowed: FloatArray, unit: str) -> list[str]:
    over = np.flatnonzero(used > allowed * (1 + ROUNDING))
    words = [
        f"{what} {i}: may take {allowed[i]:g} {unit}, the plan takes {used[i]:.6g}"
        for i in over[:MOST_SENTENCES].tolist()
    ]
    left_out = len(over) - len(words)
    return [*words, f"… and {left_out} more {what}s"] if left_out else words
