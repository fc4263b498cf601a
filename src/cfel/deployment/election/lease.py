"""How long a leader may act without answers, and whether a member hears one or may follow another.

Pure functions of an `ElectionState` and the time, for `rules`.
"""

from cfel.deployment.election.state import ElectionState, Role


def hears_leader(state: ElectionState, now: float) -> bool:
    """Whether a leader is alive as far as this member knows; also for a while after its own start."""
    if state.role is Role.LEADER:
        return now < lease_end(state)
    return now < state.heard_at + state.electorate.timing.timeout_seconds[0]


def lease_end(state: ElectionState) -> float:
    """When a leader must step down unless it is answered; a new leader first gets time for answers."""
    return max(last_majority_contact(state), state.asked_at) + state.electorate.timing.contact_seconds


def last_majority_contact(state: ElectionState) -> float:
    """The latest time since which a majority, including the leader, has answered."""
    others = sorted(state.answered, reverse=True)
    needed = state.electorate.majority - 1  # the leader counts itself
    # A single member is its own majority at any time.
    return others[needed - 1] if needed else float("inf")


def may_follow(state: ElectionState, sender: int, term: int, now: float) -> bool:
    """Whether a heartbeat may come from an elected leader, as far as this member can judge.

    Not while it hears another one: a majority that heard nothing for so long would have deposed that one. And
    a term has one leader only.
    """
    if state.leader in (None, sender):
        return True
    return term > state.term and not hears_leader(state, now)
