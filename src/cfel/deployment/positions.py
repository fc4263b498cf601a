"""Where a federation is: global round, edge round, gossip step; and what comes next.

A position (l, r, s) says that in global round l, r edge rounds are done, and since the last of them s gossip
steps. Later positions are larger. The scheme says when edge servers gossip and how many steps in a row.
"""

from cfel.deployment.protocol.codec import Count
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
