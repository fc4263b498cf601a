"""What an edge round cost, expected and realised, from who did how much."""

from collections.abc import Sequence

import numpy as np

from cfel.control.scheme import RoundPlan
from cfel.cost import device_joules, device_seconds, edge_round_cost, realised_joules, realised_seconds
from cfel.rounds.outcome import EdgeRoundOutcome, Work
from cfel.rounds.parameters import SimulationParameters
from cfel.system import Conditions
from cfel.world import World


def counted(
    world: World,
    parameters: SimulationParameters,
    conditions: Conditions,
    plan: RoundPlan,
    work: Sequence[Work],
) -> EdgeRoundOutcome:
    """The edge round's outcome.

    Args:
        world: what is run.
        parameters: which account counts.
        conditions: what was met, and who took part.
        plan: what was asked.
        work: what was done, by device id.
    """
    fleet, tau = world.fleet, world.rounds.local_steps
    steps, wire_bits = np.zeros(fleet.devices), np.zeros(fleet.devices)
    for each in work:
        steps[each.device] = each.steps
        wire_bits[each.device] = each.wire_bits * world.charged_share
    sent = wire_bits / world.model_bits if parameters.uploads == "wire" else plan.theta
    now, present = plan.clocked(conditions), conditions.available
    expected = (
        device_seconds(plan.rho, plan.theta, tau, now.mu, now.nu),
        device_joules(plan.rho, plan.theta, tau, now.alpha, now.nu, now.power),
    )
    realised = (
        realised_seconds(steps, sent, now.mu, now.nu),
        realised_joules(steps, sent, now.alpha, now.nu, now.power),
    )
    seconds, joules = expected if parameters.accounting == "expected" else realised
    return EdgeRoundOutcome(
        conditions=conditions,
        plan=plan,
        steps=steps,
        wire_bits=wire_bits,
        seconds=np.where(present, seconds, 0.0),
        joules=np.where(present, joules, 0.0),
        expected=edge_round_cost(*expected, fleet.cluster, fleet.clusters, present),
        realised=edge_round_cost(*realised, fleet.cluster, fleet.clusters, present),
        losses=tuple(each.loss for each in work if each.steps),
    )
