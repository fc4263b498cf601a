"""Where a federation is, and what its coordinator knows.

A position (l, r, s) says that in global round l, r edge rounds are done, and since the last of them s gossip
steps. Later positions are larger. The scheme says when edge servers gossip and how many steps in a row.

The coordinator's state is the controller's (`rounds.kernel`) with the position, the devices' estimates and
what edge servers reported. It travels with every command, so that a successor can resume there.
"""

from dataclasses import dataclass, field, replace

from cfel.control.clusters import Decision
from cfel.control.scheme import RoundPlan
from cfel.deployment.measurement.measured_rounds import EdgeRoundMeasurements, FederationMeasurements
from cfel.deployment.protocol.messages import Count
from cfel.learning.local.estimates import Estimates
from cfel.membership import FleetChange, RoundLoss
from cfel.rounds import kernel
from cfel.rounds.kernel import ControlState, DeviceWork, initial_control
from cfel.rounds.records import ClusterTotals
from cfel.world import World

Position = tuple[Count, Count, Count]


def gossip_steps(world: World, edge_rounds_done: int) -> int:
    """Gossip steps that are due once that many edge rounds of a global round are done."""
    gossip, edge_rounds = world.setting.scheme.gossip, world.setting.rounds.edge_rounds
    within = edge_rounds_done > 0 and gossip.is_due_within(edge_rounds_done - 1, edge_rounds)
    return gossip.steps if within or edge_rounds_done == edge_rounds else 0


def gossip_is_next(world: World, at: Position) -> bool:
    """Whether a gossip step is next, and not an edge round."""
    return at[2] < gossip_steps(world, at[1])


def ends_exchange(world: World, at: Position) -> bool:
    """Whether the gossip step that is next is the last one in a row."""
    return at[2] + 1 == gossip_steps(world, at[1])


def ends_global_round(world: World, at: Position) -> bool:
    """Whether the gossip step that is next ends the global round."""
    return at[1] == world.setting.rounds.edge_rounds and ends_exchange(world, at)


def after_gossip_step(world: World, at: Position) -> Position:
    """The position after the gossip step that is next."""
    return (at[0] + 1, 0, 0) if ends_global_round(world, at) else (at[0], at[1], at[2] + 1)


@dataclass(frozen=True, slots=True, eq=False)
class FinishedEdgeRound:
    """A finished edge round: who took part, the plan, what was done, and what was measured."""

    edge_round: int
    available: tuple[bool, ...]
    plan: RoundPlan
    work: tuple[DeviceWork, ...]
    measurements: EdgeRoundMeasurements | None = None
    losses: tuple[RoundLoss, ...] = ()  # who was missing, and what devices say of earlier rounds
    missed: tuple[float, ...] = ()  # `ControlState.missed` before it; empty where there is none


@dataclass(frozen=True, slots=True, eq=False)
class CoordinatorState:
    """The coordinator's knowledge at one point of the run.

    Attributes:
        control: finished global rounds, the scheme's state, and what has been spent.
        edge_round: edge rounds done in this global round.
        step: gossip steps done since the last of them.
        estimates: every device's newest σ² and G².
        finished: finished edge rounds of this global round.
        absent_devices: devices that missed their last order and were not connected any more.
        digests, metrics: of every edge model after the last gossip step.
        started_at: time of day at the start of this global round, by the coordinator's machine.
        plan: of the next edge round, once there is one.
        available: who takes part in it.
        used: share of the run that is over, by which learning rates fall.
        measured: what devices and clocks measured, where conditions are measured.
        changes: all changes of the fleet that a majority has agreed on, those of the experiment file
            included.
        absent_now: devices that the plan leaves out because they are not there.
        gossip_losses: gossip steps of this global round that not all took part in; edge rounds, too, where a
            fleet is planned by clusters.
        last_used_rounds: per device, the round of its last upload that went into a model; moves with it.
        late_rounds: per device, the rounds since then whose uploads missed the scheme's deadline.
        decision: in place of the plan, where a fleet is planned by clusters. What is known of devices is then
            with their edge servers, and everything here that has an entry per device is empty.
        asked: edge servers that it was made with; the others' devices do not take part.
        decided, totals: what was decided, and came of it, in the finished edge rounds.
    """

    control: ControlState
    edge_round: int
    step: int
    estimates: tuple[Estimates | None, ...]
    finished: tuple[FinishedEdgeRound, ...]
    absent_devices: tuple[int, ...]
    digests: tuple[str, ...]
    metrics: tuple[float, ...]
    started_at: float
    plan: RoundPlan | None = None
    available: tuple[bool, ...] = ()
    measured: FederationMeasurements | None = None
    used: float = 0.0
    changes: tuple[FleetChange, ...] = ()
    absent_now: tuple[int, ...] = ()
    gossip_losses: tuple[RoundLoss, ...] = ()
    last_used_rounds: dict[Count, tuple[Count, Count]] = field(default_factory=dict)
    late_rounds: dict[Count, tuple[tuple[Count, Count], ...]] = field(default_factory=dict)
    decision: Decision | None = None
    asked: tuple[Count, ...] = ()
    decided: tuple[Decision, ...] = ()
    totals: tuple[ClusterTotals, ...] = ()

    @property
    def position(self) -> Position:
        """Where the federation is."""
        return self.control.rounds_done, self.edge_round, self.step

    @property
    def is_planned(self) -> bool:
        """Whether there is a plan of the next edge round."""
        return self.plan is not None or self.decision is not None

    @property
    def recency(self) -> tuple[Position, bool]:
        """Later states are larger."""
        return self.position, self.is_planned


def initial_coordinator_state(world: World, now: float, *, measures: bool = False) -> CoordinatorState:
    """Before the first round, which begins now by the time of day."""
    setting = world.at(0).setting
    clusters, control = setting.fleet.clusters, initial_control(setting)
    devices = 0 if setting.by_clusters else setting.fleet.devices
    return CoordinatorState(
        control=replace(
            control,
            spent_joules=control.spent_joules[:devices],
            missed=None if control.missed is None else control.missed[:devices],
        ),
        edge_round=0,
        step=0,
        estimates=(None,) * devices,
        finished=(),
        absent_devices=(),
        digests=(world.start.sha256().hex(),) * clusters,
        metrics=(0.0,) * clusters,
        started_at=now,
        measured=FederationMeasurements((None,) * devices) if measures else None,
        changes=world.changes,
    )


def enter_round(world: World, state: CoordinatorState) -> CoordinatorState:
    """The state at the start of a global round, with places for devices and edge servers that join."""
    number = state.control.rounds_done
    setting = world.at(number).setting
    fleet, before = setting.fleet, world.at(max(number - 1, 0)).setting.fleet
    first, new = state.digests[before.list_edges()[0]], set(fleet.list_edges()) - set(before.list_edges())
    digests = [*state.digests, *[first] * (fleet.clusters - len(state.digests))]
    devices = 0 if setting.by_clusters else fleet.devices
    control = kernel.forget_models(kernel.enter_round(setting, state.control, devices), before, fleet)
    return replace(
        state,
        control=control,
        estimates=(*state.estimates, *(None,) * (devices - len(state.estimates))),
        digests=tuple(first if i in new else digest for i, digest in enumerate(digests)),
        metrics=(*state.metrics, *(0.0,) * (fleet.clusters - len(state.metrics))),
        measured=None if state.measured is None else state.measured.enter_round(devices),
        absent_devices=tuple(n for n in state.absent_devices if n in set(fleet.list_members())),
        changes=world.changes,
    )
