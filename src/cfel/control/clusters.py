"""A round planned by asking clusters: what is asked, who answers, and what they get back.

A large fleet is planned without anybody who sees all its devices. The planner knows what is left of the
budgets; each cluster knows its own devices. `negotiate` asks clusters what they need at least, chooses
makespan and price of energy by their curves (`prices`, `list_solver.seek_makespan`), and returns a
`Decision`: a few kilobytes from which every cluster plans its own devices (`Clusters.plan`).

`Clusters` answers for the devices of an `Observation`: those of all clusters, or of one. Nothing that it
computes about a cluster depends on the others, so both give the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from cfel.arrays import BoolArray, FloatArray, IndexArray
from cfel.control import curves
from cfel.control.curves import (
    Bracket,
    Fleet,
    Response,
    add_by_cluster,
    divide,
    rank_in_cluster,
    settle,
    share_energy,
    undo,
)
from cfel.control.exchange import (
    Answer,
    CurveAnswer,
    CurveQuestion,
    Exchange,
    FleetAnswers,
    Place,
    Question,
    ask,
)
from cfel.control.list_solver import (
    MOST_KEPT,
    PRICE_STEPS,
    ListFleet,
    PairTable,
    Point,
    Spans,
    Weighing,
    find_affordable,
    seek_makespan,
)
from cfel.control.prices import ask_point, seek_price
from cfel.control.problem import (
    SLACK,
    Limits,
    Proposal,
    RoundProblem,
    Unreachable,
    count_least_joules,
    describe_late,
    find_feasible_limits,
    prove,
)
from cfel.control.scheme import Observation, RoundPlan, complete_plan
from cfel.control.segments import PricedFleet
from cfel.control.solve import keep_own_limits, share_to_keep, shrink
from cfel.cost import device_joules, device_seconds

MOST_TOGETHER = 512
"""Up to so many devices are planned from their numbers; more are planned by asking clusters."""

# Energy is divided again while the proven gap is above this, by some devices of every cluster.
REPAIR_ABOVE = 5e-5
SEATS, HALF = 32, 16
# Most energy that a device is then offered more or less, in what a device uses on average.
MOST_MOVED = 4.0
# Fleets of different terms that are kept between questions.
_KEPT = 16
# How much a limit may be exceeded by rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What a plan is made under, the same for all clusters.

    Attributes:
        sigma2, g2: means over all devices.
        rho, theta: bounds.
        seconds, joules: caps of this edge round, per cluster and of all.
        within_budget: whether batteries count.
        punctual: only devices that can meet the deadline take part.
        longest: devices that need more seconds at the lower bounds are left out.
        too_costly: devices that need more joules at the lower bounds are left out.
        table: the pairs to choose from; None where ρ and θ are continuous.
        noise_weight, on_unreachable: as in `RoundProblem`.
        room: joules that all devices together leave at the lower bounds.
        slowest_clock: share of its full clock that a device may be slowed down to.
    """

    sigma2: float
    g2: float
    rho: tuple[float, float]
    theta: tuple[float, float]
    seconds: FloatArray
    joules: float
    within_budget: bool = True
    punctual: bool = True
    longest: float = np.inf
    too_costly: float = np.inf
    table: PairTable | None = None
    noise_weight: float = 1.0
    on_unreachable: Unreachable = "stretch"
    room: float = np.inf
    slowest_clock: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Settlement:
    """What clusters plan by.

    Attributes:
        makespan: seconds at most; +inf for what the caps say.
        over, under: two neighbouring prices of energy, or the same one twice.
        joules: what each cluster may use, between the two prices.
        divided: steps in which energy was divided again: joules of a unit, and units of every cluster.
    """

    makespan: float
    over: float
    under: float
    joules: FloatArray
    divided: tuple[tuple[float, IndexArray], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The plan of a round, as far as it is the same for all clusters; `terms` is None if nobody takes part.

    The other attributes are those of `RoundPlan`.
    """

    terms: Terms | None
    settlement: Settlement | None
    sigma2: float = 0.0
    g2: float = 0.0
    objective: float = 0.0
    lower_bound: float = 0.0
    feasible: bool = True
    violations: tuple[str, ...] = ()
    local_steps: int | None = None

    @property
    def gap(self) -> float:
        """How much worse than the optimum this can be at most."""
        distance = self.objective - self.lower_bound
        return distance / abs(self.lower_bound) if self.lower_bound else (np.inf if distance else 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class MeetQuestion:
    """Asks who takes part, and for sums of σ² and G²."""


@dataclass(frozen=True, slots=True, eq=False)
class MeetAnswer:
    """Per cluster.

    Attributes:
        devices: how many take part.
        estimated: how many of them have σ² and G², and `sigma2` and `g2` the sums of these.
        seconds, joules: medians of full work, where not all rounds may be run.
    """

    devices: FloatArray
    estimated: FloatArray
    sigma2: FloatArray
    g2: FloatArray
    seconds: FloatArray
    joules: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class RankQuestion:
    """Asks how many devices do a share ρ of their steps and send θ within given seconds."""

    rho: float
    theta: float
    seconds: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class RankAnswer:
    """Counts, seconds × clusters; seconds of each cluster's fastest and slowest device, if there is one."""

    within: FloatArray
    fastest: FloatArray
    slowest: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class LeastQuestion:
    """Asks what devices need at the lower bounds."""

    terms: Terms


@dataclass(frozen=True, slots=True, eq=False)
class LeastAnswer:
    """Per cluster.

    Attributes:
        devices, joules: how many, and what they need at the lower bounds.
        full_clock_joules: what they need there if none is slowed down.
        late, makespan: how many cannot meet the time cap, and seconds of the slowest of them.
        empty: how many have too little left in their batteries.
        costly, costly_joules: how many need more than half of all joules, and how much.
        shortest, longest: seconds of the slowest at the lower bounds, and with all work at full clock.
        slowed: the same with all work at the slowest clock.
        seconds: the longest that a device may take.
    """

    devices: FloatArray
    joules: FloatArray
    full_clock_joules: FloatArray
    late: FloatArray
    makespan: FloatArray
    empty: FloatArray
    costly: FloatArray
    costly_joules: FloatArray
    shortest: FloatArray
    longest: FloatArray
    slowed: FloatArray
    seconds: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class FleetQuestion:
    """A question about the devices that take part under some terms."""

    terms: Terms
    curve: CurveQuestion


@dataclass(frozen=True, slots=True, eq=False)
class SettleQuestion:
    """Asks what comes of a settlement."""

    terms: Terms
    settlement: Settlement


@dataclass(frozen=True, slots=True, eq=False)
class SettleAnswer:
    """Per cluster: objective, joules, and seconds of the slowest device."""

    objective: FloatArray
    joules: FloatArray
    seconds: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class DivideQuestion:
    """Asks how good clusters can be with up to `HALF` units of energy more or less than settled."""

    terms: Terms
    settlement: Settlement
    unit: float


@dataclass(frozen=True, slots=True, eq=False)
class DivideAnswer:
    """Objective and joules, units × clusters."""

    objective: FloatArray
    joules: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class CountQuestion:
    """Asks what a decision costs, if all devices do what they are asked."""

    decision: Decision


@dataclass(frozen=True, slots=True, eq=False)
class CountAnswer:
    """Per cluster: seconds of the slowest device, and joules."""

    seconds: FloatArray
    joules: FloatArray


# The clusters' side.


@dataclass(frozen=True, slots=True, eq=False)
class _Settled:
    """What comes of a settlement, per device that takes part."""

    rho: FloatArray
    theta: FloatArray
    clock: FloatArray | None
    cost: FloatArray
    seconds: FloatArray
    joules: FloatArray


class _Part:
    """The devices that take part under some terms."""

    def __init__(self, problem: RoundProblem, terms: Terms) -> None:
        self.problem, self._terms = problem, terms
        self.limits = find_feasible_limits(problem, terms.slowest_clock)
        self.answers = FleetAnswers(self._make_fleet())

    def _make_fleet(self) -> Fleet:
        problem, limits, terms = self.problem, self.limits, self._terms
        if terms.table is None:
            return PricedFleet.from_problem(problem, limits, room=terms.room)
        return ListFleet.from_problem(problem, terms.table, limits.seconds, limits.battery)

    def settle(self, settlement: Settlement) -> _Settled:
        """Plans the devices."""
        fleet, plan = self._respond(settlement)
        if isinstance(fleet, ListFleet):
            return self._settle_list(fleet, plan)
        if isinstance(fleet, PricedFleet):
            return self._settle_continuous(fleet, plan)
        raise TypeError(f"{type(fleet).__name__} is no fleet that can be settled")

    def divide(self, question: DivideQuestion) -> DivideAnswer:
        """What clusters reach with more or less energy."""
        fleet, plan = self._respond(question.settlement)
        offer = _Offer.make(fleet, plan, self._find_some(fleet, question.settlement), question.unit)
        own = offer.divide()
        rest = add_by_cluster(np.stack([plan.cost, plan.joules]), fleet)
        rest -= add_by_cluster(offer.now, fleet.take(offer.devices))
        return DivideAnswer(own.objective.T + rest[0], own.joules.T + rest[1])

    def _respond(self, settlement: Settlement) -> tuple[Fleet, Response]:
        place = Place(settlement.makespan)
        fleet, over = self.answers.find(place), self.answers.respond(place, settlement.over)
        if settlement.over == settlement.under:
            return fleet, over
        under = self.answers.respond(place, settlement.under)
        plan = settle(fleet, settlement.joules, over, under)
        for unit, units in settlement.divided:
            offer = _Offer.make(fleet, plan, self._find_some(fleet, settlement), unit)
            plan.put(offer.devices, offer.take(units))
        return fleet, plan

    def _find_some(self, fleet: Fleet, settlement: Settlement) -> IndexArray:
        """Devices that stand for each cluster: some of those that jump between the prices, and others."""
        place = Place(settlement.makespan)
        over, under = (self.answers.respond(place, price) for price in (settlement.over, settlement.under))
        jumps = np.flatnonzero(over.choice != under.choice)
        jumps = jumps[rank_in_cluster(fleet.cluster[jumps]) < SEATS // 2]
        count = np.bincount(fleet.cluster, minlength=fleet.clusters)
        stride = -(-count // (SEATS // 2))
        others = rank_in_cluster(fleet.cluster) % np.maximum(stride, 1)[fleet.cluster] == 0
        return np.union1d(jumps, np.flatnonzero(others))

    def _settle_list(self, fleet: ListFleet, plan: Response) -> _Settled:
        problem, pair, table = self.problem, plan.choice, fleet.table
        found = Proposal(
            rho=table.steps[pair] / problem.tau,
            theta=table.theta[pair],
            lower_bound=-np.inf,
            multiplier=0.0,
            method="list",
            clock=None if table.least_clock is None else fleet.clock(pair),
            objective=0.0,
        )
        proven = prove(problem, _without_total(self.limits), found)
        return _Settled(
            found.rho, found.theta, found.clock, plan.cost, proven.device_seconds, proven.device_joules
        )

    def _settle_continuous(self, fleet: PricedFleet, plan: Response) -> _Settled:
        problem = self.problem
        (share,) = add_by_cluster(plan.joules[np.newaxis], fleet)
        rho, theta = _keep_to_limits(problem, self.limits, plan.rho, fleet.theta(plan), share)
        found = Proposal(rho, theta, lower_bound=-np.inf, multiplier=0.0, method="joint", objective=0.0)
        proven = prove(problem, _without_total(self.limits), found)
        noise = problem.noise_weight * (problem.sigma2 + problem.g2) * (2.0 - theta) * rho
        cost = noise + 3.0 * problem.g2 * (1.0 - rho) ** 2
        return _Settled(rho, theta, None, cost, proven.device_seconds, proven.device_joules)


def _add(values: FloatArray, cluster: IndexArray, clusters: int) -> FloatArray:
    """Sums per cluster, in the order of devices."""
    return np.asarray(np.bincount(cluster, values, clusters), dtype=np.float64)


def _without_total(limits: Limits) -> Limits:
    """The limits of single devices: nobody here knows what all use together."""
    return replace(limits, joules=np.inf)


def _keep_to_limits(
    problem: RoundProblem, limits: Limits, rho: FloatArray, theta: FloatArray, share: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Takes back what rounding put over a limit of a device, or over the joules of a cluster, `share`."""
    rho, theta = keep_own_limits(problem, limits, rho, theta)
    used, least = (
        _add(problem.joules(*plan), problem.cluster, problem.clusters)
        for plan in ((rho, theta), (problem.rho_min, problem.theta_min))
    )
    return shrink(problem, rho, theta, share_to_keep(used, least, share)[problem.cluster])


@dataclass(frozen=True, slots=True, eq=False)
class _Offer:
    """What some devices of every cluster could do with more or less energy.

    Attributes:
        devices: which they are.
        seat: of each: its cluster, and its number within it.
        clusters: how many there are.
        offered: their best plans, units × devices.
        now: what they cost and use now.
    """

    devices: IndexArray
    seat: tuple[IndexArray, IndexArray]
    clusters: int
    offered: Response
    now: FloatArray

    @classmethod
    def make(cls, fleet: Fleet, plan: Response, devices: IndexArray, unit: float) -> "_Offer":
        """Asks the devices."""
        some, now = fleet.take(devices), plan.pick(devices)
        offset = unit * np.arange(-HALF, HALF + 1.0)
        offered = some.plan_within(now.joules + offset[:, None])
        # The plan itself is among the offers; where rounding hides it, it stays.
        worse = now.cost < offered.cost[HALF]
        offered.put((HALF, worse), now.pick(worse))
        seat = some.cluster, rank_in_cluster(some.cluster)
        return cls(devices, seat, fleet.clusters, offered, np.stack([now.cost, now.joules]))

    def divide(self) -> curves.Division:
        """The best divisions within every cluster; all have as many seats, so one alone has the same."""
        units = 2 * HALF + 1
        nobody = np.where(np.arange(units) < HALF, np.inf, 0.0)
        objective = np.tile(nobody, (self.clusters, SEATS, 1))
        joules = np.zeros((self.clusters, SEATS, units))
        objective[self.seat], joules[self.seat] = self.offered.cost.T, self.offered.joules.T
        return divide(objective, joules)

    def take(self, units: IndexArray) -> Response:
        """The devices' plans if every cluster takes so many units."""
        chosen = undo(self.divide(), units)[self.seat]
        return self.offered.pick((chosen, np.arange(len(self.devices))))


class Clusters:
    """Answers for the devices of an observation: those of all clusters, or of some.

    Args:
        view: what is known of the devices; its clusters are numbered as everywhere.

    Attributes:
        view: as given.
    """

    def __init__(self, view: Observation) -> None:
        self.view = view
        self._parts: list[tuple[Terms, _Part | None]] = []

    def answer(self, question: Question) -> Answer:
        """Answers a question."""
        if isinstance(question, MeetQuestion):
            return self._meet()
        if isinstance(question, RankQuestion):
            return self._rank(question)
        if isinstance(question, CountQuestion):
            return self._count(question.decision)
        part = self._find_part(question.terms)
        if isinstance(question, LeastQuestion):
            return self._find_least(question.terms, part)
        if part is None:
            return _answer_without_devices(question, self.view.clusters)
        if isinstance(question, FleetQuestion):
            return part.answers.answer(question.curve)
        if isinstance(question, DivideQuestion):
            return part.divide(question)
        return self._add_up(part, part.settle(question.settlement))

    def plan(self, decision: Decision) -> RoundPlan:
        """The plan of the devices in view."""
        terms, idle = decision.terms, np.zeros(len(self.view.cluster))
        rho, theta, speed = idle.copy(), idle.copy(), np.ones(len(idle))
        part = None if terms is None else self._find_part(terms)
        if part is not None and decision.settlement is not None:
            settled, who = part.settle(decision.settlement), part.problem.device
            rho[who], theta[who] = settled.rho, settled.theta
            speed[who] = 1.0 if settled.clock is None else settled.clock
        chooses_clocks = terms is not None and terms.table is not None and terms.table.least_clock is not None
        return RoundPlan(
            rho=rho,
            theta=theta,
            sigma2=decision.sigma2,
            g2=decision.g2,
            objective=decision.objective,
            lower_bound=decision.lower_bound,
            gap=decision.gap,
            feasible=decision.feasible,
            violations=decision.violations,
            speed=speed if chooses_clocks else None,
            local_steps=decision.local_steps,
        )

    def _sum(self, values: FloatArray, who: BoolArray | IndexArray) -> FloatArray:
        """Sums per cluster, in the order of devices."""
        return _add(values[who], self.view.cluster[who], self.view.clusters)

    def _costs(self, rho: float, theta: float) -> tuple[FloatArray, FloatArray]:
        now, tau = self.view.conditions, self.view.rounds.local_steps
        seconds = device_seconds(rho, theta, tau, now.mu, now.nu)
        return seconds, device_joules(rho, theta, tau, now.alpha, now.nu, now.power)

    def _meet(self) -> MeetAnswer:
        view, present = self.view, self.view.conditions.available
        devices = self._sum(np.ones(len(present)), present)
        seconds = joules = np.zeros(view.clusters)
        if view.rounds.stop != "rounds":
            seconds, joules = (self._find_medians(values) for values in self._costs(1.0, 1.0))
        known = present & ~np.isnan(view.sigma2)
        estimated = self._sum(np.ones(len(present)), known)
        sigma2, g2 = (self._sum(values, known) for values in (view.sigma2, view.g2))
        return MeetAnswer(devices, estimated, sigma2, g2, seconds, joules)

    def _find_medians(self, values: FloatArray) -> FloatArray:
        """The median of every cluster's devices; 0 without any."""
        present, found = self.view.conditions.available, np.zeros(self.view.clusters)
        cluster = self.view.cluster[present]
        order = np.argsort(cluster, kind="stable")
        names, start = np.unique(cluster[order], return_index=True)
        groups = np.split(values[present][order], start[1:])
        for name, group in zip(names.tolist(), groups, strict=True) if len(names) else ():
            found[name] = np.median(group)
        return found

    def _rank(self, question: RankQuestion) -> RankAnswer:
        view, present = self.view, np.flatnonzero(self.view.conditions.available)
        seconds = self._costs(question.rho, question.theta)[0][present]
        cluster = view.cluster[present]
        place = np.searchsorted(question.seconds, seconds)
        count = np.zeros((len(question.seconds) + 1, view.clusters))
        np.add.at(count, (place, cluster), 1.0)
        fastest, slowest = np.full(view.clusters, np.inf), np.zeros(view.clusters)
        np.minimum.at(fastest, cluster, seconds)
        np.maximum.at(slowest, cluster, seconds)
        return RankAnswer(np.cumsum(count[:-1], axis=0), fastest, slowest)

    def _count(self, decision: Decision) -> CountAnswer:
        view = self.view
        plan = complete_plan(self.plan(decision), view)
        now = plan.apply_speed(plan.leave_out(view.conditions))
        tau, present, slowest = view.rounds.local_steps, now.available, np.zeros(view.clusters)
        seconds = device_seconds(plan.rho, plan.theta, tau, now.mu, now.nu)
        joules = device_joules(plan.rho, plan.theta, tau, now.alpha, now.nu, now.power)
        np.maximum.at(slowest, view.cluster[present], seconds[present])
        return CountAnswer(slowest, self._sum(np.where(present, joules, 0.0), np.arange(len(joules))))

    def _find_least(self, terms: Terms, part: _Part | None) -> LeastAnswer:
        clusters = self.view.clusters
        if part is None:
            return LeastAnswer(*np.zeros((len(fields(LeastAnswer)), clusters)))
        problem, limits = part.problem, part.limits
        least_seconds = problem.seconds(problem.rho_min, problem.theta_min)
        least_joules = count_least_joules(problem, terms.slowest_clock)
        full_clock_joules = problem.joules(problem.rho_min, problem.theta_min)
        late = least_seconds > problem.time_cap[problem.cluster] + SLACK * np.abs(least_seconds)
        empty = np.zeros_like(late)
        if problem.battery is not None:
            empty = full_clock_joules > problem.battery + SLACK * full_clock_joules
        costly = least_joules > terms.joules / 2

        def add(values: FloatArray) -> FloatArray:
            return _add(values, problem.cluster, clusters)

        def most(values: FloatArray) -> FloatArray:
            found = np.zeros(clusters)
            np.maximum.at(found, problem.cluster, values)
            return found

        return LeastAnswer(
            devices=add(np.ones(problem.devices)),
            joules=add(least_joules),
            full_clock_joules=add(full_clock_joules),
            late=add(late.astype(np.float64)),
            makespan=most(np.where(late, least_seconds, 0.0)),
            empty=add(empty.astype(np.float64)),
            costly=add(costly.astype(np.float64)),
            costly_joules=add(np.where(costly, least_joules, 0.0)),
            shortest=most(least_seconds),
            longest=most(problem.seconds(problem.rho_max, problem.theta_max)),
            slowed=most(problem.seconds(problem.rho_max / terms.slowest_clock, problem.theta_max)),
            seconds=most(limits.seconds),
        )

    def _add_up(self, part: _Part, settled: _Settled) -> SettleAnswer:
        cluster, clusters = part.problem.cluster, self.view.clusters
        slowest = np.zeros(clusters)
        np.maximum.at(slowest, cluster, settled.seconds)
        return SettleAnswer(
            _add(settled.cost, cluster, clusters),
            _add(settled.joules, cluster, clusters),
            slowest,
        )

    def _find_part(self, terms: Terms) -> _Part | None:
        for known, part in self._parts:
            if known is terms or _are_same(known, terms):
                return part
        part = self._make_part(terms)
        self._parts = [(terms, part), *self._parts[: _KEPT - 1]]
        return part

    def _make_part(self, terms: Terms) -> _Part | None:
        view, now = self.view, self.view.conditions
        seconds, _ = self._costs(terms.rho[0], terms.theta[0])
        who = now.available & (seconds <= terms.longest)
        if terms.punctual:
            who &= seconds <= view.deadline_seconds * (1 + _ROUNDING)
        if not who.any():
            return None
        battery = None
        if view.battery is not None and terms.within_budget:
            # Evenly over the rest of the run: a device must not be empty before the last round.
            battery = view.battery[who] / view.rounds.edge_rounds_left(view.global_round, view.edge_round)
        problem = RoundProblem(
            tau=view.rounds.local_steps,
            sigma2=terms.sigma2,
            g2=terms.g2,
            mu=now.mu[who],
            alpha=now.alpha[who],
            nu=now.nu[who],
            power=now.power[who],
            cluster=view.cluster[who],
            time_cap=terms.seconds,
            energy_cap=terms.joules,
            rho_min=terms.rho[0],
            rho_max=terms.rho[1],
            theta_min=terms.theta[0],
            theta_max=terms.theta[1],
            noise_weight=terms.noise_weight,
            on_unreachable=terms.on_unreachable,
            battery=battery,
            device=np.flatnonzero(who),
            clock_static=now.clock_static[who],
            clock_exponent=now.clock_exponent[who],
        )
        if terms.too_costly < np.inf:
            kept = count_least_joules(problem, terms.slowest_clock) <= terms.too_costly
            if not kept.any():
                return None
            problem = problem.take(kept)
        return _Part(problem, terms)


def _are_same(one: object, other: object) -> bool:
    """Whether two terms say the same: they may have come over a network."""
    if isinstance(one, Terms | PairTable) and isinstance(other, Terms | PairTable):
        return all(_are_same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one))
    return bool(np.array_equal(one, other))  # type: ignore[arg-type]


def _answer_without_devices(question: Question, clusters: int) -> Answer:
    """The answer of clusters in which nobody takes part."""
    if isinstance(question, SettleQuestion):
        return SettleAnswer(*np.zeros((3, clusters)))
    if isinstance(question, DivideQuestion):
        units = np.where(np.arange(2 * HALF + 1) < HALF, np.inf, 0.0)
        return DivideAnswer(np.tile(units[:, None], clusters), np.zeros((2 * HALF + 1, clusters)))
    nothing = np.zeros((*question.curve.grid.price.shape, clusters))
    return CurveAnswer(nothing, nothing, nothing if question.curve.ready else np.empty((0, 0, clusters)))


# The planner's side.


MakeTable = Callable[[FloatArray], PairTable]
"""The pairs to choose from, if so many devices of every cluster take part."""


def negotiate(
    terms: Terms,
    make_table: MakeTable | None = None,
    weighing: Weighing | None = None,
    local_steps: int | None = None,
) -> Exchange[tuple[Decision, SettleAnswer]]:
    """Plans a round with clusters.

    Args:
        terms: what the plan is made under, without a table.
        make_table: makes the pairs to choose from; None where ρ and θ are continuous.
        weighing: what time and energy are worth; None to use the caps up.
        local_steps: k of the plan.

    Returns:
        The decision, and what comes of it.
    """
    terms, least, words = yield from _find_terms(terms)
    if not least.devices.any():
        return Decision(None, None), SettleAnswer(*np.zeros((3, len(terms.seconds))))
    if make_table is not None:
        terms = replace(terms, table=make_table(least.devices).drop_dominated())
    total = float(least.joules.sum())
    words += _describe(terms, least)
    forced = terms.joules < total * (1 - SLACK)
    if forced:
        words.append(
            f"energy cap {terms.joules:.6g} J is below the {total:.6g} J that the lower bounds need; "
            "all devices get the lower bounds"
        )
    cap = max(terms.joules, total)
    terms = replace(terms, room=cap - total)
    if forced:
        chosen = _Chosen(_respond_to(np.inf, np.inf, least), np.inf)
    elif weighing is None:
        chosen = yield from _under_terms(terms, _meet_cap(least.devices, cap, np.inf))
    else:
        chosen = yield from _under_terms(terms, _choose_point(terms, least, cap, weighing))
    settlement, totals = yield from _improve(terms, chosen, cap, cap / float(least.devices.sum()))
    scale = 1.0 if terms.table is not None else terms.sigma2 + terms.g2
    objective = float(totals.objective.sum())
    found = Decision(
        terms,
        settlement,
        sigma2=terms.sigma2,
        g2=terms.g2,
        objective=objective,
        lower_bound=min(objective, scale * chosen.lower_bound),
        feasible=not words,
        violations=tuple(words),
        local_steps=local_steps,
    )
    return found, totals


@dataclass(frozen=True, slots=True, eq=False)
class _Chosen:
    """A settlement, and a lower bound on every plan within the same limits, in units of the curves."""

    settlement: Settlement
    lower_bound: float


def _find_terms(terms: Terms) -> Exchange[tuple[Terms, LeastAnswer, list[str]]]:
    """The terms under which there are devices, none of which alone puts the energy cap out of reach."""
    (least,) = yield from ask(LeastQuestion(terms))
    if not least.devices.any() and terms.punctual:
        # A plan needs a device. Who breaks the deadline all the same is taken out of the plan.
        terms = replace(terms, punctual=False)
        (least,) = yield from ask(LeastQuestion(terms))
    costly, need = float(least.costly.sum()), float(least.costly_joules.sum())
    total, rest = float(least.joules.sum()), float((least.joules - least.costly_joules).sum())
    helps = rest * (1 - SLACK) <= terms.joules < total * (1 - SLACK)
    if not helps or not 0 < costly <= least.devices.sum() / 2:
        return terms, least, []
    terms = replace(terms, too_costly=terms.joules / 2)
    (least,) = yield from ask(LeastQuestion(terms))
    words = [
        f"{costly:.0f} devices: their lower bounds need {need:.6g} J, each more than half of the "
        f"{terms.joules:.6g} J of all devices; they are left out"
    ]
    return terms, least, words


def _describe(terms: Terms, least: LeastAnswer) -> list[str]:
    """What cannot be met, in words."""
    words = describe_late(terms.on_unreachable, terms.seconds, least.makespan, least.late.astype(int))
    if empty := int(least.empty.sum()):
        words.append(f"{empty} devices: their batteries allow less than their lower bounds need")
    return words


def _under_terms(terms: Terms, exchange: Exchange[_Chosen]) -> Exchange[_Chosen]:
    """The exchange with its questions put to the devices that take part."""
    answers: tuple[Answer, ...] | None = None
    while True:
        try:
            asked = next(exchange) if answers is None else exchange.send(answers)
        except StopIteration as end:
            found: _Chosen = end.value
            return found
        answers = yield tuple(FleetQuestion(terms, question) for question in asked)


def _respond_to(price: float, makespan: float, least: LeastAnswer) -> Settlement:
    """All devices respond to one price."""
    return Settlement(makespan, price, price, np.zeros(len(least.devices)))


def _meet_cap(devices: FloatArray, energy_cap: float, makespan: float) -> Exchange[_Chosen]:
    """The least objective within the energy cap, nearly."""
    bracket: Bracket = yield from seek_price(devices, energy_cap, Place(makespan))
    over, under = bracket.over.point.price, bracket.under.point.price
    if bracket.over is bracket.under:
        return _Chosen(Settlement(makespan, over, over, bracket.over.joules), bracket.lower_bound)
    shares = share_energy(bracket, energy_cap)
    return _Chosen(Settlement(makespan, over, under, shares), bracket.lower_bound)


def _choose_point(
    terms: Terms, least: LeastAnswer, energy_cap: float, weighing: Weighing
) -> Exchange[_Chosen]:
    """The plan of the best score."""
    shortest = float(least.shortest.max())
    longest = max(shortest, min(float(least.seconds.max()), float(least.longest.max())))
    between = Spans(shortest, longest)
    if least.full_clock_joules.sum() > energy_cap:
        longest = max(shortest, min(float(least.seconds.max()), float(least.slowed.max())))
        between = Spans(shortest, longest)
        between = yield from find_affordable(between, energy_cap)
    points = yield from seek_makespan(between, least.devices, energy_cap, weighing)
    found = yield from _plan_at(terms, least, energy_cap, weighing, points[0])
    return found


def _plan_at(
    terms: Terms, least: LeastAnswer, energy_cap: float, weighing: Weighing, point: Point
) -> Exchange[_Chosen]:
    """The best plan at a makespan: at the price that the score sets, or within the cap if it binds."""
    place, price = Place(point.makespan), point.price
    pairs = 0 if terms.table is None else len(terms.table.steps)
    for _ in range(1 if least.devices.sum() * pairs > MOST_KEPT else PRICE_STEPS):
        found = yield from ask_point(place, price)
        following = weighing.price(found.objective, found.joules)
        if not 0 < following < np.inf or abs(following - price) <= 1e-9 * price:
            break
        price = following
    if found.joules > energy_cap:
        met = yield from _meet_cap(least.devices, energy_cap, point.makespan)
        return met
    return _Chosen(_respond_to(found.price, point.makespan, least), found.objective)


def _improve(
    terms: Terms, chosen: _Chosen, energy_cap: float, usual: float
) -> Exchange[tuple[Settlement, SettleAnswer]]:
    """What comes of a settlement; energy is divided again, in smaller and smaller units, while it pays off.

    `usual` are the joules of a usual device.
    """
    settlement = chosen.settlement
    totals: SettleAnswer
    (totals,) = yield from ask(SettleQuestion(terms, settlement))
    if settlement.over == settlement.under:
        return settlement, totals
    scale = 1.0 if terms.table is not None else 1.0 / (terms.sigma2 + terms.g2 or 1.0)
    for reach in curves.REACHES:
        objective = scale * float(totals.objective.sum())
        if objective - chosen.lower_bound <= REPAIR_ABOVE * abs(chosen.lower_bound):
            break
        step = DivideQuestion(terms, settlement, reach * MOST_MOVED * usual / HALF)
        offered: DivideAnswer
        (offered,) = yield from ask(step)
        whole = divide(offered.objective.T[np.newaxis], offered.joules.T[np.newaxis])
        fits = whole.joules[0] <= energy_cap * (1 + curves.ROUNDING)
        rated = np.where(fits, whole.objective[0], np.inf)
        if not rated.min() < objective:
            continue
        units = undo(whole, np.array([int(rated.argmin())]))[0, : len(terms.seconds)]
        better = replace(settlement, divided=(*settlement.divided, (step.unit, units)))
        tried: SettleAnswer
        (tried,) = yield from ask(SettleQuestion(terms, better))
        if float(tried.objective.sum()) < float(totals.objective.sum()):
            settlement, totals = better, tried
    return settlement, totals


def find_typical(answer: MeetAnswer) -> tuple[float, float]:
    """Seconds of a typical device's full work, and joules of as many such devices as there are.

    The median over devices of the median of their cluster.
    """
    return (
        _find_weighted_median(answer.seconds, answer.devices),
        _find_weighted_median(answer.joules, answer.devices) * float(answer.devices.sum()),
    )


def _find_weighted_median(values: FloatArray, weights: FloatArray) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) >= weights.sum() / 2
    return float(values[order][int(reached.argmax())])


def hide_devices(view: Observation, answer: MeetAnswer) -> Observation:
    """What the planner knows: the observation with one device, which has the means of σ² and G² of all."""
    devices, estimated = float(answer.devices.sum()), max(float(answer.estimated.sum()), 1.0)
    one = np.ones(1)
    conditions = replace(
        view.conditions,
        mu=one,
        alpha=one,
        nu=one,
        power=one,
        available=np.array([devices > 0]),
        clock_static=np.zeros(1),
        clock_exponent=one,
        weight=None,
    )
    means: dict[str, Any] = {
        "sigma2": one * float(answer.sigma2.sum()) / estimated,
        "g2": one * float(answer.g2.sum()) / estimated,
    }
    return replace(
        view,
        conditions=conditions,
        cluster=np.zeros(1, dtype=np.intp),
        battery=None,
        losses=None,
        samples=None,
        **means,
    )
