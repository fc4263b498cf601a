"""The snapshot of an edge server: a `Status` for `cfel status` and the dashboard.

It knows what its own devices are doing; of the others, what their edge servers last reported.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cfel import __version__
from cfel.deployment.coordinator.state import CoordinatorState
from cfel.deployment.edge.server import EdgeServer
from cfel.deployment.election.member import Member
from cfel.deployment.health import DevicePresence, InstanceWatch
from cfel.deployment.measurement.measured_rounds import apply_reports
from cfel.deployment.protocol.device_requests import MeasurementReport
from cfel.deployment.protocol.edge_requests import MixAnswer
from cfel.deployment.security.credentials import Validity
from cfel.deployment.security.identity import Identity
from cfel.runlog import RoundRecord
from cfel.status import ClusterStatus, DeviceStatus, LinkStatus, RoundPoint, Status, thin_history
from cfel.system.conditions import Conditions
from cfel.world import World

MOST_ROUNDS = 400
"""Finished rounds in a snapshot."""


@dataclass(frozen=True, slots=True)
class KnownNodes:
    """What an edge server knows of all nodes."""

    devices: Mapping[int, str]  # what each of them is doing, as far as known
    state: Callable[[int], str]  # of an edge server, in the words of `cfel.status`
    problem: str  # what is wrong, in words; empty when nothing is
    majority: bool  # whether a majority of edge servers is in touch
    versions: Mapping[int, str]  # of cfel on other edge servers
    instances: InstanceWatch  # which processes speak for other edge servers
    presence: DevicePresence  # which devices of this edge server are there
    validity: Validity | None  # of this node's certificate, or None
    applicants: tuple[int, ...]  # devices that ask here and are no members of the fleet
    halted: str  # why this edge server carries out no commands; empty if it does


def snapshot(
    world: World,
    server: EdgeServer,
    member: Member,
    others: KnownNodes,
    rejections: Mapping[str, int],
) -> Status:
    """The present state of an edge server; the caller adds since when.

    Args:
        world: what is run.
        member: its part in the election.
        server: its part.
        others: what it knows of all nodes, and what is wrong.
        rejections: how many calls were rejected, by reason.
    """
    state, records = server.state, server.log.records
    last = records[-1] if records else None
    leader = member.state.leader
    control = state.coordinator_state
    return Status(
        node=str(Identity("edge", server.number)),
        phase=server.phase,
        round=state.position[0] + _is_within_a_round(server),
        rounds=world.setting.rounds.global_rounds,
        edge_round=min(state.position[1] + 1, world.setting.rounds.edge_rounds),
        edge_rounds=world.setting.rounds.edge_rounds,
        term=member.state.term,
        conditions="model" if control is None or control.measured is None else "measured",
        coordinator=None if leader is None else str(Identity("edge", leader)),
        seconds=0.0 if last is None else last.seconds_realised,
        seconds_budget=_limit(world.setting.budget.seconds),
        joules=0.0 if last is None else last.joules_realised,
        joules_budget=_limit(world.setting.budget.joules),
        metric=world.setting.metrics[0],
        straggler=None if last is None else last.straggler,
        slowest_cluster=None if last is None else last.slowest_cluster,
        clusters=_clusters(world, server, others, control),
        links=tuple(
            LinkStatus(
                a=a,
                b=b,
                weight=float(world.setting.backhaul.weights[a, b]),
                up=_is_used(state.gossip, a, b),
            )
            for a, b in world.setting.backhaul.edges
        ),
        history=thin_history(tuple(_point(record) for record in records), MOST_ROUNDS),
        rejected=tuple(sorted(rejections.items())),
        elections=tuple(member.events),
        problem=others.problem,
        version=__version__,
        majority=others.majority,
        leader_changes=member.leader_changes,
        wire_bytes=sum(record.wire_bytes for record in records),
        certificate_expires=None if others.validity is None else others.validity.end.timestamp(),
        applicants=others.applicants,
        halted=others.halted,
    )


def _is_within_a_round(server: EdgeServer) -> bool:
    """Whether a global round is under way, though the edge server may be waiting for the others in it."""
    return server.phase not in ("waiting", "finished") or server.state.position[1:] != (0, 0)


def _clusters(
    world: World, server: EdgeServer, others: KnownNodes, control: CoordinatorState | None
) -> tuple[ClusterStatus, ...]:
    plan = None if control is None else control.plan
    states = others.devices
    now = None if control is None else _conditions(world, control)
    reports = _reports(world, control)
    costs, presence = server.log.device_costs, others.presence
    versions = {**others.versions, server.number: __version__}
    clusters = []
    fleet = world.setting.fleet
    # Of a round before a device has joined.
    if plan is not None and len(plan.rho) < fleet.devices:
        plan = now = None
    for cluster in fleet.list_edges():
        devices = [n for n in fleet.list_members() if fleet.cluster[n] == cluster]
        clusters.append(
            ClusterStatus(
                cluster=cluster,
                node=str(Identity("edge", cluster)),
                state=others.state(cluster),
                size=len(devices),
                devices=tuple(
                    DeviceStatus(
                        device=n,
                        name=str(Identity("device", n)),
                        state=states.get(n, "idle"),
                        rho=None if plan is None else float(plan.rho[n]),
                        theta=None if plan is None else float(plan.theta[n]),
                        mu=None if now is None else float(now.mu[n]),
                        nu=None if now is None else float(now.nu[n]),
                        seconds=costs[n][0] if n in costs else None,
                        joules=costs[n][1] if n in costs else None,
                        source=_source(reports[n]),
                        version=presence.version(n),
                        doubled=n in presence and presence.is_doubled(n),
                    )
                    for n in devices
                ),
                rho_mean=None if plan is None or not devices else float(plan.rho[devices].mean()),
                theta_mean=None if plan is None or not devices else float(plan.theta[devices].mean()),
                version=versions.get(cluster, ""),
                doubled=others.instances.is_doubled(cluster),
            )
        )
    return tuple(clusters)


def _conditions(world: World, control: CoordinatorState) -> Conditions:
    edge_round = min(control.edge_round, world.setting.rounds.edge_rounds - 1)
    model = world.setting.conditions(control.control.rounds_done, edge_round)
    return apply_reports(_reports(world, control), model)


def _reports(world: World, control: CoordinatorState | None) -> Sequence[MeasurementReport | None]:
    devices = world.setting.fleet.devices
    # Where a fleet is planned by clusters, measurements are with the devices' edge servers.
    if control is None or control.measured is None or world.setting.by_clusters:
        return (None,) * devices
    return control.measured.enter_round(devices).devices


def _source(report: MeasurementReport | None) -> str:
    return "" if report is None else report.sources


def _is_used(gossip: MixAnswer | None, a: int, b: int) -> bool:
    """Whether the last gossip step went over a link."""
    return gossip is None or max(a, b) >= len(gossip.rows) or bool(gossip.rows[a][b])


def _point(record: RoundRecord) -> RoundPoint:
    return RoundPoint(
        round=record.round,
        seconds=record.seconds_realised,
        joules=record.joules_realised,
        accuracy=record.accuracy,
        loss=record.loss,
        straggler=record.straggler,
        wall_seconds=record.wall_seconds,
        wire_bytes=record.wire_bytes,
    )


def _limit(budget: float) -> float | None:
    return budget if math.isfinite(budget) else None
