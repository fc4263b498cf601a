"""HCEF+: as much progress as time and energy are worth, within both budgets.

P2 takes top-k's error to be (1 − θ)‖x‖² and has no term for progress, so it sends nearly everything and
leaves time unused. Here every edge round is planned for the most progress per time and energy:

* every device takes k steps, the same k for all; aggregating often is worth more than many steps in a row;
* each step is on b samples, chosen for each device: as few as the noise of the averaged step allows;
* a share θ of the update is sent; what compression drops is sent later;
* devices that would finish early run at a slower clock;
* devices that would keep all others waiting are left out, and waited for every tenth edge round.

Progress is `value_steps` × `value_batches` × `value_uploads`. Time and energy are weighed by what is left of
their budgets. `docs/explanations/hcef-plus.md` has the derivation and the measured effect of every part;
`Options` says what each does. Where batches cannot be chosen (`scheme.steps = "whole"`), each device takes
fewer steps instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray, IndexArray
from cfel.control.clusters import Decision, MakeTable, RankAnswer, RankQuestion, Terms, negotiate
from cfel.control.exchange import Exchange, ask, ask_together
from cfel.control.list_solver import PairTable, Weighing, list_steps, list_theta, pair_up, solve_on_list
from cfel.control.planning import (
    Bounds,
    build_problem,
    compute_costs,
    estimate_contraction,
    make_plan,
    make_terms,
)
from cfel.control.problem import RoundProblem
from cfel.control.scheme import (
    ONCE_A_ROUND,
    DeviceOverrides,
    Gossip,
    Observation,
    RoundPlan,
    Scheme,
    SchemeParameters,
    State,
    make_empty_plan,
    read_options,
)
from cfel.cost import device_joules, device_seconds
from cfel.errors import InputError
from cfel.system.batch_shares import BatchShares

Made = TypeVar("Made", RoundPlan, Decision)

SWITCHES = ("progress", "curve", "error_feedback", "efficiency", "frequency", "dense_gossip")
# The three constants of progress were fitted on held-out samples of seed 10, on both data sets together, by
# static plans that differ in one of k, b and θ: `python experiments/study.py progress`.
FRESH_STEPS = 2
"""So many local steps in a row are worth as much as single ones; each further one half of the one before."""
DELAY = 0.85
"""What an update is worth that arrives an edge round late."""
NOISE_POWER = 3.0
"""How sharply progress falls once noise exceeds the gradient, see `value_batches`."""

MOST_NOISE = 1000.0
"""σ²/G² is taken to be at most this."""

MEMORY = 0.9
"""What σ² and G² of an edge round count for in the next one; noise rises in the course of a run."""

FIRST_WEIGHT = 0.65
"""The weight of time before the first plan, and without budgets: about what budgets of one scheme give."""
WEIGHTS = (0.5, 0.9)
"""The weight of time stays between these: with one budget alone, the other cost still counts a little."""

WAIT_EVERY = 10
"""Slow devices are left out for at most so many edge rounds; those over so many times slower, always.

So waiting for them takes at most about as long as all the rounds between.
"""

# Of more steps than this, only some counts are tried.
MOST_COUNTS = 6
# Seconds at which clusters count their devices.
RANKS = 128


@dataclass(frozen=True, slots=True)
class Options:
    """`[scheme.options]` of HCEF+.

    Attributes:
        progress: a step counts as progress; off: P2's own objective, in whole steps on full batches.
        curve: what top-k keeps is measured on real updates; off: κ(θ) = θ, as P2 assumes.
        error_feedback: devices keep what compression dropped, and add it to their next upload.
        efficiency: time and energy are spent where they bring progress; off: the caps are used up.
        frequency: devices that would finish early run at a slower clock.
        dense_gossip: edge servers gossip after every edge round instead of every global round, unless the
            price of the backhaul's bits is too high for it.
        evenness: weight ω ≥ 0 of (1 − ρ)² beside progress, where batches are not chosen; the larger, the more
            alike devices' shares.
        time_weight: a in (0, 1): how much time counts beside energy, whose weight is 1 − a; None for the
            weight that the budgets give.
        least_speed: smallest share of its clock a device may run at, in (0, 1].
        gossip_steps: gossip steps at each exchange, ≥ 1.
        least_batch: smallest batch, as a share of the full one, in (0, 1]; never below two samples. By
            default a fifth with batch norm, which fails on few samples, and two samples without it.
        local_steps: k, where it is not to be planned, ≥ 1; at most τ is taken.
    """

    progress: bool = True
    curve: bool = True
    error_feedback: bool = True
    efficiency: bool = True
    frequency: bool = True
    dense_gossip: bool = True
    evenness: float = 0.25
    time_weight: float | None = None
    least_speed: float = 0.5
    gossip_steps: int = 2
    least_batch: float | None = None
    local_steps: int | None = None

    def __post_init__(self) -> None:
        for name in SWITCHES:
            validation.check_switch(f"scheme.options.{name}", getattr(self, name))
        validation.check_number("scheme.options.evenness", self.evenness, least=0)
        if self.time_weight is not None:
            validation.check_number("scheme.options.time_weight", self.time_weight, above=0, below=1)
        validation.check_number("scheme.options.least_speed", self.least_speed, above=0, most=1)
        if self.least_batch is not None:
            validation.check_number("scheme.options.least_batch", self.least_batch, above=0, most=1)
        validation.check_whole("scheme.options.gossip_steps", self.gossip_steps, least=1)
        if self.local_steps is not None:
            validation.check_whole("scheme.options.local_steps", self.local_steps, least=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Choice(Generic[Made]):
    """One plan, or the decision behind it, and what it takes and brings."""

    plan: Made
    score: float
    seconds: float
    joules: float


def hcef_plus(parameters: SchemeParameters) -> Scheme:
    """Solves the progress problem in every edge round."""
    options = read_options(Options, parameters.options)
    theta = list_theta(parameters.theta_min)
    if parameters.steps == "last_layers":
        raise InputError("scheme.steps = 'last_layers': hcef_plus plans steps and batches of all layers")
    in_batches = options.progress and parameters.steps != "whole"

    def plan(state: State, observation: Observation) -> tuple[RoundPlan, State]:
        present = observation.conditions.available
        if not present.any():
            return make_empty_plan(len(present)), state
        state = _measure_noise(state, observation)
        planner = _Planner(
            options, parameters, observation, theta, _find_weighing(options, observation, state)
        )
        shares = observation.small_batches
        if shares is None and parameters.steps == "small_batches":
            raise InputError(
                "scheme.steps = 'small_batches': plans need the size of a full batch, which is not known here"
            )
        if shares is None:
            return planner.plan_steps().plan, state
        # What noise does to a model is proportional to the learning rate.
        noise = observation.rate * _compare_to_gradient(state["sigma2"], state["g2"])
        tried = [
            each.plan_batches(shares, k, noise)
            for k in _list_counts(options, observation, state)
            for each in (planner, *planner.leave_out_slow(shares, k))
        ]
        best = max(tried, key=lambda each: each.score)
        return best.plan, {**state, **_remember(best, observation)}

    def plan_with_clusters(state: State, known: Observation) -> Exchange[tuple[Decision, State]]:
        state = _measure_noise(state, known)
        planner = _Planner(options, parameters, known, theta, _find_weighing(options, known, state))
        shares = known.small_batches
        if shares is None:
            only = yield from planner.negotiate_steps()
            return only, state
        noise = known.rate * _compare_to_gradient(state["sigma2"], state["g2"])
        tried = yield from ask_together(
            [planner.negotiate_batches(shares, k, noise) for k in _list_counts(options, known, state)]
        )
        best = max((each for several in tried for each in several), key=lambda each: each.score)
        return best.plan, {**state, **_remember(best, known)}

    return Scheme(
        init=dict,
        plan=plan,
        negotiate=plan_with_clusters,
        gossip=Gossip(every_edge_round=options.dense_gossip, steps=options.gossip_steps),
        sparing=ONCE_A_ROUND if options.dense_gossip else (),
        device_overrides=DeviceOverrides(
            steps="small_batches" if in_batches else "whole",
            error_feedback=True if options.error_feedback else None,
            kept_energy_at=tuple(theta.tolist()) if options.curve else (),
        ),
        plans_clocks=options.frequency,
        chooses_theta=parameters.theta_min < 1,
        keeps_budgets=True,
    )


def _find_weighing(options: Options, observation: Observation, state: State) -> Weighing | None:
    """How much time and energy count; None where progress has no price, and the caps are used up."""
    if not (options.efficiency and options.progress):
        return None
    weight = options.time_weight or float(state.get("time_weight", FIRST_WEIGHT))
    return Weighing(weight, observation.exchange_seconds, observation.exchange_joules)


def _measure_noise(state: State, observation: Observation) -> State:
    """The state with running sums of σ² and G²."""
    sigma2, g2 = observation.estimates()
    return {
        **state,
        "sigma2": MEMORY * state.get("sigma2", 0.0) + sigma2,
        "g2": MEMORY * state.get("g2", 0.0) + g2,
    }


def _compare_to_gradient(sigma2: float, g2: float) -> float:
    """σ²/G² of a full batch on one device; 1 before anything is known.

    Late in a run, the estimate of G² may be below zero: then noise is far above the gradient.
    """
    return sigma2 / max(g2, sigma2 / MOST_NOISE) if sigma2 > 0 else 1.0


def _list_counts(options: Options, observation: Observation, state: State) -> list[int]:
    """The numbers of steps to try; within a global round it stays, as shared momentum builds on it."""
    tau, last = observation.rounds.local_steps, state.get("local_steps")
    if options.local_steps is not None:
        return [min(options.local_steps, tau)]
    if observation.edge_round and last is not None:
        return [last]
    listed: list[int] = np.unique(np.geomspace(1, tau, min(tau, MOST_COUNTS)).round().astype(int)).tolist()
    return listed


def _remember(best: _Choice[Made], observation: Observation) -> Mapping[str, Any]:
    """What the next plan starts from: k, and the weight of time.

    A round costs the sum of the shares that it takes of what is left of both budgets. Progress per such cost
    is the most where time weighs as much as its part of the sum.
    """
    budget, ledger = observation.budget, observation.ledger
    seconds = best.seconds / max(budget.seconds - ledger.seconds, 1e-9)
    joules = best.joules / max(budget.joules - ledger.joules, 1e-9)
    weight = seconds / (seconds + joules) if seconds + joules > 0 else FIRST_WEIGHT
    return {
        "local_steps": best.plan.local_steps,
        "time_weight": float(np.clip(weight, *WEIGHTS)),
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Planner:
    """Plans one edge round."""

    options: Options
    parameters: SchemeParameters
    observation: Observation
    theta: FloatArray
    weighing: Weighing | None

    def leave_out_slow(self, shares: BatchShares, count: int) -> list["_Planner"]:
        """A planner without the devices that are not worth waiting for, if there are any.

        Without the slowest of N devices, a round is as long as the slowest of the other m takes at the least
        work. That m is chosen which has the largest (m/N)² per second: squared, as the data of those left out
        are missed as well as their work.
        """
        observation, conditions = self.observation, self.observation.conditions
        least = shares.list_shares(self.options.least_batch)[0] * count / observation.rounds.local_steps
        seconds, _ = compute_costs(observation, least, float(self.theta[0]))
        ranked = np.sort(seconds[conditions.available])
        worth = np.arange(1, len(ranked) + 1) ** 2 / (ranked + observation.exchange_seconds)
        longest = self._stretch(float(ranked[worth.argmax()]))
        kept = conditions.available & (seconds <= longest)
        if kept.sum() == len(ranked):
            return []
        return [
            replace(self, observation=replace(observation, conditions=replace(conditions, available=kept)))
        ]

    def _stretch(self, longest: float) -> float:
        """How long devices are waited for in this edge round: now and then, for slow ones as well."""
        seen = self.observation
        number = seen.global_round * seen.rounds.edge_rounds + seen.edge_round
        return longest * WAIT_EVERY if (number + 1) % WAIT_EVERY == 0 else longest

    def plan_batches(self, shares: BatchShares, count: int, noise: float) -> _Choice[RoundPlan]:
        """The best plan in which every device takes `count` steps, on batches of its own size.

        `noise` is σ²/G² of a full batch on one device.
        """
        steps, share = pair_up(count * shares.list_shares(self.options.least_batch), self.theta)
        problem = self._build_problem(steps, count)
        averaged = problem.devices / len(np.unique(problem.cluster))
        cost = self._rate_batches(shares, count, noise, averaged)
        return self._solve(problem, steps, share, cost, local_steps=count)

    def _rate_batches(self, shares: BatchShares, count: int, noise: float, averaged: float) -> FloatArray:
        """The objective of every pair, if an edge server averages so many devices."""
        steps, share = pair_up(count * shares.list_shares(self.options.least_batch), self.theta)
        part = shares.find_part(steps / count)
        return -value_steps(count) * value_batches(noise / (part * averaged)) * self._value_uploads()[share]

    def plan_steps(self) -> _Choice[RoundPlan]:
        """The best plan in which devices take whole numbers of steps on full batches."""
        tau = self.observation.rounds.local_steps
        steps, share = pair_up(list_steps(self.parameters.rho_min, tau), self.theta)
        problem = self._build_problem(steps)
        return self._solve(problem, steps, share, self._rate_steps(steps / tau, share))

    def _rate_steps(self, rho: FloatArray, share: IndexArray) -> FloatArray:
        """The objective of every pair."""
        options = self.options
        if options.progress:
            return options.evenness * (1.0 - rho) ** 2 - rho * self._value_uploads()[share]
        sigma2, g2 = self.observation.estimates()
        scale, kept = sigma2 + g2 or 1.0, self._measure_kept()[share]
        return self.parameters.noise_weight * (2.0 - kept) * rho + 3.0 * g2 / scale * (1.0 - rho) ** 2

    def _build_problem(self, steps: FloatArray, local_steps: int | None = None) -> RoundProblem:
        return build_problem(
            self.observation, self.parameters, self._find_bounds(steps), local_steps=local_steps
        )

    def _find_bounds(self, steps: FloatArray) -> Bounds:
        tau = self.observation.rounds.local_steps
        return Bounds(rho=(steps.min() / tau, steps.max() / tau), theta=(float(self.theta[0]), 1.0))

    def negotiate_batches(
        self, shares: BatchShares, count: int, noise: float
    ) -> Exchange[list[_Choice[Decision]]]:
        """The best decisions with `count` steps: with all devices, and without those that are too slow."""
        steps, share = pair_up(count * shares.list_shares(self.options.least_batch), self.theta)
        terms = make_terms(self.observation, self.parameters, self._find_bounds(steps), local_steps=count)
        longest, slowest = yield from self._negotiate_longest(terms)
        limits = [np.inf] if longest >= slowest else [np.inf, longest]

        def make_table(devices: FloatArray) -> PairTable:
            averaged = float(devices.sum()) / np.count_nonzero(devices)
            return self._make_table(steps, share, self._rate_batches(shares, count, noise, averaged))

        found = yield from ask_together(
            [self._negotiate(replace(terms, longest=each), make_table, count) for each in limits]
        )
        return found

    def negotiate_steps(self) -> Exchange[Decision]:
        """The best decision in which devices take whole numbers of steps on full batches."""
        tau = self.observation.rounds.local_steps
        steps, share = pair_up(list_steps(self.parameters.rho_min, tau), self.theta)
        terms = make_terms(self.observation, self.parameters, self._find_bounds(steps))
        table = self._make_table(steps, share, self._rate_steps(steps / tau, share))
        found = yield from self._negotiate(terms, lambda _: table)
        return found.plan

    def _negotiate_longest(self, terms: Terms) -> Exchange[tuple[float, float]]:
        """How long to wait for devices, by the same rule as `leave_out_slow`, and seconds of the slowest.

        Clusters count their devices on grids of seconds; the second one is around the best of the first.
        """
        answer: RankAnswer
        (answer,) = yield from ask(RankQuestion(terms.rho[0], terms.theta[0], np.empty(0)))
        low, slowest = float(answer.fastest.min()), float(answer.slowest.max())
        high = slowest
        for _ in range(2):
            grid = np.geomspace(low, high, RANKS)
            # Rounding must not leave the slowest out.
            grid[0], grid[-1] = low, high
            (answer,) = yield from ask(RankQuestion(terms.rho[0], terms.theta[0], grid))
            worth = answer.within.sum(axis=-1) ** 2 / (grid + self.observation.exchange_seconds)
            best = int(worth.argmax())
            low, high = grid[max(best - 1, 0)], grid[min(best + 1, RANKS - 1)]
        return self._stretch(float(grid[best])), slowest

    def _negotiate(
        self, terms: Terms, make_table: MakeTable, local_steps: int | None = None
    ) -> Exchange[_Choice[Decision]]:
        terms = replace(terms, slowest_clock=self._slowest_clock)
        decision, totals = yield from negotiate(terms, make_table, self.weighing, local_steps)
        seconds, joules = float(totals.seconds.max()), float(totals.joules.sum())
        weighing = self.weighing or Weighing(FIRST_WEIGHT)
        score = float(weighing.score(decision.objective, seconds, joules))
        return _Choice(decision, score, seconds + weighing.seconds, joules + weighing.joules)

    def _make_table(self, steps: FloatArray, share: IndexArray, cost: FloatArray) -> PairTable:
        return PairTable(steps, self.theta[share], cost, self._slowest_clock)

    @property
    def _slowest_clock(self) -> float:
        slow_clocks = self.options.frequency and not self.observation.full_clocks
        return self.options.least_speed if slow_clocks else 1.0

    def _solve(
        self,
        problem: RoundProblem,
        steps: FloatArray,
        share: IndexArray,
        cost: FloatArray,
        local_steps: int | None = None,
    ) -> _Choice[RoundPlan]:
        solution = solve_on_list(problem, self._make_table(steps, share, cost), self.weighing)
        plan = make_plan(problem, solution, self.observation.conditions.available, local_steps)
        seconds, joules = _count_costs(self.observation, plan)
        weighing = self.weighing or Weighing(FIRST_WEIGHT)
        score = float(weighing.score(solution.objective, seconds, joules))
        return _Choice(plan, score, seconds + weighing.seconds, joules + weighing.joules)

    def _measure_kept(self) -> FloatArray:
        """κ(θ): the share of an update's energy that its largest entries keep."""
        return estimate_contraction(
            self.theta, self.observation.kept_energy if self.options.curve else self.theta
        )

    def _value_uploads(self) -> FloatArray:
        """What an update is worth at each θ: by how late it arrives, or by how much of it does."""
        kept = self._measure_kept()
        return value_uploads(kept) if self.options.error_feedback else kept


def value_steps(count: int) -> float:
    """The progress of so many local steps in a row, in steps."""
    late = max(count - FRESH_STEPS, 0)
    return count - late + 1 - 0.5**late


def value_uploads(kept: FloatArray) -> FloatArray:
    """What an update is worth of which a share κ of the energy is sent at a time.

    With error feedback nothing is lost; it arrives (1 − κ)/κ edge rounds late on average.
    """
    return np.asarray(DELAY ** ((1.0 - kept) / kept))


def value_batches(noise: FloatArray) -> FloatArray:
    """What a step is worth whose average has this noise; 1 without any.

    Noise is the variance of the averaged gradient divided by the square of its mean: σ²/G² of a full batch,
    over the part of it that is used and the devices that an edge server averages. Where the learning rate
    follows the noise, a step makes 1/(1 + noise) of the progress (McCandlish et al.: An empirical model of
    large-batch training, 2018). Here the rate is fixed, so noise hardly matters up to the rate's limit, and
    then ruins the step.
    """
    return np.asarray(1.0 / (1.0 + noise**NOISE_POWER))


def _count_costs(observation: Observation, plan: RoundPlan) -> tuple[float, float]:
    """Seconds until the last device is done, and joules of all."""
    now, present = plan.apply_speed(observation.conditions), observation.conditions.available
    tau = observation.rounds.local_steps
    seconds = device_seconds(plan.rho, plan.theta, tau, now.mu, now.nu)
    joules = device_joules(plan.rho, plan.theta, tau, now.alpha, now.nu, now.power)
    return float(seconds[present].max()), float(joules[present].sum())
