"""How a member's state changes when it becomes a follower or asks for votes.

Pure functions of an `ElectionState`, for `rules`, which decides when.
"""

from dataclasses import replace

from cfel.deployment.election.state import ElectionState, Role, Vote


def become_follower(state: ElectionState, vote: Vote, now: float, draw: float) -> ElectionState:
    """A follower that knows no leader yet, and waits for one before it asks for votes."""
    deadline = now + pick_between(state.electorate.timing.timeout_seconds, draw)
    return replace(
        state,
        vote=vote,
        role=Role.FOLLOWER,
        leader=None,
        deadline=deadline,
        granted=frozenset(),
        answered=(),
    )


def ask_for_votes(state: ElectionState, role: Role, now: float, draw: float) -> ElectionState:
    """A member that has asked for votes, with its own."""
    return replace(
        state,
        role=role,
        leader=None,
        asked_at=now,
        deadline=now + pick_between(state.electorate.timing.retry_seconds, draw),
        granted=frozenset({state.electorate.member}),
    )


def has_majority(state: ElectionState) -> bool:
    """Whether enough votes were granted."""
    return len(state.granted) >= state.electorate.majority


def pick_between(bounds: tuple[float, float], draw: float) -> float:
    """A wait within bounds."""
    return bounds[0] + (bounds[1] - bounds[0]) * draw
