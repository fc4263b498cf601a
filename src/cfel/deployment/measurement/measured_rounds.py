"""Rounds with measured conditions: what the coordinator plans with and counts.

Devices report their own μ, α, ν and p (`self_measurement`); the experiment's model stands in until a device's
first report. Seconds are those of the coordinator's clock from one count to the next, so that all time is
counted: devices, calls, planning, gossip and evaluation. The overhead of an edge round (its time beyond the
slowest device) and the time of gossip are reserved when the next one is planned. Edge servers wait for one
another after every edge round, so all clusters have spent the same time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cfel.control.scheme import Observation, Scheme
from cfel.cost import EdgeRoundCost, Ledger, after_edge_round, after_exchange, edge_round_cost
from cfel.deployment.measurement.meters import RunningRatio
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.protocol.device_requests import MeasurementReport
from cfel.rounds.kernel import EdgeRoundOutcome
from cfel.system.conditions import Conditions
from cfel.world import World

NOTHING = RunningRatio()
"""Not measured yet."""

Reports = Mapping[int, MeasurementReport]
"""By device."""


@dataclass(frozen=True, slots=True)
class JouleAccount:
    """What one device's reports were charged so far, and what the same work usually costs."""

    charged: float = 0.0
    usual: float = 0.0


@dataclass(frozen=True, slots=True)
class FederationMeasurements:
    """What a deployment knows of its own speed; part of the coordinator's state.

    Attributes:
        devices: every device's newest report, or None before its first.
        overhead: seconds of an edge round beyond its slowest device.
        exchange: seconds of one exchange between edge servers and of what follows it.
        accounts: every device's joules, or empty before the first edge round.
    """

    devices: tuple[MeasurementReport | None, ...]
    overhead: RunningRatio = NOTHING
    exchange: RunningRatio = NOTHING
    accounts: tuple[JouleAccount, ...] = ()

    def find_account(self, device: int) -> JouleAccount:
        """A device's joules so far."""
        return self.accounts[device] if device < len(self.accounts) else JouleAccount()

    def enter_round(self, devices: int) -> "FederationMeasurements":
        """The same with places for devices that have joined."""
        return replace(self, devices=(*self.devices, *(None,) * (devices - len(self.devices))))

    def add_reports(self, reports: Reports) -> "FederationMeasurements":
        """Replaces the reports of these devices by newer ones."""
        devices = tuple(reports.get(n, before) for n, before in enumerate(self.devices))
        return replace(self, devices=devices)


@dataclass(frozen=True, slots=True)
class EdgeRoundMeasurements:
    """What was measured in one edge round.

    Attributes:
        seconds: from the previous count to this round's.
        cluster_seconds: what each edge server measured; 0 for one that reported nothing.
        devices: reports of the devices that took part.
    """

    seconds: float
    cluster_seconds: tuple[float, ...]
    devices: tuple[MeasurementReport | None, ...]


def choose_accounting(world: World, deployment: DeploymentParameters) -> World:
    """Makes budgets count realised costs where conditions are measured."""
    if not deployment.measures:
        return world
    return world.with_settings(lambda setting: replace(setting, accounting="realised"))


def limit_waits(world: World, deployment: DeploymentParameters) -> DeploymentParameters:
    """Makes edge servers keep the scheme's deadline by their own clocks where conditions are measured."""
    deadline = world.setting.scheme.deadline_seconds
    if not deployment.measures or deadline >= deployment.round_seconds:
        return deployment
    return replace(deployment, round_seconds=deadline)


def describe_limits(scheme: Scheme, deployment: DeploymentParameters) -> str:
    """What a deployment cannot carry out of its scheme's plans, in words; empty if nothing."""
    if not (deployment.measures and scheme.plans_clocks):
        return ""
    return "planned at full clocks: with measured conditions, clocks cannot be slowed down"


def collect_measurements(
    world: World, reports: Reports, cluster_seconds: Mapping[int, float], seconds: float
) -> EdgeRoundMeasurements:
    """Collects what was measured in an edge round.

    Args:
        world: what is run.
        reports: of the devices that took part.
        cluster_seconds: what edge servers measured, by cluster.
        seconds: by the coordinator's clock.
    """
    fleet = world.setting.fleet
    clusters = tuple(cluster_seconds.get(i, 0.0) for i in range(fleet.clusters))
    devices = tuple(reports.get(n) for n in range(fleet.devices))
    # A coordinator that took over in the middle has seen only a part of the round.
    return EdgeRoundMeasurements(max(seconds, *clusters), clusters, devices)


def apply_reports(reports: Sequence[MeasurementReport | None], model: Conditions) -> Conditions:
    """Replaces the model's conditions by reported ones, for devices that have reported any."""
    columns = {}
    for name in ("mu", "alpha", "nu", "power"):
        values = np.array(getattr(model, name))
        for device, report in enumerate(reports):
            if report is not None:
                values[device] = getattr(report, name)
        columns[name] = values
    return replace(model, **columns)


def reserve_overhead(
    world: World, measurements: FederationMeasurements, observation: Observation
) -> Observation:
    """Reserves the measured time that the rest of this global round will take beyond devices' work."""
    first, edge_rounds = observation.edge_round, observation.rounds.edge_rounds
    # Until the first exchange has been measured, the model's time stands in.
    gossip = observation.gossip_seconds_left
    if measurements.exchange.value is not None:
        exchanges = world.setting.scheme.gossip.count_exchanges(first, edge_rounds)
        gossip = np.full(observation.clusters, exchanges * measurements.exchange.value)
    overhead = (edge_rounds - first) * (measurements.overhead.value or 0.0)
    return replace(observation, gossip_seconds_left=gossip + overhead)


def apply_measured_costs(
    world: World, outcome: EdgeRoundOutcome, measured: EdgeRoundMeasurements
) -> EdgeRoundOutcome:
    """Replaces an edge round's seconds and joules by measured ones.

    Args:
        world: what is run.
        outcome: counted from steps, bits and conditions; it stands for devices that reported nothing.
        measured: what was measured in the round.
    """
    seconds, joules = outcome.seconds.copy(), outcome.joules.copy()
    for device, report in enumerate(measured.devices):
        if report is not None:
            # A device reports before its upload ends, so the time of sending is computed from its rate.
            sending = report.nu * outcome.wire_bits[device] / world.setting.upload_bits
            seconds[device] = report.seconds + sending
            joules[device] = report.joules + report.power * sending
    present = outcome.conditions.available
    setting = world.setting
    cost = edge_round_cost(
        *(seconds, joules, setting.fleet.cluster, setting.fleet.clusters, present),
        by_cluster=setting.by_clusters,
    )
    # What an edge server waited by its own clock; 0 for one that did not answer.
    known = np.array(measured.cluster_seconds)
    cost = replace(cost, seconds=np.where(known > 0, known, cost.seconds))
    return replace(outcome, seconds=seconds, joules=joules, realised=cost)


def advance_ledger(ledger: Ledger, outcome: EdgeRoundOutcome, measured: EdgeRoundMeasurements) -> Ledger:
    """Adds an edge round to the ledger; all clusters have spent the time the coordinator measured."""
    return advance_by(ledger, outcome.realised, measured.seconds)


def advance_by(ledger: Ledger, realised: EdgeRoundCost, seconds: float) -> Ledger:
    """The same, given what was realised and the time that was measured."""
    after = after_edge_round(ledger, realised)
    # By the coordinator's clock, so that calls, planning and gossip between edge rounds are charged as well.
    spent = max(ledger.elapsed_seconds) + seconds
    rest = max(0.0, spent - max(after.elapsed_seconds))
    return after_exchange(after, np.full(ledger.clusters, rest))


def add_overhead(
    measurements: FederationMeasurements, outcome: EdgeRoundOutcome, measured: EdgeRoundMeasurements
) -> FederationMeasurements:
    """Adds the overhead of one more edge round."""
    return add_rest(measurements, measured.seconds, float(outcome.seconds.max(initial=0.0)))


def add_rest(measurements: FederationMeasurements, seconds: float, slowest: float) -> FederationMeasurements:
    """The same, given the time that was measured and that of the slowest device."""
    return replace(measurements, overhead=measurements.overhead.add(max(0.0, seconds - slowest), 1))
