"""What an edge server shows of itself: JSON values for `cfel status` and the dashboard."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cfel.runtime.desk import Desk
from cfel.runtime.edge_server import EdgeServer
from cfel.runtime.member import Member
from cfel.world import World

Snapshot = dict[str, Any]


def snapshot(
    world: World, server: EdgeServer, desk: Desk, member: Member, refused: Mapping[str, int]
) -> Snapshot:
    """The present state of an edge server.

    Args:
        world: what is run.
        server: its part.
        desk: its devices.
        member: its part in the election.
        refused: how many calls were refused, by reason.
    """
    state, last = server.state, server.log.last()
    control = state.control
    here = list(desk.devices)
    plan = None if control is None else control["plan"]
    return {
        "edge": server.number,
        "term": member.state.term,
        "leader": member.state.leader,
        "role": member.state.role.value,
        "global_round": state.position[0],
        "edge_round": state.position[1],
        "phase": server.phase,
        "rounds": asdict(world.rounds),
        "devices": here,
        "connected": desk.connected(),
        "rho": None if plan is None else [plan["rho"][n] for n in here],
        "theta": None if plan is None else [plan["theta"][n] for n in here],
        "refused": dict(refused),
        "refused_uploads": {str(n): count for n, count in desk.refused.items() if count},
        "seconds_budget": world.budget.seconds,
        "joules_budget": world.budget.joules,
        "record": None if last is None else asdict(last),
    }
