"""How a new coordinator begins: it asks edge servers what the last one did, until enough have answered.

What it makes of their answers is in `handover`.
"""

import asyncio
import time
from collections.abc import Mapping

from cfel.deployment.coordinator.control_state import initial_coordinator_state
from cfel.deployment.coordinator.edge_calls import QUICK_SECONDS, TRY_AGAIN_SECONDS, TermCalls
from cfel.deployment.coordinator.handover import Handover, has_begun, take_over
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.protocol.coordinator_requests import NewestAnswer, NewestRequest
from cfel.world import World


async def succeed(edges: TermCalls, world: World, deployment: DeploymentParameters, own: int) -> Handover:
    """The newest state that edge servers agree on; before the first round, waits for all to join.

    Args:
        edges: how they are called.
        world: what is run.
        deployment: how long to wait for devices to join.
        own: the coordinator's edge server.
    """
    deadline = time.monotonic() + deployment.join_seconds
    start = initial_coordinator_state(world, measures=deployment.measures)
    while True:
        answers = await edges.ask_once(NewestRequest(edges.term), QUICK_SECONDS)
        if has_begun(answers, edges.clusters):
            found = take_over(world, answers, own, edges.term, start) if _is_enough(edges, answers) else None
            if found is not None:
                return found
        else:
            joined = sum(len(each.connected) for each in answers.values())
            complete = len(answers) == edges.clusters and joined == world.setting.fleet.devices
            # The first round need not wait for stragglers forever, but needs somebody to work.
            overdue = time.monotonic() > deadline and 2 * len(answers) > edges.clusters and joined > 0
            if complete or overdue:
                return Handover(initial_coordinator_state(world, measures=deployment.measures))
        await asyncio.sleep(TRY_AGAIN_SECONDS)


def _is_enough(edges: TermCalls, answers: Mapping[int, NewestAnswer]) -> bool:
    """Whether no newer state or record can be known elsewhere: a minority may not have heard of it.

    Edge servers that lost what they knew count only if those that may know it are gone.
    """
    sound = sum(not each.is_lost for each in answers.values())
    silent = set(range(edges.clusters)) - answers.keys()
    waits = 2 * sound <= edges.clusters and not silent <= set(edges.find_gone())
    return 2 * len(answers) > edges.clusters and not waits
