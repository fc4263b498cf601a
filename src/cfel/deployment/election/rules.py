"""Who coordinates: a leader vote in the manner of Raft, as a state machine without clock, socket or chance.

The driver feeds events with its time and a number drawn from [0, 1), and carries out the actions in their
order. What is voted on is only the office: there is no log to replicate, so a vote asks nothing about one.

    follower ──silence──▶ precandidate ──majority──▶ candidate ──majority──▶ leader
        ▲                    │ (a heartbeat, or a higher term, from any role)    │
        └────────────────────┴──────────────── no majority answers ──────────────┘

Safe whatever the network does: at most one leader per term, as each member votes once per term, remembers it
on disk, and two majorities share a member. Quiet: a member that comes back or was cut off sounds the others
out first and is refused while they hear their leader. If clocks run at the same rate within the gap between
`contact_seconds` and the lower timeout, `leads` is true for at most one member at any instant.
"""

from dataclasses import replace

from cfel.deployment.election.electorate import ElectionState, Electorate, Role
from cfel.deployment.election.messages import (
    Action,
    Ballot,
    Event,
    Heartbeat,
    HeartbeatReply,
    LeaderChanged,
    Message,
    Persist,
    Received,
    Resign,
    Send,
    Tick,
    VoteReply,
    VoteRequest,
)
from cfel.errors import InputError

Answer = tuple[ElectionState, list[Send]]


def start(electorate: Electorate, ballot: Ballot, now: float, draw: float) -> ElectionState:
    """A member that begins or comes back, with the ballot it last made durable."""
    return ElectionState(
        electorate=electorate,
        ballot=ballot,
        role=Role.FOLLOWER,
        leader=None,
        heard_at=now,
        deadline=now + _between(electorate.timing.timeout_seconds, draw),
        asked_at=now,
        granted=frozenset(),
        answered=(),
    )


def step(
    state: ElectionState, event: Event, now: float, draw: float
) -> tuple[ElectionState, tuple[Action, ...]]:
    """What a member becomes and does on an event.

    Args:
        state: what it is.
        event: what happened.
        now: its clock; never less than in an earlier call.
        draw: a number from [0, 1), fresh for each call, by which members avoid asking all at once.

    Raises:
        InputError: a message came from somebody without a vote.
    """
    match event:
        case Tick():
            after, sends = _on_tick(state, now, draw)
        case Resign(rest_seconds):
            after, sends = _resigned(state, rest_seconds, now, draw), []
        case Received(sender, message):
            if sender not in state.electorate.others:
                raise InputError(f"sender: {sender} is not another member of {state.electorate.members}")
            after, sends = _on_message(state, sender, message, now, draw)
    return after, (*_changes(state, after), *sends)


def wakes_at(state: ElectionState) -> float:
    """When the next tick is due."""
    if state.role is not Role.LEADER:
        return state.deadline
    return min(state.deadline, _in_touch_until(state))


def leads(state: ElectionState, now: float) -> bool:
    """Whether this member may act as leader at this instant: elected, and answered by a majority lately.

    To be asked before each act: a process that was stopped for a while still has the role, but not this.
    """
    if state.role is not Role.LEADER:
        return False
    return now < _majority_answered(state) + state.electorate.timing.contact_seconds


def _changes(before: ElectionState, after: ElectionState) -> list[Action]:
    """What must be durable, and what the member should know, before anything is sent."""
    actions: list[Action] = []
    if after.ballot != before.ballot:
        actions.append(Persist(after.ballot))
    same_leader = after.leader == before.leader and (after.leader is None or after.term == before.term)
    if not same_leader:
        actions.append(LeaderChanged(after.term, after.leader))
    return actions


def _on_tick(state: ElectionState, now: float, draw: float) -> Answer:
    if state.role is Role.LEADER and now >= _in_touch_until(state):
        return _follower(state, state.ballot, now, draw), []
    if now < state.deadline:
        return state, []
    if state.role is Role.LEADER:
        return _heartbeat(state, now)
    return _sound_out(state, now, draw)


def _resigned(state: ElectionState, rest_seconds: float, now: float, draw: float) -> ElectionState:
    if state.role is not Role.LEADER:
        return state
    return replace(_follower(state, state.ballot, now, draw), deadline=now + rest_seconds)


def _on_message(state: ElectionState, sender: int, message: Message, now: float, draw: float) -> Answer:
    match message:
        case VoteRequest(preliminary=True):
            return state, [_vote(state, sender, message, _would_vote(state, message, now))]
        case VoteRequest():
            return _on_vote_request(state, sender, message, now, draw)
        case Heartbeat():
            return _on_heartbeat(state, sender, message, now, draw)
        case _ if message.term > state.term:
            return _follower(state, Ballot(message.term), now, draw), []
        case VoteReply():
            return _on_vote_reply(state, sender, message, now, draw)
        case HeartbeatReply():
            return _on_heartbeat_reply(state, sender, message, now), []


def _sound_out(state: ElectionState, now: float, draw: float) -> Answer:
    """Asks whether a real request would be granted, in the next term and without entering it."""
    asking = _asking(state, Role.PRECANDIDATE, now, draw)
    sends = _to_others(asking, VoteRequest(state.term + 1, now, preliminary=True))
    return (asking, sends) if not _won(asking) else _stand(asking, now, draw)


def _stand(state: ElectionState, now: float, draw: float) -> Answer:
    """Enters the next term, votes for itself and asks the others to."""
    ballot = Ballot(state.term + 1, state.electorate.member)
    asking = replace(_asking(state, Role.CANDIDATE, now, draw), ballot=ballot)
    sends = _to_others(asking, VoteRequest(asking.term, now, preliminary=False))
    return (asking, sends) if not _won(asking) else _take_office(asking, now)


def _take_office(state: ElectionState, now: float) -> Answer:
    nobody = (float("-inf"),) * len(state.electorate.members)
    elected = replace(
        state, role=Role.LEADER, leader=state.electorate.member, asked_at=now, heard_at=now, answered=nobody
    )
    return _heartbeat(elected, now)


def _heartbeat(state: ElectionState, now: float) -> Answer:
    following = replace(state, deadline=now + state.electorate.timing.heartbeat_seconds)
    return following, _to_others(state, Heartbeat(state.term, now))


def _would_vote(state: ElectionState, request: VoteRequest, now: float) -> bool:
    return request.term > state.term and not _hears_leader(state, now)


def _on_vote_request(
    state: ElectionState, sender: int, request: VoteRequest, now: float, draw: float
) -> Answer:
    if _would_vote(state, request, now):
        state = _follower(state, Ballot(request.term), now, draw)
    granted = request.term == state.term and _may_vote_for(state, sender, now)
    if granted and state.ballot.voted_for is None:
        # Whoever voted for a candidate leaves it the time to win before asking for votes itself.
        wait = _between(state.electorate.timing.retry_seconds, draw)
        state = replace(_follower(state, Ballot(state.term, sender), now, draw), deadline=now + wait)
    return state, [_vote(state, sender, request, granted)]


def _may_vote_for(state: ElectionState, candidate: int, now: float) -> bool:
    """A vote given is given again; a new one only while no leader is heard, not even one of an older term."""
    voted_for = state.ballot.voted_for
    return voted_for == candidate or (voted_for is None and not _hears_leader(state, now))


def _on_vote_reply(state: ElectionState, sender: int, reply: VoteReply, now: float, draw: float) -> Answer:
    counting = Role.PRECANDIDATE if reply.preliminary else Role.CANDIDATE
    if state.role is not counting or reply.asked_at != state.asked_at or not reply.granted:
        return state, []
    if not reply.preliminary and reply.term != state.term:
        return state, []
    state = replace(state, granted=state.granted | {sender})
    if not _won(state):
        return state, []
    return _stand(state, now, draw) if reply.preliminary else _take_office(state, now)


def _on_heartbeat(state: ElectionState, sender: int, heartbeat: Heartbeat, now: float, draw: float) -> Answer:
    if heartbeat.term >= state.term:
        ballot = state.ballot if heartbeat.term == state.term else Ballot(heartbeat.term)
        state = replace(_follower(state, ballot, now, draw), leader=sender, heard_at=now)
    return state, [Send(sender, HeartbeatReply(state.term, heartbeat.sent_at))]


def _on_heartbeat_reply(
    state: ElectionState, sender: int, reply: HeartbeatReply, now: float
) -> ElectionState:
    if state.role is not Role.LEADER or reply.term != state.term:
        return state
    place = state.electorate.members.index(sender)
    newest = max(state.answered[place], min(reply.sent_at, now))
    return replace(state, answered=(*state.answered[:place], newest, *state.answered[place + 1 :]))


def _follower(state: ElectionState, ballot: Ballot, now: float, draw: float) -> ElectionState:
    deadline = now + _between(state.electorate.timing.timeout_seconds, draw)
    return replace(
        state,
        ballot=ballot,
        role=Role.FOLLOWER,
        leader=None,
        deadline=deadline,
        granted=frozenset(),
        answered=(),
    )


def _asking(state: ElectionState, role: Role, now: float, draw: float) -> ElectionState:
    return replace(
        state,
        role=role,
        leader=None,
        asked_at=now,
        deadline=now + _between(state.electorate.timing.retry_seconds, draw),
        granted=frozenset({state.electorate.member}),
    )


def _hears_leader(state: ElectionState, now: float) -> bool:
    if state.role is Role.LEADER:
        return now < _in_touch_until(state)
    return now < state.heard_at + _minimum(state)


def _in_touch_until(state: ElectionState) -> float:
    """When a leader has to step down if nobody answers; a new one gets the time to be answered at all."""
    return max(_majority_answered(state), state.asked_at) + state.electorate.timing.contact_seconds


def _majority_answered(state: ElectionState) -> float:
    """The latest instant since which a majority, the leader counted in, has answered."""
    others = sorted(state.answered, reverse=True)
    needed = state.electorate.majority - 1
    return others[needed - 1] if needed else float("inf")


def _won(state: ElectionState) -> bool:
    return len(state.granted) >= state.electorate.majority


def _minimum(state: ElectionState) -> float:
    return state.electorate.timing.timeout_seconds[0]


def _vote(state: ElectionState, receiver: int, request: VoteRequest, granted: bool) -> Send:
    return Send(receiver, VoteReply(state.term, request.asked_at, request.preliminary, granted))


def _to_others(state: ElectionState, message: Message) -> list[Send]:
    return [Send(other, message) for other in state.electorate.others]


def _between(bounds: tuple[float, float], draw: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * draw
