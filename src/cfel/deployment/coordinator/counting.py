"""What edge servers told, put into the coordinator's control; pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cfel.cost import after_edge_round
from cfel.deployment.coordinator.control_state import Control, Done, outcome
from cfel.deployment.measurement.measured_rounds import (
    FederationMeasurements,
    add_overhead,
    advance_ledger,
    collect_measurements,
    read_rows,
    use_actual_orders,
)
from cfel.errors import DeploymentError
from cfel.learning.local.estimates import Estimates, check_estimates, decode_estimates, refresh_estimates
from cfel.rounds import SimulationParameters, Work
from cfel.world import World

Told = Mapping[int, Mapping[str, Any]]
"""Headers of the edge servers' answers, by edge server."""


def with_estimates(control: Control, told: Told) -> Control:
    """The control with fresh σ² and G²."""
    estimates = list(control.estimates)
    for each in told.values():
        for device, sigma2, g2 in each["estimates"]:
            fresh = check_estimates(Estimates(sigma2, g2))
            estimates[device] = refresh_estimates(control.estimates[device], fresh)
    return replace(control, estimates=tuple(estimates), measured=_measured(control, told))


def counted(
    world: World, simulation: SimulationParameters, control: Control, told: Told, seconds: float
) -> Control:
    """The control after an edge round.

    Args:
        world: what is run.
        simulation: which accounts count.
        control: with the plan that was carried out.
        told: what became of it.
        seconds: by the coordinator's clock since the count before.
    """
    if control.plan is None:
        raise DeploymentError("an edge round without a plan cannot be counted")
    rows = sorted((row for each in told.values() for row in each["work"]), key=lambda row: row[0])
    arrived = {row[0] for row in rows}
    there = {n for each in told.values() for n in each["connected"]}
    asked = np.flatnonzero(control.available).tolist()
    done = Done(
        control.edge_round,
        tuple(n in arrived for n in range(world.fleet.devices)),
        control.plan,
        tuple(Work(*row[:4]) for row in rows),
    )
    if control.measured is not None:
        plan = use_actual_orders(done.plan, read_rows(told.values()))
        done = replace(done, plan=plan, clocked=collect_measurements(world, told, seconds))
    result = outcome(world, simulation, control.rounds_done, done)
    estimates = list(control.estimates)
    for device, *_, found in rows:
        estimates[device] = decode_estimates(found)
    after = replace(
        control,
        edge_round=control.edge_round + 1,
        step=0,
        expected=after_edge_round(control.expected, result.expected),
        realised=after_edge_round(control.realised, result.realised),
        spent_joules=control.spent_joules + result.joules,
        estimates=tuple(estimates),
        done=(*control.done, done),
        absent=tuple(n for n in {*asked, *control.absent} if n not in arrived and n not in there),
        plan=None,
        available=(),
        measured=_measured(control, told),
    )
    if after.measured is None or done.clocked is None:
        return after
    realised = advance_ledger(control.realised, result, done.clocked)
    return replace(after, realised=realised, measured=add_overhead(after.measured, result, done.clocked))


def _measured(control: Control, told: Told) -> FederationMeasurements | None:
    return None if control.measured is None else control.measured.add_reports(read_rows(told.values()))
