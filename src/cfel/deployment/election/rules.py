"""The rules of the election: a leader vote after Raft, a state machine without clock, socket or randomness.

The driver feeds in events with its time and a random number from [0, 1), and carries out the actions in
order. Only leadership is voted on. There is no replicated log, so votes do not depend on one.

    follower ──silence──▶ precandidate ──majority──▶ candidate ──majority──▶ leader
        ▲                    │ (a heartbeat, or a higher term, from any role)    │
        └────────────────────┴──────────────── no majority answers ──────────────┘

Safe on any network: a term has at most one leader, because each member votes once per term, stores its vote
on disk, and two majorities share a member. Stable: a member that restarts or was cut off asks with
preliminary requests first, and others deny them while they hear their leader. If clocks run at the same rate
within the gap between `contact_seconds` and the lower timeout, `is_leading` holds for at most one member
at a time.
"""

from dataclasses import replace

from cfel.deployment.election.lease import hears_leader, last_majority_contact, lease_end, may_follow
from cfel.deployment.election.state import (
    MOST_TERM_JUMP,
    Action,
    ElectionMessage,
    ElectionState,
    Electorate,
    Event,
    Heartbeat,
    HeartbeatReply,
    LeaderChanged,
    Persist,
    Received,
    Resign,
    Role,
    Send,
    Tick,
    Vote,
    VoteReply,
    VoteRequest,
)
from cfel.errors import InputError

Transition = tuple[ElectionState, list[Send]]


def start(electorate: Electorate, vote: Vote, now: float, draw: float) -> ElectionState:
    """The state of a member that starts or restarts with the vote it last stored."""
    return ElectionState(
        electorate=electorate,
        vote=vote,
        role=Role.FOLLOWER,
        leader=None,
        heard_at=now,
        deadline=now + _pick_between(electorate.timing.timeout_seconds, draw),
        asked_at=now,
        granted=frozenset(),
        answered=(),
    )


def step(
    state: ElectionState, event: Event, now: float, draw: float
) -> tuple[ElectionState, tuple[Action, ...]]:
    """Returns a member's state after an event, and the actions to carry out.

    Args:
        state: its state before.
        event: what happened.
        now: its clock; never less than in an earlier call.
        draw: a random number from [0, 1), new for each call; it keeps members from asking all at once.

    Raises:
        InputError: a message came from a sender without a vote.
    """
    match event:
        case Tick():
            after, sends = _on_tick(state, now, draw)
        case Resign(rest_seconds):
            after, sends = _resign(state, rest_seconds, now, draw), []
        case Received(sender, message):
            if sender not in state.electorate.others:
                raise InputError(f"sender: {sender} is not another member of {state.electorate.members}")
            if message.term > state.term + MOST_TERM_JUMP:
                after, sends = _note_far_term(state, sender, message.term, now, draw), []
            else:
                after, sends = _on_message(state, sender, message, now, draw)
    return after, (*_list_changes(state, after), *sends)


def next_tick_at(state: ElectionState) -> float:
    """When the next tick is due."""
    if state.role is not Role.LEADER:
        return state.deadline
    return min(state.deadline, lease_end(state))


def is_leading(state: ElectionState, now: float) -> bool:
    """Whether this member may act as leader now: it was elected, and a majority answered it recently.

    Ask before every action: a process that was suspended for a while still has the role, but may not act.
    """
    if state.role is not Role.LEADER:
        return False
    return now < last_majority_contact(state) + state.electorate.timing.contact_seconds


def _list_changes(before: ElectionState, after: ElectionState) -> list[Action]:
    """Actions that must come before anything is sent: store the vote, report a new leader."""
    actions: list[Action] = []
    if after.vote != before.vote:
        actions.append(Persist(after.vote))
    # The same member elected again in a later term counts as a change.
    same_leader = after.leader == before.leader and (after.leader is None or after.term == before.term)
    if not same_leader:
        actions.append(LeaderChanged(after.term, after.leader))
    return actions


def _on_tick(state: ElectionState, now: float, draw: float) -> Transition:
    if state.role is Role.LEADER and now >= lease_end(state):
        return _become_follower(state, state.vote, now, draw), []
    if now < state.deadline:
        return state, []
    if state.role is Role.LEADER:
        return _send_heartbeats(state, now)
    return _become_precandidate(state, now, draw)


def _resign(state: ElectionState, rest_seconds: float, now: float, draw: float) -> ElectionState:
    if state.role is not Role.LEADER:
        return state
    # A long deadline: another member times out and is elected first.
    return replace(_become_follower(state, state.vote, now, draw), deadline=now + rest_seconds)


def _note_far_term(state: ElectionState, sender: int, term: int, now: float, draw: float) -> ElectionState:
    """Keeps a term far beyond the newest known one; enters the term that a majority has reached, if any has.

    One member that lies cannot use up the terms, and one that was absent for very long can still come back.
    """
    shown = {**dict(state.far_terms), sender: term}
    reached = sorted(shown.values(), reverse=True)
    if len(reached) < state.electorate.majority:
        return replace(state, far_terms=tuple(sorted(shown.items())))
    vote = Vote(reached[state.electorate.majority - 1])
    return replace(_become_follower(state, vote, now, draw), far_terms=())


def _on_message(
    state: ElectionState, sender: int, message: ElectionMessage, now: float, draw: float
) -> Transition:
    match message:
        # Changes no state, so a member that was cut off cannot push the others into a new term.
        case VoteRequest(preliminary=True):
            return state, [_send_vote_reply(state, sender, message, _would_vote(state, message, now))]
        case VoteRequest():
            return _on_vote_request(state, sender, message, now, draw)
        case Heartbeat():
            return _on_heartbeat(state, sender, message, now, draw)
        # A reply from a later term: this member missed an election.
        case _ if message.term > state.term:
            return _become_follower(state, Vote(message.term), now, draw), []
        case VoteReply():
            return _on_vote_reply(state, sender, message, now, draw)
        case HeartbeatReply():
            return _on_heartbeat_reply(state, sender, message, now), []


def _become_precandidate(state: ElectionState, now: float, draw: float) -> Transition:
    """Asks whether a real request would be granted, without entering the next term."""
    asking = _ask_for_votes(state, Role.PRECANDIDATE, now, draw)
    sends = _send_to_others(asking, VoteRequest(state.term + 1, now, preliminary=True))
    return (asking, sends) if not _has_majority(asking) else _become_candidate(asking, now, draw)


def _become_candidate(state: ElectionState, now: float, draw: float) -> Transition:
    """Enters the next term, votes for itself and asks the others for their votes."""
    vote = Vote(state.term + 1, state.electorate.member)
    asking = replace(_ask_for_votes(state, Role.CANDIDATE, now, draw), vote=vote)
    sends = _send_to_others(asking, VoteRequest(asking.term, now, preliminary=False))
    return (asking, sends) if not _has_majority(asking) else _become_leader(asking, now)


def _become_leader(state: ElectionState, now: float) -> Transition:
    # Nobody has answered yet, so `is_leading` stays false until a majority answers a heartbeat.
    nobody = (float("-inf"),) * len(state.electorate.members)
    elected = replace(
        state, role=Role.LEADER, leader=state.electorate.member, asked_at=now, heard_at=now, answered=nobody
    )
    return _send_heartbeats(elected, now)


def _send_heartbeats(state: ElectionState, now: float) -> Transition:
    after = replace(state, deadline=now + state.electorate.timing.heartbeat_seconds)
    return after, _send_to_others(state, Heartbeat(state.term, now))


def _would_vote(state: ElectionState, request: VoteRequest, now: float) -> bool:
    return request.term > state.term and not hears_leader(state, now)


def _on_vote_request(
    state: ElectionState, sender: int, request: VoteRequest, now: float, draw: float
) -> Transition:
    if _would_vote(state, request, now):
        state = _become_follower(state, Vote(request.term), now, draw)
    granted = request.term == state.term and _may_vote_for(state, sender, now)
    if granted and state.vote.voted_for is None:
        # Gives the candidate time to win before this member asks for votes itself.
        wait = _pick_between(state.electorate.timing.retry_seconds, draw)
        state = replace(_become_follower(state, Vote(state.term, sender), now, draw), deadline=now + wait)
    return state, [_send_vote_reply(state, sender, request, granted)]


def _may_vote_for(state: ElectionState, candidate: int, now: float) -> bool:
    """Repeats a vote given before; gives a new one only while no leader is heard, of whatever term."""
    voted_for = state.vote.voted_for
    return voted_for == candidate or (voted_for is None and not hears_leader(state, now))


def _on_vote_reply(
    state: ElectionState, sender: int, reply: VoteReply, now: float, draw: float
) -> Transition:
    expected = Role.PRECANDIDATE if reply.preliminary else Role.CANDIDATE
    # `asked_at` tells replies to this request from replies to an earlier one.
    if state.role is not expected or reply.asked_at != state.asked_at or not reply.granted:
        return state, []
    if not reply.preliminary and reply.term != state.term:
        return state, []
    state = replace(state, granted=state.granted | {sender})
    if not _has_majority(state):
        return state, []
    return _become_candidate(state, now, draw) if reply.preliminary else _become_leader(state, now)


def _on_heartbeat(
    state: ElectionState, sender: int, heartbeat: Heartbeat, now: float, draw: float
) -> Transition:
    if heartbeat.term >= state.term and may_follow(state, sender, heartbeat.term, now):
        # Forgetting the vote of the same term would let this member vote twice in it.
        vote = state.vote if heartbeat.term == state.term else Vote(heartbeat.term)
        state = replace(_become_follower(state, vote, now, draw), leader=sender, heard_at=now)
    return state, [Send(sender, HeartbeatReply(state.term, heartbeat.sent_at))]


def _on_heartbeat_reply(
    state: ElectionState, sender: int, reply: HeartbeatReply, now: float
) -> ElectionState:
    if state.role is not Role.LEADER or reply.term != state.term:
        return state
    place = state.electorate.members.index(sender)
    # A reply may arrive late or claim a time in the future; neither may move the lease wrongly.
    newest = max(state.answered[place], min(reply.sent_at, now))
    return replace(state, answered=(*state.answered[:place], newest, *state.answered[place + 1 :]))


def _become_follower(state: ElectionState, vote: Vote, now: float, draw: float) -> ElectionState:
    deadline = now + _pick_between(state.electorate.timing.timeout_seconds, draw)
    return replace(
        state,
        vote=vote,
        role=Role.FOLLOWER,
        leader=None,
        deadline=deadline,
        granted=frozenset(),
        answered=(),
    )


def _ask_for_votes(state: ElectionState, role: Role, now: float, draw: float) -> ElectionState:
    return replace(
        state,
        role=role,
        leader=None,
        asked_at=now,
        deadline=now + _pick_between(state.electorate.timing.retry_seconds, draw),
        granted=frozenset({state.electorate.member}),
    )


def _has_majority(state: ElectionState) -> bool:
    return len(state.granted) >= state.electorate.majority


def _send_vote_reply(state: ElectionState, receiver: int, request: VoteRequest, granted: bool) -> Send:
    return Send(receiver, VoteReply(state.term, request.asked_at, request.preliminary, granted))


def _send_to_others(state: ElectionState, message: ElectionMessage) -> list[Send]:
    return [Send(other, message) for other in state.electorate.others]


def _pick_between(bounds: tuple[float, float], draw: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * draw
