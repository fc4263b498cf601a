"""Bounds the measurements in edge servers' answers, before anything is planned or counted with them.

The rules are in `measurement.plausibility`; here they are applied to the answers of all edge servers at once,
because a device is compared with all others.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from cfel.deployment.coordinator.control_state import CoordinatorState
from cfel.deployment.measurement.plausibility import BoundedReports, ObservedWork, bound_reports
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.protocol.coordinator_requests import (
    DeviceEstimates,
    DeviceResult,
    EstimateAnswer,
    PlanAnswer,
)
from cfel.deployment.protocol.device_requests import MeasurementReport
from cfel.system import Conditions
from cfel.world import World

Answer = TypeVar("Answer", EstimateAnswer, PlanAnswer)


def bound_answers(
    world: World,
    usual: Conditions,
    state: CoordinatorState,
    answers: Mapping[int, Answer],
    deployment: DeploymentParameters,
) -> tuple[dict[int, Answer], BoundedReports]:
    """Bounds what devices measured, before anything is planned or counted with it.

    Args:
        world: what is run.
        usual: each device's usual figures in the experiment's model.
        state: with the previous reports.
        answers: as edge servers gave them, by edge server.
        deployment: how far a figure may be from its reference, and how long a round may take.

    Returns:
        The answers with bounded measurements, and these with the devices' accounts.
    """
    if state.measured is None:
        return dict(answers), BoundedReports({}, [], ())
    found = [each for answer in answers.values() for each in answer.devices]
    fresh = {each.device: each.measured for each in found if each.measured is not None}
    observed = {each.device: _observe_work(world, each) for each in found}
    now = world.setting.conditions(*state.position[:2])
    bounded = bound_reports(fresh, state.measured, observed, usual, now, deployment.report_spread)
    most_seconds = deployment.round_seconds
    return {
        edge: _replace_reports(each, bounded.reports, most_seconds) for edge, each in answers.items()
    }, bounded


def _replace_reports(answer: Answer, reports: Mapping[int, MeasurementReport], most_seconds: float) -> Answer:
    devices = tuple(
        msgspec.structs.replace(each, measured=reports.get(each.device)) for each in answer.devices
    )
    bounded = msgspec.structs.replace(answer, devices=devices)
    if isinstance(bounded, PlanAnswer):
        # No edge server waits longer than this for its devices, whatever its clock says.
        bounded = msgspec.structs.replace(bounded, seconds=min(bounded.seconds, most_seconds))
    return bounded


def _observe_work(world: World, found: DeviceEstimates | DeviceResult) -> ObservedWork:
    """What the edge server saw of a device's work."""
    gradients, setting = world.training.local.fresh_batches, world.setting
    if isinstance(found, DeviceEstimates):
        return ObservedWork(found.seconds, gradients, gradients, 0.0)
    share = found.wire_bits * setting.charged_share / setting.model_bits if setting.model_bits else 0.0
    steps = float(setting.charge_steps(found.steps, found.rho))
    return ObservedWork(found.seconds, steps, steps + gradients, share)
