"""How far, and how often, one other member may raise a member's term.

Terms prove nothing: a member that lies can show any. Without limits it could depose every leader, reset
every election, and drive members so far apart that none can be elected. A message beyond the limits counts as
lost, which the election bears. Pure functions of an `ElectionState` and the time, for `rules`.
"""

from cfel.deployment.election.state import (
    ElectionMessage,
    ElectionState,
    HeartbeatReply,
    Raise,
    Role,
    VoteReply,
    VoteRequest,
)

MOST_STEP = 10
"""So many terms may one member raise a member without a leader within ten election timeouts."""

MOST_LEADER_STEP = 100
"""So far may it raise a leader, once in thirty election timeouts: further than an honest member can have been
driven ahead before its leader hears of it."""

MOST_VOTES = 3
"""So often does a member follow its own leader to a later term within ten election timeouts."""

# In the shortest silence after which a member asks for an election.
_WINDOW, _LEADER_WINDOW = 10.0, 30.0
_MOST_KEPT = 200


def is_raise(state: ElectionState, message: ElectionMessage) -> bool:
    """Whether a message could raise the term of a member."""
    match message:
        case VoteRequest(preliminary=True):
            return False
        case VoteReply() | HeartbeatReply() if state.role is Role.FOLLOWER:
            # It has asked nothing: it hears of a new term from a candidate or a leader.
            return False
    return message.term > state.term


def limit_step(state: ElectionState, sender: int, term: int, now: float) -> int:
    """The term to enter on a message of a later one: that one, or the furthest that its sender may show."""
    if state.role is Role.LEADER:
        raised = any(each.deposed for each in _list_raises(state, sender, now, _LEADER_WINDOW))
        return state.term if raised else min(term, state.term + MOST_LEADER_STEP)
    recent = _list_raises(state, sender, now, _WINDOW)
    if sender == state.leader:
        # A leader that was raised asks for votes again, in the term after that.
        often = len(recent) >= MOST_VOTES
        return state.term if often else min(term, state.term + MOST_LEADER_STEP + 1)
    left = MOST_STEP - sum(each.terms for each in recent)
    return min(term, state.term + max(left, 0))


def raises_too_often(state: ElectionState, sender: int, message: ElectionMessage, now: float) -> bool:
    """Whether a message would raise the term, but its sender has done so too often."""
    return is_raise(state, message) and limit_step(state, sender, message.term, now) == state.term


def add_raise(state: ElectionState, sender: int, term: int, now: float) -> tuple[Raise, ...]:
    """The latest raises, with one more, to `term`."""
    raised = Raise(sender, now, term - state.term, deposed=state.role is Role.LEADER)
    return (*state.raises[1 - _MOST_KEPT :], raised)


def add_far_term(
    state: ElectionState, sender: int, term: int
) -> tuple[tuple[tuple[int, int], ...], int | None]:
    """Notes a term beyond reach.

    Returns:
        Such terms, by member, and the one that a majority has reached, if any: so a member that was absent
        for very long comes back at once.
    """
    shown = {**dict(state.far_terms), sender: term}
    reached, majority = sorted(shown.values(), reverse=True), state.electorate.majority
    return tuple(sorted(shown.items())), reached[majority - 1] if len(reached) >= majority else None


def _list_raises(state: ElectionState, sender: int, now: float, window: float) -> list[Raise]:
    since = now - window * state.electorate.timing.timeout_seconds[0]
    return [each for each in state.raises if each.sender == sender and each.at > since]
