"""What the coordinator knows: a value that travels with every command, so that a successor can resume there.

It is the controller's state (`rounds.kernel`) with the place in the round, the devices' estimates and what
edge servers reported. How their answers change it is in `counting`.
"""

import time
from dataclasses import dataclass

from cfel.control.scheme import RoundPlan
from cfel.deployment.measurement.measured_rounds import EdgeRoundMeasurements, FederationMeasurements
from cfel.deployment.positions import Position
from cfel.learning.local.estimates import Estimates, check_estimates
from cfel.rounds.kernel import ControlState, DeviceWork, initial_control
from cfel.world import World


@dataclass(frozen=True, slots=True, eq=False)
class FinishedEdgeRound:
    """A finished edge round: who took part, the plan, what was done, and what was measured."""

    edge_round: int
    available: tuple[bool, ...]
    plan: RoundPlan
    work: tuple[DeviceWork, ...]
    measurements: EdgeRoundMeasurements | None = None


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
        started_at: wall clock at the start of this global round.
        plan: of the next edge round, once there is one.
        available: who takes part in it.
        rate: share of the learning rate in it.
        measured: what devices and clocks measured, where conditions are measured.
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
    rate: float = 1.0

    def __post_init__(self) -> None:
        for estimates in self.estimates:
            if estimates is not None:
                check_estimates(estimates)

    @property
    def position(self) -> Position:
        """Where the federation is."""
        return self.control.rounds_done, self.edge_round, self.step

    @property
    def recency(self) -> tuple[Position, bool]:
        """Later states are larger."""
        return self.position, self.plan is not None


def initial_coordinator_state(world: World, *, measures: bool = False) -> CoordinatorState:
    """Before the first round."""
    clusters, devices = world.setting.fleet.clusters, world.setting.fleet.devices
    return CoordinatorState(
        control=initial_control(world.setting),
        edge_round=0,
        step=0,
        estimates=(None,) * devices,
        finished=(),
        absent_devices=(),
        digests=(world.start.sha256().hex(),) * clusters,
        metrics=(0.0,) * clusters,
        started_at=time.time(),
        measured=FederationMeasurements((None,) * devices) if measures else None,
    )
