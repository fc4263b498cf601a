"""From an observation to a plan: by asking any scheme, and by way of P2, as the schemes of the paper do.

HCEF and its ablations solve the same problem and differ only in the bounds they pin. So a scheme is a choice
of bounds, and the work is done here once. How the problem is solved is in `solve` and `list_solver`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cfel.arrays import BoolArray, FloatArray, IndexArray
from cfel.control.clusters import (
    Clusters,
    Decision,
    MeetAnswer,
    MeetQuestion,
    Terms,
    find_typical,
    hide_devices,
    negotiate,
)
from cfel.control.exchange import Exchange, answer_locally, ask
from cfel.control.list_solver import PairTable, list_steps, list_theta, pair_up, solve_on_list
from cfel.control.problem import RoundProblem, Solution
from cfel.control.scheme import (
    DeviceOverrides,
    Observation,
    RoundPlan,
    Scheme,
    SchemeParameters,
    State,
    complete_plan,
    make_empty_plan,
)
from cfel.control.solve import solve
from cfel.cost import device_joules, device_seconds
from cfel.errors import InputError

PerDevice = float | FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Lower and upper bounds of ρ and θ, numbers or one entry per device of the fleet."""

    rho: tuple[PerDevice, PerDevice]
    theta: tuple[PerDevice, PerDevice]


def plan_by_scheme(
    scheme: Scheme, state: State, observation: Observation, *, by_clusters: bool = False
) -> tuple[RoundPlan, State]:
    """The scheme's plan, for the rounds that the budget allows, and its next state.

    `by_clusters` has the scheme ask clusters instead of looking at devices.
    """
    if by_clusters:
        clusters = Clusters(observation)
        exchange = negotiate_by_scheme(scheme, state, observation)
        decision, state = answer_locally(exchange, clusters.answer)
        return complete_plan(clusters.plan(decision), observation), state
    plan, state = scheme.plan(state, limit_to_budget(observation))
    return complete_plan(plan, observation), state


def negotiate_by_scheme(
    scheme: Scheme, state: State, observation: Observation
) -> Exchange[tuple[Decision, State]]:
    """The same by asking clusters: the decision from which each of them plans its devices.

    Of the observation, only what does not depend on devices is used.
    """
    if scheme.negotiate is None:
        raise InputError("this scheme plans with the numbers of all devices, and cannot ask clusters instead")
    answer: MeetAnswer
    (answer,) = yield from ask(MeetQuestion())
    if not answer.devices.any():
        return Decision(None, None), state
    known = hide_devices(observation, answer)
    if known.rounds.stop != "rounds":
        known = _limit_rounds(known, find_typical(answer))
    found = yield from scheme.negotiate(state, known)
    return found


def plan_round(
    observation: Observation, parameters: SchemeParameters, bounds: Bounds, *, within_budget: bool = True
) -> RoundPlan:
    """Solves P2 for the devices that take part.

    Args:
        observation: what the coordinator knows.
        parameters: the scheme's parameters.
        bounds: bounds of ρ and θ; equal ones pin a variable.
        within_budget: whether the scheme keeps to the budgets; if not, the round has no caps.
    """
    present = observation.conditions.available
    if not present.any():
        return make_empty_plan(len(present))
    whole = parameters.steps == "whole"
    if whole:
        bounds = _round_bounds(bounds, observation.rounds.local_steps)
    problem = build_problem(observation, parameters, bounds, within_budget=within_budget)
    # With ρ pinned there is nothing to round, and the exact solver also chooses θ between the entries of a
    # list.
    if whole and (problem.rho_min < problem.rho_max).any():
        solution = _solve_in_whole_steps(problem)
    else:
        # Without caps the joint solver is done after one response; Algorithm 3 would only take longer.
        solution = solve(problem, parameters.solver if within_budget else "joint")
    return make_plan(problem, solution, present)


def negotiate_round(
    known: Observation, parameters: SchemeParameters, bounds: Bounds, *, within_budget: bool = True
) -> Exchange[Decision]:
    """The same by asking clusters; bounds are numbers."""
    tau, make_table = known.rounds.local_steps, None
    if parameters.steps == "whole":
        bounds = _round_bounds(bounds, tau)
    terms = make_terms(known, parameters, bounds, within_budget=within_budget)
    if parameters.steps == "whole" and terms.rho[0] < terms.rho[1]:
        table = _list_whole_steps(terms, tau)

        def make_table(_devices: FloatArray) -> PairTable:
            return table

    decision, _ = yield from negotiate(terms, make_table)
    return decision


def make_terms(
    known: Observation,
    parameters: SchemeParameters,
    bounds: Bounds,
    *,
    within_budget: bool = True,
    local_steps: int | None = None,
) -> Terms:
    """What clusters plan under; arguments as for `build_problem`, with numbers as bounds."""
    sigma2, g2 = known.estimates()
    seconds, joules = _find_caps(known, within_budget=within_budget)
    bounds = _raise_bounds(known, bounds, local_steps)
    return Terms(
        sigma2=sigma2,
        g2=g2,
        rho=(float(bounds.rho[0]), float(bounds.rho[1])),
        theta=(float(bounds.theta[0]), float(bounds.theta[1])),
        seconds=seconds,
        joules=joules,
        within_budget=within_budget,
        noise_weight=parameters.noise_weight,
        on_unreachable=parameters.on_unreachable,
    )


def _round_bounds(bounds: Bounds, tau: int) -> Bounds:
    """The same bounds with ρ in whole steps: at least what the lower bound asks for, and one step."""
    low = np.maximum(1.0, np.ceil(np.multiply(bounds.rho[0], tau) - 1e-9))
    high = np.maximum(low, np.floor(np.multiply(bounds.rho[1], tau) + 1e-9))
    return Bounds(rho=(low / tau, high / tau), theta=bounds.theta)


def _solve_in_whole_steps(problem: RoundProblem) -> Solution:
    """P2 on a list of pairs (k, θ), at full clocks."""
    limits = (problem.rho_min, problem.rho_max, problem.theta_min, problem.theta_max)
    if any(np.ptp(bound) > 0 for bound in limits):
        raise InputError('scheme.steps = "whole": needs the same bounds of ρ and θ for all devices')
    rho, theta = ((float(low[0]), float(high[0])) for low, high in (limits[:2], limits[2:]))
    terms = Terms(
        problem.sigma2,
        problem.g2,
        *(rho, theta, problem.time_cap, problem.energy_cap),
        noise_weight=problem.noise_weight,
    )
    return solve_on_list(problem, _list_whole_steps(terms, problem.tau))


def _list_whole_steps(terms: Terms, tau: int) -> PairTable:
    """P2's pairs (k, θ), at full clocks."""
    steps, shares = list_steps(terms.rho[0], tau), list_theta(*terms.theta)
    count, share = pair_up(steps[steps <= terms.rho[1] * tau + 1e-9], shares)
    rho, theta = count / tau, shares[share]
    noise = terms.noise_weight * (2.0 - theta) * rho * (terms.sigma2 + terms.g2)
    return PairTable(count, theta, noise + 3.0 * (1.0 - rho) ** 2 * terms.g2)


def make_plan(
    problem: RoundProblem, solution: Solution, present: BoolArray, local_steps: int | None = None
) -> RoundPlan:
    """Turns a solution into a plan for the whole fleet; devices that the problem leaves out get ρ = θ = 0."""
    clock = solution.clock
    if problem.device is not None:
        present = np.isin(np.arange(len(present)), problem.device)
    return RoundPlan(
        rho=_expand_to_fleet(solution.rho, present, absent=0.0),
        theta=_expand_to_fleet(solution.theta, present, absent=0.0),
        sigma2=problem.sigma2,
        g2=problem.g2,
        objective=solution.objective,
        lower_bound=solution.lower_bound,
        gap=solution.gap,
        feasible=solution.feasible,
        violations=solution.violations,
        speed=None if clock is None else _expand_to_fleet(clock, present, absent=1.0),
        local_steps=local_steps,
    )


def _expand_to_fleet(values: FloatArray, present: BoolArray, absent: float) -> FloatArray:
    spread = np.full(len(present), absent)
    spread[present] = values
    return spread


def build_problem(
    observation: Observation,
    parameters: SchemeParameters,
    bounds: Bounds,
    *,
    within_budget: bool = True,
    local_steps: int | None = None,
) -> RoundProblem:
    """Builds P2 for the devices that take part, with the caps of this edge round.

    Devices that cannot meet the deadline are left out; the time caps of the others are not stretched for
    them. `local_steps` is k where devices take fewer than τ steps on small batches.
    """
    conditions = observation.conditions
    sigma2, g2 = observation.estimates()
    seconds, joules = _find_caps(observation, within_budget=within_budget)
    bounds = _raise_bounds(observation, bounds, local_steps)
    present = _find_punctual(observation, bounds)
    return RoundProblem(
        tau=observation.rounds.local_steps,
        sigma2=sigma2,
        g2=g2,
        mu=conditions.mu[present],
        alpha=conditions.alpha[present],
        nu=conditions.nu[present],
        power=conditions.power[present],
        cluster=observation.cluster[present],
        time_cap=seconds,
        energy_cap=joules,
        rho_min=_select_present(bounds.rho[0], present),
        rho_max=_select_present(bounds.rho[1], present),
        theta_min=_select_present(bounds.theta[0], present),
        theta_max=_select_present(bounds.theta[1], present),
        noise_weight=parameters.noise_weight,
        on_unreachable=parameters.on_unreachable,
        battery=_share_battery(observation, present) if within_budget else None,
        # The solver sees only devices that take part; messages must still name them by their number in the
        # fleet.
        device=np.flatnonzero(present),
        clock_static=conditions.clock_static[present],
        clock_exponent=conditions.clock_exponent[present],
    )


def _find_caps(observation: Observation, *, within_budget: bool) -> tuple[FloatArray, float]:
    """Seconds per cluster and joules of all; without budgets only the deadline counts."""
    if within_budget:
        return observation.caps()
    return np.full(observation.clusters, observation.deadline_seconds), np.inf


def _raise_bounds(observation: Observation, bounds: Bounds, local_steps: int | None) -> Bounds:
    """The bounds with ρ at least what the smallest batch costs."""
    if observation.small_batches is None:
        return bounds
    steps = observation.rounds.local_steps
    least = observation.small_batches.least * (local_steps or steps) / steps
    low, high = (np.maximum(bound, least) for bound in bounds.rho)
    return Bounds(rho=(low, high), theta=bounds.theta)


def _find_punctual(observation: Observation, bounds: Bounds) -> BoolArray:
    """The devices that can meet the deadline; all that are there if none can."""
    present = observation.conditions.available
    least_seconds, _ = compute_costs(observation, bounds.rho[0], bounds.theta[0])
    punctual = present & (least_seconds <= observation.deadline_seconds * (1 + _ROUNDING))
    # A problem needs a device. Who breaks the deadline all the same is taken out of the plan.
    return punctual if punctual.any() else present


def _share_battery(observation: Observation, present: BoolArray) -> FloatArray | None:
    """What each present device may use of its battery now, so that it lasts to the end of the run."""
    if observation.battery is None:
        return None
    # Evenly over the rest of the run, as the budgets are: a device must not be empty before the last round.
    left = observation.rounds.edge_rounds_left(observation.global_round, observation.edge_round)
    return np.asarray(observation.battery[present] / left)


def _select_present(bound: PerDevice, present: np.ndarray) -> FloatArray:
    return np.asarray(np.broadcast_to(bound, present.shape)[present], dtype=np.float64)


# Pairs (ρ, θ) to choose from, for schemes that compare what pairs bring and cost instead of solving P2. A
# pair is a whole number of steps and a share of the update.


# Before the first reports κ is taken to be θ to this power, about what trained networks show.
PRIOR = 0.3

# How much a limit may be exceeded by rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Pairs to choose from; the first has the fewest steps and the smallest θ, the last has ρ = θ = 1.

    Attributes:
        rho, theta: of every pair.
        kept: κ(θ) of every pair, in (0, 1]: how much of an update arrives, as devices measured it, or a guess
            before the first reports.
    """

    rho: FloatArray
    theta: FloatArray
    kept: FloatArray


def list_pairs(parameters: SchemeParameters, observation: Observation) -> Pairs:
    """Whole steps from ρ_min on, with a list of shares from θ_min on."""
    tau = observation.rounds.local_steps
    theta = list_theta(parameters.theta_min)
    steps, share = pair_up(list_steps(parameters.rho_min, tau), theta)
    kept = estimate_contraction(theta, observation.kept_energy)
    return Pairs(steps / tau, theta[share], kept[share])


def choose_from_pairs(
    parameters: SchemeParameters,
    init: Callable[[], State],
    plan: Callable[[State, Observation], tuple[RoundPlan, State]],
) -> Scheme:
    """Makes a scheme whose plans are such pairs: devices take whole steps, and measure κ at the listed θ."""
    theta = tuple(list_theta(parameters.theta_min).tolist())
    overrides = DeviceOverrides(steps="whole", kept_energy_at=theta)
    return Scheme(
        init, plan, device_overrides=overrides, chooses_theta=parameters.theta_min < 1, keeps_budgets=True
    )


def estimate_contraction(theta: FloatArray, kept_energy: FloatArray | None) -> FloatArray:
    """κ(θ), rising to 1; a guess before anything is measured."""
    curve = theta**PRIOR if kept_energy is None else kept_energy
    # Top-k keeps at least the share θ of the energy, and more entries never keep less; noise may say
    # otherwise.
    return np.maximum(np.maximum.accumulate(np.clip(curve, 0.0, 1.0)), theta)


def compute_costs(
    observation: Observation, rho: float | FloatArray, theta: float | FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Seconds and joules of every device with one pair for all, or one pair each."""
    now, tau = observation.conditions, observation.rounds.local_steps
    seconds = device_seconds(rho, theta, tau, now.mu, now.nu)
    return seconds, device_joules(rho, theta, tau, now.alpha, now.nu, now.power)


def choose_best(
    observation: Observation, pairs: Pairs, gain: FloatArray, seconds: FloatArray, joules: FloatArray
) -> tuple[IndexArray, BoolArray]:
    """Every device's pair with the largest gain within its own limits of seconds and joules.

    Returns the pair of each device, the first where none fits, and whether one fits.
    """
    best = np.zeros(len(observation.cluster), dtype=np.intp)
    fits = np.zeros(len(best), dtype=bool)
    # From the largest gain downwards, and of equal ones the cheaper first. One pair at a time: a table of all
    # pairs and devices would not fit into memory for large fleets.
    for pair in np.argsort(-gain, kind="stable").tolist():
        used_seconds, used_joules = compute_costs(observation, pairs.rho[pair], pairs.theta[pair])
        within = (used_seconds <= seconds * (1 + _ROUNDING)) & (used_joules <= joules * (1 + _ROUNDING))
        best[within & ~fits] = pair
        fits |= within
        if fits.all():
            break
    return best, fits


# How many rounds a budget allows, for runs that end when it is used up or a target is reached. Caps share
# what is left of a budget among the rounds that are left. In such a run `rounds.global` is only an upper
# limit, often a generous one. Shared among all of it, a budget leaves next to nothing for each round:
# every plan is at its lower bounds, and the run still ends long before that limit. So no round is planned
# with less than a share of what full work (ρ = θ = 1) costs a typical device in it. The slowest device
# would be no measure: in a deep fade its upload can take hours, and a round must not be granted more for
# that.


LEAST_SHARE = 0.3
"""Half of what the paper's budgets leave to a round, chosen by accuracy on one seed of `demo`.

That was by the slowest device: 0.2 of its work is about 0.3 of the median device's.
"""

SMALL_BATCH_SHARE = 0.5
"""The same with small batches: even the smallest take a slow device longer than 0.3 takes a typical one.

Chosen by hand for that reason; no measurement of other shares is recorded.
"""


def limit_to_budget(observation: Observation) -> Observation:
    """The observation with the rounds that the budget allows; unchanged if all rounds are to be run."""
    if observation.rounds.stop == "rounds" or not observation.conditions.available.any():
        return observation
    return _limit_rounds(observation, _typical_work(observation))


def _limit_rounds(observation: Observation, work: tuple[float, float]) -> Observation:
    """The same, given seconds of a typical device's full work, and joules of as many as there are."""
    rounds = observation.rounds
    allowed = _count_rounds(observation, work)
    if allowed >= rounds.global_rounds - observation.global_round:
        return observation
    # This round is under way, so it counts even if the budget does not cover it.
    last = observation.global_round + max(1, int(allowed))
    return replace(observation, rounds=replace(rounds, global_rounds=last))


def _count_rounds(observation: Observation, work: tuple[float, float]) -> float:
    """How often the budget left covers this global round, its rest at the least share of full work."""
    budget, ledger = observation.budget, observation.ledger
    edge_rounds_left = observation.rounds.edge_rounds - observation.edge_round
    share = (LEAST_SHARE if observation.small_batches is None else SMALL_BATCH_SHARE) * edge_rounds_left
    work_seconds, work_joules = work
    elapsed = np.asarray(ledger.elapsed_seconds)
    seconds = float((elapsed + share * work_seconds + observation.gossip_seconds_left).max())
    joules = ledger.elapsed_joules + share * work_joules
    return min(
        _divide(budget.seconds - ledger.seconds, seconds), _divide(budget.joules - ledger.joules, joules)
    )


def _typical_work(observation: Observation) -> tuple[float, float]:
    """Seconds of the median device, and joules of as many such devices, in an edge round of full work."""
    present = observation.conditions.available
    seconds, joules = compute_costs(observation, 1.0, 1.0)
    return float(np.median(seconds[present])), float(np.median(joules[present]) * present.sum())


def _divide(left: float, cost: float) -> float:
    return left / cost if cost > 0 else np.inf
