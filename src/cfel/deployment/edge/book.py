"""What an edge server knows of its own devices, where a large fleet is planned by asking clusters.

Nobody else is sent any of it. The coordinator asks (`control.clusters`), decides on prices, and is told sums.
A device that moves takes its entry along: its new edge server fetches it from the old one.

All functions are pure. Arrays have one entry per device of the fleet, as everywhere; those of devices that
belong to other edge servers are empty.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from cfel.arrays import BoolArray, FloatArray
from cfel.control.clusters import Clusters, Decision
from cfel.control.exchange import cut_answer
from cfel.control.scheme import RoundPlan, complete_plan
from cfel.cost import open_ledger
from cfel.deployment.coordinator.counting import count_edge_round, observe_work
from cfel.deployment.coordinator.state import FinishedEdgeRound, Position
from cfel.deployment.measurement.measured_rounds import (
    EdgeRoundMeasurements,
    FederationMeasurements,
    JouleAccount,
    apply_reports,
)
from cfel.deployment.measurement.plausibility import BoundedReports, bound_reports, usual_conditions
from cfel.deployment.protocol.device_requests import MeasurementReport, Round
from cfel.deployment.protocol.edge_requests import DeviceEntry, DeviceEstimates, DeviceResult
from cfel.learning.local.estimates import Estimates, refresh_estimates
from cfel.membership import RoundLoss
from cfel.rounds.estimates import note_influence, view_estimates
from cfel.rounds.kernel import ControlState, DeviceWork, EdgeRoundOutcome, observe
from cfel.rounds.records import ClusterTotals, count_clusters, make_plan_table
from cfel.runlog import PlanTable
from cfel.system.conditions import Conditions
from cfel.world import World

Value = TypeVar("Value")


Book = Mapping[int, DeviceEntry]
"""By device."""


class Stay(NamedTuple):
    """Since when a device belongs to an edge server, and to which one it belonged before."""

    came_from: int
    first_round: int


def find_stays(world: World, number: int, global_round: int, book: Book) -> dict[int, Stay]:
    """The devices of an edge server in a global round that it has to ask others about.

    They have come from another one, and what it knows of them is from before.
    """
    eras = [each for each in world.eras if each.first_round <= global_round]
    stays = {}
    for n in eras[-1].membership.list_devices(number):
        before = [i for i, each in enumerate(eras) if n < len(each.membership.edge_of)]
        before = [i for i in before if eras[i].membership.edge_of[n] != number]
        if before:
            stay = Stay(eras[before[-1]].membership.edge_of[n], eras[before[-1] + 1].first_round)
            if n not in book or book[n].at[0] < stay.first_round:
                stays[n] = stay
    return stays


def adopt_entries(
    book: Book, stays: Mapping[int, Stay], found: Mapping[int, Mapping[int, DeviceEntry]]
) -> Book:
    """The book with what others know of devices that have come, by edge server.

    The one that had a device before knows all of it. Others may know an upload of it, and are asked again.
    """
    adopted = {}
    for n, stay in stays.items():
        known = [each[n] for each in (book, *found.values()) if n in each]
        newest = max(known, key=lambda each: each.at, default=DeviceEntry())
        used = max((each.last_used_round for each in known if each.last_used_round), default=None)
        at = (stay.first_round, 0) if stay.came_from in found else newest.at
        # It has a model of that one's, and none of this one's.
        adopted[n] = replace(newest, at=at, last_used_round=used, missed=math.inf)
    return {**book, **adopted}


def list_used_rounds(book: Book) -> dict[int, Round]:
    """By device, the round of its last upload that went into a model, where others said so."""
    return {n: each.last_used_round for n, each in book.items() if each.last_used_round is not None}


@dataclass(frozen=True, slots=True, eq=False)
class RoundView:
    """An edge round as an edge server sees it before it begins.

    Attributes:
        conditions: of its devices that may take part.
        control: what they have spent, and their habits.
        clusters: answers for them.
        absent: devices that could take part, and are not there or in quarantine.
    """

    conditions: Conditions
    control: ControlState
    clusters: Clusters
    absent: tuple[int, ...]

    def settle(self, decision: Decision) -> RoundPlan:
        """The plan of its devices."""
        return complete_plan(self.clusters.plan(decision), self.clusters.view)


def view_round(
    world: World, number: int, book: Book, at: Position, left_out: Collection[int], *, measures: bool
) -> RoundView:
    """What an edge server sees of its devices.

    Args:
        world: of the global round.
        number: of the edge server.
        book: what it knows.
        at: the edge round.
        left_out: devices that are in quarantine.
        measures: whether conditions are measured.
    """
    setting, devices = world.setting, world.setting.fleet.devices
    control = _collect_control(world, book, at[0])
    now = setting.conditions(*at[:2], control.spent_joules)
    now = now.without(setting.fleet.cluster != number)
    absent = np.zeros(devices, dtype=bool)
    absent[[*left_out, *(n for n, entry in book.items() if entry.is_absent)]] = True
    missing, now = np.flatnonzero(now.available & absent).tolist(), now.without(absent)
    if measures:
        now = apply_reports(list_reports(book, devices), now)
    known = list_estimates(book, devices)
    estimates = view_estimates(setting, control, known, now.available)
    observation = observe(setting, control, at[1], now, estimates)
    return RoundView(now, control, Clusters(observation), tuple(missing))


def _collect_control(world: World, book: Book, rounds_done: int) -> ControlState:
    """The accounts of its devices; those of the federation are with the coordinator."""
    fleet = world.setting.fleet
    spent, losses, habits = np.zeros(fleet.devices), np.full(fleet.devices, np.nan), np.zeros(fleet.devices)
    missed = np.full(fleet.devices, np.inf)
    for n, entry in book.items():
        spent[n], losses[n], habits[n], missed[n] = entry.spent_joules, entry.loss, entry.habit, entry.missed
    ledger = open_ledger(fleet.clusters)
    return ControlState(
        rounds_done,
        {},
        ledger,
        ledger,
        spent,
        losses,
        habits,
        missed if world.setting.downloads_differences else None,
    )


def list_estimates(book: Book, devices: int) -> list[Estimates | None]:
    """The estimates of all devices; None for those of others."""
    return _list(devices, {n: entry.estimates for n, entry in book.items()})


def list_reports(book: Book, devices: int) -> list[MeasurementReport | None]:
    """The measurements of all devices; None for those of others."""
    return _list(devices, {n: entry.report for n, entry in book.items()})


def _list(devices: int, known: Mapping[int, Value | None]) -> list[Value | None]:
    return [known.get(n) for n in range(devices)]


def note_estimates(book: Book, found: Iterable[DeviceEstimates]) -> Book:
    """The book with fresh σ² and G²."""
    fresh = {}
    for each in found:
        before = book.get(each.device, DeviceEntry())
        estimates = refresh_estimates(before.estimates, each.estimates)
        fresh[each.device] = replace(before, estimates=estimates, report=each.measured or before.report)
    return {**book, **fresh}


@dataclass(frozen=True, slots=True, eq=False)
class CarriedOut:
    """An edge round as it was carried out.

    Attributes:
        at: which one.
        plan: what devices were asked, and `asked` which ones.
        results: of those whose uploads arrived, by device.
        connected: devices that are there.
        seconds: how long the edge server waited.
    """

    at: Position
    plan: RoundPlan
    asked: BoolArray
    results: Sequence[DeviceResult]
    connected: Collection[int]
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class OwnRound:
    """What an edge server logs of an edge round of its own devices."""

    rows: PlanTable
    losses: tuple[RoundLoss, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Noted:
    """What an edge server makes of an edge round: for its book, its log, and the coordinator."""

    book: Book
    own: OwnRound
    totals: ClusterTotals
    device_seconds: float  # of its slowest device


def note_round(
    world: World, number: int, book: Book, view: RoundView, done: CarriedOut, took_part: Collection[int]
) -> Noted:
    """Counts an edge round; `took_part` earlier in the same global round."""
    setting, devices = world.setting, world.setting.fleet.devices
    outcome = _count(world, number, done, view.control.missed)
    known = list_estimates(book, devices)
    habits = note_influence(setting, view.control, known, view.conditions.available).habits
    found = {each.device: each for each in done.results}
    asked, fresh = set(np.flatnonzero(done.asked).tolist()), {}
    for n in np.flatnonzero(setting.fleet.cluster == number).tolist():
        before, result = book.get(n, DeviceEntry()), found.get(n)
        entry = replace(before, at=done.at[:2], habit=0.0 if habits is None else float(habits[n]))
        if outcome.missed is not None:
            entry = replace(entry, missed=float(outcome.missed[n]))
        if result is None:
            gone = n in asked or before.is_absent
            fresh[n] = replace(entry, is_absent=gone and n not in done.connected)
            continue
        fresh[n] = replace(
            entry,
            estimates=result.estimates,
            spent_joules=before.spent_joules + float(outcome.joules[n]),
            loss=outcome.losses.get(n, before.loss),
            is_absent=False,
            report=result.measured or before.report,
        )
    present = outcome.conditions.available.copy()
    present[list(took_part)] = True
    rows = make_plan_table(setting, [outcome], done.at[0] + 1)
    rows = replace(rows, edge_round=np.full(len(rows.device), done.at[1]))
    totals = cut_answer(count_clusters(setting, outcome, present), number)
    own = OwnRound(rows, _find_losses(done, view.absent))
    return Noted({**book, **fresh}, own, totals, float(outcome.seconds.max(initial=0.0)))


def _find_losses(done: CarriedOut, absent: tuple[int, ...]) -> tuple[RoundLoss, ...]:
    """What the simulator has to know to repeat the edge round, as in `coordinator.counting`."""
    arrived = {each.device for each in done.results}
    lost = tuple(n for n in np.flatnonzero(done.asked).tolist() if n not in arrived)
    now = [RoundLoss(done.at[0] + 1, done.at[1], absent, lost)] if absent or lost else []
    earlier = [
        RoundLoss(global_round + 1, edge_round, trained=(each.device,))
        for each in done.results
        for global_round, edge_round in each.unused
    ]
    return (*now, *earlier)


def _count(world: World, number: int, done: CarriedOut, missed: FloatArray | None) -> EdgeRoundOutcome:
    """The costs of its devices."""
    fleet, measurements = world.setting.fleet, None
    arrived = {each.device for each in done.results}
    if any(each.measured is not None for each in done.results):
        seconds = tuple(done.seconds if i == number else 0.0 for i in range(fleet.clusters))
        reports = {each.device: each.measured for each in done.results}
        measurements = EdgeRoundMeasurements(done.seconds, seconds, tuple(_list(fleet.devices, reports)))
    finished = FinishedEdgeRound(
        done.at[1],
        tuple(n in arrived for n in range(fleet.devices)),
        done.plan,
        tuple(DeviceWork(each.device, each.steps, each.wire_bits, each.loss) for each in done.results),
        measurements,
        missed=() if missed is None else tuple(missed.tolist()),
    )
    return count_edge_round(world, done.at[0], finished)


Report = TypeVar("Report", DeviceEstimates, DeviceResult)


def bound_measurements(
    world: World, book: Book, at: Position, found: Sequence[Report], local_steps: int | None, spread: float
) -> tuple[Book, list[Report], BoundedReports]:
    """Bounds what its devices measured, each compared with the others of this edge server.

    Returns:
        The book with their accounts, what was found with bounded measurements, and the reasons.
    """
    devices = world.setting.fleet.devices
    fresh = {each.device: each.measured for each in found if each.measured is not None}
    accounts = tuple(book[n].account if n in book else JouleAccount() for n in range(devices))
    known = FederationMeasurements(tuple(list_reports(book, devices)), accounts=accounts)
    observed = {each.device: observe_work(world, each, local_steps) for each in found}
    now = world.setting.conditions(*at[:2])
    bounded = bound_reports(fresh, known, observed, usual_conditions(world.setting), now, spread)
    charged = {n: replace(book.get(n, DeviceEntry()), account=bounded.accounts[n]) for n in fresh}
    kept = [msgspec.structs.replace(each, measured=bounded.reports.get(each.device)) for each in found]
    return {**book, **charged}, kept, bounded


def join_rows(number: int, parts: Sequence[PlanTable]) -> PlanTable:
    """The rows of a global round, in the order of edge rounds and devices."""
    names = [name for name in PlanTable.__dataclass_fields__ if name != "round"]
    columns: dict[str, FloatArray] = {
        name: np.concatenate([np.empty(0), *(getattr(part, name) for part in parts)]) for name in names
    }
    order = np.lexsort((columns["device"], columns["edge_round"]))
    return PlanTable(round=number, **{name: values[order] for name, values in columns.items()})
