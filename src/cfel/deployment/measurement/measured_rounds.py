"""Rounds by the clock: what the coordinator plans with and counts when conditions are measured.

Devices tell their own μ, α, ν and p (`reported`); before a device's first report the experiment's model
stands in for it. Seconds are those of the coordinator's own clock, from one count to the next, so that none
is left out: devices, calls, planning, gossip and evaluation alike. What an edge round takes beside its
slowest device, and what gossip takes, is kept free when the next one is planned. Edge servers wait for one
another after every edge round, so all clusters have spent the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from cfel.control.scheme import Observation, RoundPlan
from cfel.cost import Ledger, after_edge_round, after_exchange, edge_round_cost
from cfel.deployment.measurement.meters import RunningRatio
from cfel.deployment.measurement.reported import Reported
from cfel.deployment.parameters import DeploymentParameters
from cfel.rounds import EdgeRoundOutcome, SimulationParameters
from cfel.system import Conditions
from cfel.world import World

NOTHING = RunningRatio()
"""Not measured yet."""

Row = tuple[int, float, float, Reported]
"""A device, the ρ and θ it was really asked, and what it told."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a deployment knows of its own speed; part of the coordinator's control.

    Attributes:
        devices: every device's newest report, or None before its first.
        beside: seconds that an edge round takes beside its slowest device.
        exchange: seconds of one exchange between edge servers, with what follows it.
    """

    devices: tuple[Reported | None, ...]
    beside: RunningRatio = NOTHING
    exchange: RunningRatio = NOTHING

    def told(self, rows: Iterable[Row]) -> "Measured":
        """With newer reports."""
        devices = list(self.devices)
        for device, *_, report in rows:
            devices[device] = report
        return replace(self, devices=tuple(devices))


@dataclass(frozen=True, slots=True)
class Clocked:
    """What the clocks said of one edge round.

    Attributes:
        seconds: from the count before it to its own.
        cluster_seconds: what each edge server measured; 0 for one that told nothing.
        devices: reports of those who took part.
    """

    seconds: float
    cluster_seconds: tuple[float, ...]
    devices: tuple[Reported | None, ...]


def counting(simulation: SimulationParameters, deployment: DeploymentParameters) -> SimulationParameters:
    """The accounts of a deployment: where conditions are measured, budgets count what was measured."""
    return replace(simulation, accounting="realised") if deployment.measures else simulation


def rows_in(headers: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The reports in edge servers' answers, by device."""
    rows = [row for header in headers for row in header.get("measured", ())]
    found = [(int(n), float(rho), float(theta), Reported(*told)) for n, rho, theta, told in rows]
    return sorted(found, key=lambda row: row[0])


def clocked(world: World, headers: Mapping[int, Mapping[str, Any]], seconds: float) -> Clocked:
    """What the clocks said of an edge round.

    Args:
        world: what is run.
        headers: of the answers of the edge servers, by number.
        seconds: by the coordinator's clock; one that took over in the middle has seen only a part.
    """
    told = [float(headers.get(i, {}).get("seconds", 0.0)) for i in range(world.fleet.clusters)]
    devices: list[Reported | None] = [None] * world.fleet.devices
    for device, *_, report in rows_in(headers.values()):
        devices[device] = report
    return Clocked(max(seconds, *told), tuple(told), tuple(devices))


def as_asked(plan: RoundPlan, rows: Iterable[Row]) -> RoundPlan:
    """The plan with the ρ and θ that devices were really asked.

    A coordinator that takes over in the middle of an edge round may plan it anew, by newer measurements; the
    devices go on with the plan they have.
    """
    rho, theta = plan.rho.copy(), plan.theta.copy()
    for device, asked_rho, asked_theta, _ in rows:
        rho[device], theta[device] = asked_rho, asked_theta
    return replace(plan, rho=rho, theta=theta)


def conditions_by(reports: Sequence[Reported | None], model: Conditions) -> Conditions:
    """Conditions as devices told them, the model's for those that have told nothing."""
    columns = {}
    for name in ("mu", "alpha", "nu", "power"):
        values = np.array(getattr(model, name))
        for device, report in enumerate(reports):
            if report is not None:
                values[device] = getattr(report, name)
        columns[name] = values
    return replace(model, **columns)


def foreseen(world: World, measured: Measured, seen: Observation) -> Observation:
    """The observation with what this global round will still take beside devices' work, as measured."""
    left = seen.rounds.edge_rounds - seen.edge_round
    exchanges = world.scheme.gossip.exchanges_from(seen.edge_round, seen.rounds.edge_rounds)
    gossip = seen.backhaul_seconds
    if measured.exchange.value is not None:
        gossip = np.full(seen.clusters, exchanges * measured.exchange.value)
    return replace(seen, backhaul_seconds=gossip + left * (measured.beside.value or 0.0))


def by_the_clock(world: World, counted: EdgeRoundOutcome, told: Clocked) -> EdgeRoundOutcome:
    """An edge round's outcome with seconds and joules as they were measured.

    Args:
        world: what is run.
        counted: the same by steps, bits and conditions; it stands for devices that told nothing.
        told: what the clocks said.
    """
    seconds, joules = counted.seconds.copy(), counted.joules.copy()
    for device, report in enumerate(told.devices):
        if report is not None:
            sending = report.nu * counted.wire_bits[device] / world.model_bits
            seconds[device] = report.seconds + sending
            joules[device] = report.joules + report.power * sending
    present = counted.conditions.available
    cost = edge_round_cost(seconds, joules, world.fleet.cluster, world.fleet.clusters, present)
    known = np.array(told.cluster_seconds)
    cost = replace(cost, seconds=np.where(known > 0, known, cost.seconds))
    return replace(counted, seconds=seconds, joules=joules, realised=cost)


def after_clocked(ledger: Ledger, outcome: EdgeRoundOutcome, told: Clocked) -> Ledger:
    """The ledger after an edge round: all clusters have spent what the clock says."""
    after = after_edge_round(ledger, outcome.realised)
    spent = max(ledger.elapsed_seconds) + told.seconds
    rest = max(0.0, spent - max(after.elapsed_seconds))
    return after_exchange(after, np.full(ledger.clusters, rest))


def beside(measured: Measured, outcome: EdgeRoundOutcome, told: Clocked) -> Measured:
    """With what one more edge round took beside its slowest device."""
    rest = max(0.0, told.seconds - float(outcome.seconds.max(initial=0.0)))
    return replace(measured, beside=measured.beside.after(rest, 1))


def measured_json(measured: Measured | None) -> dict[str, Any] | None:
    """Plain values; `measured_from` gives back an equal one."""
    if measured is None:
        return None
    ratios = {name: astuple(getattr(measured, name)) for name in ("beside", "exchange")}
    return {"devices": _lists(measured.devices), **ratios}


def measured_from(values: Mapping[str, Any] | None) -> Measured | None:
    """Out of JSON."""
    if values is None:
        return None
    ratios = (RunningRatio(*values[name]) for name in ("beside", "exchange"))
    return Measured(_reports(values["devices"]), *ratios)


def clocked_json(told: Clocked | None) -> dict[str, Any] | None:
    """Plain values; `clocked_from` gives back an equal one."""
    if told is None:
        return None
    return {
        "seconds": told.seconds,
        "cluster_seconds": told.cluster_seconds,
        "devices": _lists(told.devices),
    }


def clocked_from(values: Mapping[str, Any] | None) -> Clocked | None:
    """Out of JSON."""
    if values is None:
        return None
    return Clocked(values["seconds"], tuple(values["cluster_seconds"]), _reports(values["devices"]))


def _lists(reports: Sequence[Reported | None]) -> list[tuple[Any, ...] | None]:
    return [None if each is None else astuple(each) for each in reports]


def _reports(values: Sequence[Sequence[Any] | None]) -> tuple[Reported | None, ...]:
    return tuple(None if each is None else Reported(*each) for each in values)
