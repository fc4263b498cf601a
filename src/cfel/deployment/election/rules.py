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
from cfel.deployment.election.raises import (
    MOST_STEP,
    add_far_term,
    add_raise,
    is_raise,
    limit_step,
    raises_too_often,
)
from cfel.deployment.election.role_changes import (
    ask_for_votes,
    become_follower,
    has_majority,
    pick_between,
)
from cfel.deployment.election.state import (
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
        deadline=now + pick_between(electorate.timing.timeout_seconds, draw),
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
            after, sends = _receive(state, sender, message, now, draw)
    return after, (*_list_changes(state, after), *sends)


def _receive(
    state: ElectionState, sender: int, message: ElectionMessage, now: float, draw: float
) -> Transition:
    if message.term > state.term + MOST_STEP:
        far_terms, reached = add_far_term(state, sender, message.term)
        if reached is not None:
            return replace(become_follower(state, Vote(reached), now, draw), far_terms=()), []
        state = replace(state, far_terms=far_terms)
    if raises_too_often(state, sender, message, now):
        return state, []
    after, sends = _on_message(state, sender, message, now, draw)
    if after.term > state.term and is_raise(state, message):
        after = replace(after, raises=add_raise(state, sender, after.term, now))
    return after, sends


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
        return become_follower(state, state.vote, now, draw), []
    if now < state.deadline:
        return state, []
    if state.role is Role.LEADER:
        return _send_heartbeats(state, now)
    return _become_precandidate(state, now, draw)


def _resign(state: ElectionState, rest_seconds: float, now: float, draw: float) -> ElectionState:
    if state.role is not Role.LEADER:
        return state
    # A long deadline: another member times out and is elected first.
    return replace(become_follower(state, state.vote, now, draw), deadline=now + rest_seconds)


def _on_message(
    state: ElectionState, sender: int, message: ElectionMessage, now: float, draw: float
) -> Transition:
    match message:
        # Changes no state, so a member that was cut off cannot push the others into a new term.
        case VoteRequest(preliminary=True):
            return state, [_send_vote_reply(state, sender, message, _would_vote(state, sender, message, now))]
        case VoteRequest():
            return _on_vote_request(state, sender, message, now, draw)
        case Heartbeat():
            return _on_heartbeat(state, sender, message, now, draw)
        # A reply from a later term: this member missed an election.
        case _ if is_raise(state, message):
            return _catch_up(state, limit_step(state, sender, message.term, now), now, draw)
        case VoteReply():
            return _on_vote_reply(state, sender, message, now, draw)
        case HeartbeatReply():
            return _on_heartbeat_reply(state, sender, message, now), []


def _catch_up(state: ElectionState, term: int, now: float, draw: float) -> Transition:
    """Enters a later term that a reply has shown.

    A leader asks for votes in the one after it at once: those who follow it vote for it, so that the member
    that was ahead takes part again, and nobody is without a leader meanwhile.
    """
    entered = become_follower(state, Vote(term), now, draw)
    return _become_candidate(entered, now, draw) if state.role is Role.LEADER else (entered, [])


def _become_precandidate(state: ElectionState, now: float, draw: float) -> Transition:
    """Asks whether a real request would be granted, without entering the next term."""
    asking = ask_for_votes(state, Role.PRECANDIDATE, now, draw)
    sends = _send_to_others(asking, VoteRequest(state.term + 1, now, preliminary=True))
    return (asking, sends) if not has_majority(asking) else _become_candidate(asking, now, draw)


def _become_candidate(state: ElectionState, now: float, draw: float) -> Transition:
    """Enters the next term, votes for itself and asks the others for their votes."""
    vote = Vote(state.term + 1, state.electorate.member)
    asking = replace(ask_for_votes(state, Role.CANDIDATE, now, draw), vote=vote)
    sends = _send_to_others(asking, VoteRequest(asking.term, now, preliminary=False))
    return (asking, sends) if not has_majority(asking) else _become_leader(asking, now)


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


def _would_vote(state: ElectionState, sender: int, request: VoteRequest, now: float) -> bool:
    return request.term > state.term and _is_free(state, sender, now)


def _is_free(state: ElectionState, candidate: int, now: float) -> bool:
    """Whether it may vote for a candidate: it hears no leader, of whatever term, or the candidate was it."""
    return candidate == state.leader or not hears_leader(state, now)


def _on_vote_request(
    state: ElectionState, sender: int, request: VoteRequest, now: float, draw: float
) -> Transition:
    is_free = _is_free(state, sender, now)
    if request.term > state.term and is_free:
        state = become_follower(state, Vote(limit_step(state, sender, request.term, now)), now, draw)
    voted_for = state.vote.voted_for
    # Repeats a vote given before.
    granted = request.term == state.term and (voted_for == sender or (voted_for is None and is_free))
    if granted and voted_for is None:
        # Gives the candidate time to win before this member asks for votes itself.
        wait = pick_between(state.electorate.timing.retry_seconds, draw)
        state = replace(become_follower(state, Vote(state.term, sender), now, draw), deadline=now + wait)
    return state, [_send_vote_reply(state, sender, request, granted)]


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
    if not has_majority(state):
        return state, []
    return _become_candidate(state, now, draw) if reply.preliminary else _become_leader(state, now)


def _on_heartbeat(
    state: ElectionState, sender: int, heartbeat: Heartbeat, now: float, draw: float
) -> Transition:
    if heartbeat.term >= state.term and may_follow(state, sender, heartbeat.term, now):
        # Forgetting the vote of the same term would let this member vote twice in it.
        term = limit_step(state, sender, heartbeat.term, now)
        vote = state.vote if term == state.term else Vote(term)
        state = become_follower(state, vote, now, draw)
        if term == heartbeat.term:
            state = replace(state, leader=sender, heard_at=now)
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


def _send_vote_reply(state: ElectionState, receiver: int, request: VoteRequest, granted: bool) -> Send:
    return Send(receiver, VoteReply(state.term, request.asked_at, request.preliminary, granted))


def _send_to_others(state: ElectionState, message: ElectionMessage) -> list[Send]:
    return [Send(other, message) for other in state.electorate.others]
