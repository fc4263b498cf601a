"""The largest fleet whose state fits into a coordinator's messages, computed before anything starts.

The coordinator's state travels in one header with every command, and grows with devices and edge rounds. A
fleet beyond its limit would fail in the middle of the first global round. Where a fleet is planned by asking
edge servers, it does not grow; then what edge servers send each other with a model is the limit.
"""

from dataclasses import replace

import numpy as np

from cfel.control.scheme import RoundPlan
from cfel.deployment.coordinator.state import (
    CoordinatorState,
    FinishedEdgeRound,
    initial_coordinator_state,
)
from cfel.deployment.measurement.measured_rounds import (
    EdgeRoundMeasurements,
    FederationMeasurements,
    JouleAccount,
)
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.protocol.device_requests import MeasurementReport
from cfel.deployment.protocol.edge_requests import MixCommand
from cfel.deployment.protocol.messages import MOST_HEADER_BYTES, encode
from cfel.errors import InputError
from cfel.learning.local.estimates import Estimates
from cfel.rounds.kernel import DeviceWork
from cfel.wording import plural
from cfel.world import World

_SAMPLE = 100
# MessagePack writes every float in nine bytes.
_NUMBER = 0.1
# A device, and the round of its last upload.
_USE_BYTES = 11
# Longer than honest devices' names for clocks and counters, so that some may send the 40 that are allowed.
_SOURCE = "x" * 12


def check_fleet_size(world: World, deployment: DeploymentParameters) -> None:
    """Raises an `InputError` if the fleet is too large for the coordinator's messages."""
    if world.setting.by_clusters:
        _check_clusters(world)
        return
    devices, most = world.setting.fleet.devices, find_most_devices(world, deployment)
    if devices > most:
        rounds = plural(world.setting.rounds.edge_rounds, "edge round")
        raise InputError(
            f"fleet.devices = {devices:,}: a deployment with {rounds} per global round and "
            f"{deployment.conditions} conditions can have at most {most:,} devices, because the "
            f"coordinator's state must fit into a message of {MOST_HEADER_BYTES:,} bytes; "
            "fewer rounds.edge allow more"
        )


def _check_clusters(world: World) -> None:
    """The same where edge servers keep what is known of their devices, and say whose uploads a model has."""
    devices, most = world.setting.fleet.devices, MOST_HEADER_BYTES // _USE_BYTES
    if devices > most:
        raise InputError(
            f"fleet.devices = {devices:,}: a deployment can have at most {most:,} devices, because edge "
            f"servers name those whose uploads are in a model in a message of {MOST_HEADER_BYTES:,} bytes"
        )


def find_most_devices(world: World, deployment: DeploymentParameters) -> int:
    """For how many devices the largest message still has room."""
    small, large = (_measure(world, deployment, devices) for devices in (_SAMPLE, 2 * _SAMPLE))
    per_device = (large - small) / _SAMPLE
    return int(_SAMPLE + (MOST_HEADER_BYTES - small) / per_device)


def _measure(world: World, deployment: DeploymentParameters, devices: int) -> int:
    """Bytes of the command that ends a global round, if so many devices took part in every edge round."""
    clusters = world.setting.fleet.clusters
    rows = ((_NUMBER,) * clusters,) * clusters
    state = _make_state(world, deployment, devices)
    return len(encode(MixCommand(2**16, (2**16, 2**16, 0), rows, True, state)))


def _make_state(world: World, deployment: DeploymentParameters, devices: int) -> CoordinatorState:
    state, numbers = (
        initial_coordinator_state(world, 0.0, measures=deployment.measures),
        np.full(devices, _NUMBER),
    )
    # Measured, all run at full clocks, and the plan has no speeds.
    plan = RoundPlan(numbers, numbers, speed=None if deployment.measures else numbers, weight=numbers)
    report = MeasurementReport(*(_NUMBER,) * 6, _SOURCE, _SOURCE)
    reports = (report,) * devices if deployment.measures else ()
    seconds = (_NUMBER,) * world.setting.fleet.clusters
    finished = FinishedEdgeRound(
        0,
        (True,) * devices,
        plan,
        (DeviceWork(2**16, 2**15, 2**31, _NUMBER),) * devices,
        EdgeRoundMeasurements(_NUMBER, seconds, reports) if deployment.measures else None,
    )
    kept_energy = (_NUMBER,) * len(world.training.local.kept_energy_at)
    accounts = (JouleAccount(_NUMBER, _NUMBER),) * devices
    return replace(
        state,
        control=replace(state.control, spent_joules=numbers, losses=numbers, habits=numbers),
        estimates=(Estimates(_NUMBER, _NUMBER, kept_energy),) * devices,
        finished=(finished,) * world.setting.rounds.edge_rounds,
        last_used_rounds={2**16 + n: (2**16, 2**8) for n in range(devices)},
        measured=FederationMeasurements(reports, accounts=accounts) if deployment.measures else None,
    )
