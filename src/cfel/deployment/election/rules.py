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
at a time. Members belong to one operator and trust each other.

Instants and durations are seconds of a monotonic clock; every member has its own.
"""

import math
import sys
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated

import msgspec

from cfel.errors import InputError

MOST_TERM = 2**53
"""Beyond any real run, and exact as a float; a larger term is forged or faulty."""

MOST_TERM_JUMP = 1_000_000
"""More than this many elections nobody has missed: a term further beyond the newest known one is damaged."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a member waits for what; with the defaults a new leader follows within 2 s of a kill."""

    heartbeat_seconds: float = 0.2  # from one heartbeat of the leader to the next
    contact_seconds: float = 0.6  # a leader steps down when no majority has answered it for this long
    # Bounds of the silence after which a member asks for an election. Below the lower one it does not vote
    # against the leader it heard. Must exceed `contact_seconds` by more than clocks drift apart, so that the
    # old leader has stepped down before a new one can be elected.
    timeout_seconds: tuple[float, float] = (0.7, 1.1)
    retry_seconds: tuple[float, float] = (0.1, 0.4)  # bounds of the wait after an election without a winner

    def __post_init__(self) -> None:
        low, high = self.timeout_seconds
        if not 0 < self.heartbeat_seconds < self.contact_seconds < low <= high < math.inf:
            raise InputError(
                "election timing: needs 0 < heartbeat_seconds < contact_seconds < timeout_seconds[0] "
                f"<= timeout_seconds[1] < inf, not {self}"
            )
        if not 0 < self.retry_seconds[0] <= self.retry_seconds[1] < math.inf:
            raise InputError(
                f"election timing: retry_seconds must be 0 < low <= high, not {self.retry_seconds}"
            )


@dataclass(frozen=True, slots=True)
class Vote:
    """What a member must never forget: the newest term it knows, and its vote in that term."""

    term: int = 0
    voted_for: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.term <= MOST_TERM:
            raise InputError(f"term = {self.term!r}: must be a whole number from 0 to {MOST_TERM}")


class Role(Enum):
    """A member's current role."""

    FOLLOWER = "follower"
    PRECANDIDATE = "precandidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Electorate:
    """Who votes, seen by one member.

    Members come and go one at a time, and the next change waits until a majority of the members after this
    one knows of it. So two majorities, of electorates one change apart, share a member. One that knows of
    fewer changes than a majority gets no majority of votes, because a vote is not given to such a candidate.
    """

    member: int  # this member; without a vote if it is not among the members
    members: tuple[int, ...]  # everyone with a vote, in increasing order
    timing: Timing  # the waits
    changes: int = 0  # how often members have come or gone

    def __post_init__(self) -> None:
        if list(self.members) != sorted(set(self.members)):
            raise InputError(f"members: must increase strictly, not {self.members}")

    @property
    def has_vote(self) -> bool:
        """Whether this member may vote, and be elected."""
        return self.member in self.members

    @property
    def others(self) -> tuple[int, ...]:
        """All other members."""
        return tuple(member for member in self.members if member != self.member)

    @property
    def majority(self) -> int:
        """The smallest group size at which any two groups share a member."""
        return len(self.members) // 2 + 1


@dataclass(frozen=True, slots=True)
class ElectionState:
    """One member's state; only `vote` survives a crash."""

    electorate: Electorate  # who votes
    vote: Vote  # term and vote, on disk before any other member learns of them
    role: Role  # this member's role
    leader: int | None  # who leads `vote.term`, if known
    heard_at: float  # when a leader was last heard, or when this member started
    deadline: float  # when to act without a message: a leader sends heartbeats, others ask for votes
    asked_at: float  # when the votes being counted were asked for; for a leader, when it was elected
    granted: frozenset[int]  # who has granted a vote so far
    answered: tuple[float, ...]  # for a leader, when the newest heartbeat that each member answered was sent

    @property
    def term(self) -> int:
        """The newest term known."""
        return self.vote.term


_Term = Annotated[int, msgspec.Meta(ge=0, le=MOST_TERM)]
# A NaN fails every comparison, so these bounds also reject what is not finite.
_Instant = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]


class VoteRequest(msgspec.Struct, frozen=True, tag=True):
    """Asks for a vote in `term`; a preliminary request binds nobody and changes no term."""

    term: _Term  # the term that the sender wants to lead
    asked_at: _Instant  # the sender's clock, returned unchanged in the reply
    preliminary: bool  # whether this only asks if a real request would be granted
    changes: Annotated[int, msgspec.Meta(ge=0)] = 0  # of the electorate that the sender knows


class VoteReply(msgspec.Struct, frozen=True, tag=True):
    """Answers a vote request; `term` is the voter's."""

    term: _Term
    asked_at: _Instant
    preliminary: bool
    granted: bool


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """The leader of `term` is alive; `sent_at` is its clock, returned unchanged in the reply."""

    term: _Term
    sent_at: _Instant


class HeartbeatReply(msgspec.Struct, frozen=True, tag=True):
    """Answers a heartbeat; `term` is that of the member who answers."""

    term: _Term
    sent_at: _Instant


ElectionMessage = VoteRequest | VoteReply | Heartbeat | HeartbeatReply


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; due at `next_tick_at`, harmless at any other time."""

    is_late: bool = False  # whether this process was held up, so that it may not have read what others sent


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived; `sender` is authenticated by the transport, not claimed by the message."""

    sender: int
    message: ElectionMessage


@dataclass(frozen=True, slots=True)
class Resign:
    """This member cannot do the leader's work: it steps down and waits before it asks for votes again."""

    rest_seconds: float  # how long it asks for no votes, so that another member is elected


Event = Tick | Received | Resign


@dataclass(frozen=True, slots=True)
class Persist:
    """Store the vote on disk before carrying out any action that follows; stop if that fails."""

    vote: Vote


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message once; it may be lost, delayed, duplicated or reordered."""

    receiver: int
    message: ElectionMessage


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """The leader this member knows has changed: to itself, to another, or to None."""

    term: int
    leader: int | None


Action = Persist | Send | LeaderChanged


Transition = tuple[ElectionState, list[Send]]


def start(electorate: Electorate, vote: Vote, now: float, draw: float) -> ElectionState:
    """The state of a member that starts or restarts with the vote it last stored."""
    wait = _pick_between(electorate.timing.timeout_seconds, draw)
    return ElectionState(
        electorate=electorate,
        vote=vote,
        role=Role.FOLLOWER,
        leader=None,
        heard_at=now,
        deadline=now + wait,
        asked_at=now,
        granted=frozenset(),
        answered=(),
    )


def change_members(state: ElectionState, electorate: Electorate, now: float, draw: float) -> ElectionState:
    """The state of a member when others have come or gone; one that has left steps down."""
    if state.role is Role.LEADER and electorate.has_vote:
        answered = dict(zip(state.electorate.members, state.answered, strict=True))
        now_answered = tuple(answered.get(member, float("-inf")) for member in electorate.members)
        return replace(state, electorate=electorate, answered=now_answered)
    return replace(_become_follower(state, state.vote, now, draw), electorate=electorate, leader=state.leader)


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
        InputError: a message came from this member itself, or its term is out of reach.
    """
    match event:
        case Tick(is_late):
            after, sends = _on_late_tick(state, now, draw) if is_late else _on_tick(state, now, draw)
        case Resign(rest_seconds):
            after, sends = _resign(state, rest_seconds, now, draw), []
        case Received(sender, message):
            if sender == state.electorate.member:
                raise InputError(f"sender: {sender} is this member itself")
            if message.term > state.term + MOST_TERM_JUMP:
                raise InputError(f"term {message.term}: more than {MOST_TERM_JUMP} terms after {state.term}")
            after, sends = _on_message(state, sender, message, now, draw)
    return after, (*_list_changes(state, after), *sends)


def next_tick_at(state: ElectionState) -> float:
    """When the next tick is due."""
    if state.role is not Role.LEADER:
        return state.deadline
    return min(state.deadline, _lease_end(state))


def is_leading(state: ElectionState, now: float) -> bool:
    """Whether this member may act as leader now: it was elected, and a majority answered it recently.

    Ask before every action: a process that was suspended for a while still has the role, but may not act.
    """
    if state.role is not Role.LEADER:
        return False
    return now < _last_majority_contact(state) + state.electorate.timing.contact_seconds


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
    if state.role is Role.LEADER and now >= _lease_end(state):
        return _become_follower(state, state.vote, now, draw), []
    if now < state.deadline:
        return state, []
    if state.role is Role.LEADER:
        return _send_heartbeats(state, now)
    if not state.electorate.has_vote:
        return replace(state, deadline=now + _pick_between(state.electorate.timing.timeout_seconds, draw)), []
    return _become_precandidate(state, now, draw)


def _on_late_tick(state: ElectionState, now: float, draw: float) -> Transition:
    """What others sent meanwhile has not been read: this process has been silent, and not they.

    Neither rule holds for long. Others elect another leader, and where all processes are late all the time,
    somebody has to lead, too.
    """
    timing = state.electorate.timing
    if state.role is Role.LEADER and now < _last_sent_at(state) + timing.timeout_seconds[1]:
        # Heard again before the others ask for votes. Until they answer, `is_leading` is false.
        return _send_heartbeats(replace(state, asked_at=now), now)
    if state.role is not Role.LEADER and now < state.heard_at + 2 * timing.timeout_seconds[1]:
        return replace(state, deadline=now + timing.heartbeat_seconds), []
    return _on_tick(state, now, draw)


def _last_sent_at(state: ElectionState) -> float:
    """When a leader sent its last heartbeats."""
    return state.deadline - state.electorate.timing.heartbeat_seconds


def _resign(state: ElectionState, rest_seconds: float, now: float, draw: float) -> ElectionState:
    if state.role is not Role.LEADER:
        return state
    # A long deadline: another member times out and is elected first.
    return replace(_become_follower(state, state.vote, now, draw), deadline=now + rest_seconds)


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
        # A reply from a later term: this member missed an election. A follower has asked nothing, and hears
        # of new terms from candidates and leaders.
        case _ if message.term > state.term and state.role is not Role.FOLLOWER:
            return _catch_up(state, message.term, now, draw)
        case VoteReply():
            return _on_vote_reply(state, sender, message, now, draw)
        case HeartbeatReply():
            return _on_heartbeat_reply(state, sender, message, now), []


def _catch_up(state: ElectionState, term: int, now: float, draw: float) -> Transition:
    """Enters a later term that a reply has shown.

    A leader asks for votes in the one after it at once: those who follow it vote for it, so that the member
    that was ahead takes part again, and nobody is without a leader meanwhile.
    """
    entered = _become_follower(state, Vote(term), now, draw)
    return _become_candidate(entered, now, draw) if state.role is Role.LEADER else (entered, [])


def _become_precandidate(state: ElectionState, now: float, draw: float) -> Transition:
    """Asks whether a real request would be granted, without entering the next term."""
    asking = _ask_for_votes(state, Role.PRECANDIDATE, now, draw)
    request = VoteRequest(state.term + 1, now, preliminary=True, changes=state.electorate.changes)
    sends = _send_to_others(asking, request)
    return (asking, sends) if not _has_majority(asking) else _become_candidate(asking, now, draw)


def _become_candidate(state: ElectionState, now: float, draw: float) -> Transition:
    """Enters the next term, votes for itself and asks the others for their votes."""
    vote = Vote(state.term + 1, state.electorate.member)
    asking = replace(_ask_for_votes(state, Role.CANDIDATE, now, draw), vote=vote)
    request = VoteRequest(asking.term, now, preliminary=False, changes=state.electorate.changes)
    sends = _send_to_others(asking, request)
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


def _would_vote(state: ElectionState, sender: int, request: VoteRequest, now: float) -> bool:
    return request.term > state.term and _is_free(state, sender, request, now)


def _is_free(state: ElectionState, candidate: int, request: VoteRequest, now: float) -> bool:
    """Whether it may vote for a candidate: it hears no leader, of whatever term, or the candidate was it.

    One that knows of fewer changes of the electorate gets no vote: its majority may be none any more.
    """
    if not state.electorate.has_vote or request.changes < state.electorate.changes:
        return False
    return candidate == state.leader or not _hears_leader(state, now)


def _on_vote_request(
    state: ElectionState, sender: int, request: VoteRequest, now: float, draw: float
) -> Transition:
    is_free = _is_free(state, sender, request, now)
    if request.term > state.term and is_free:
        state = _become_follower(state, Vote(request.term), now, draw)
    voted_for = state.vote.voted_for
    # Repeats a vote given before.
    granted = request.term == state.term and (voted_for == sender or (voted_for is None and is_free))
    if granted and voted_for is None:
        # Gives the candidate time to win before this member asks for votes itself.
        wait = _pick_between(state.electorate.timing.retry_seconds, draw)
        state = replace(_become_follower(state, Vote(state.term, sender), now, draw), deadline=now + wait)
    return state, [_send_vote_reply(state, sender, request, granted)]


def _on_vote_reply(
    state: ElectionState, sender: int, reply: VoteReply, now: float, draw: float
) -> Transition:
    expected = Role.PRECANDIDATE if reply.preliminary else Role.CANDIDATE
    # `asked_at` tells replies to this request from replies to an earlier one.
    if state.role is not expected or reply.asked_at != state.asked_at or not reply.granted:
        return state, []
    if sender not in state.electorate.members:
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
    # A term has one leader, and one of a later term was elected by a majority that heard nobody.
    if heartbeat.term >= state.term:
        # Forgetting the vote of the same term would let this member vote twice in it.
        vote = state.vote if heartbeat.term == state.term else Vote(heartbeat.term)
        state = replace(_become_follower(state, vote, now, draw), leader=sender, heard_at=now)
    return state, [Send(sender, HeartbeatReply(state.term, heartbeat.sent_at))]


def _on_heartbeat_reply(
    state: ElectionState, sender: int, reply: HeartbeatReply, now: float
) -> ElectionState:
    if state.role is not Role.LEADER or reply.term != state.term:
        return state
    if sender not in state.electorate.members:
        return state
    place = state.electorate.members.index(sender)
    # A reply may arrive late or claim a time in the future; neither may move the lease wrongly.
    newest = max(state.answered[place], min(reply.sent_at, now))
    return replace(state, answered=(*state.answered[:place], newest, *state.answered[place + 1 :]))


def _send_vote_reply(state: ElectionState, receiver: int, request: VoteRequest, granted: bool) -> Send:
    return Send(receiver, VoteReply(state.term, request.asked_at, request.preliminary, granted))


def _send_to_others(state: ElectionState, message: ElectionMessage) -> list[Send]:
    return [Send(other, message) for other in state.electorate.others]


def _hears_leader(state: ElectionState, now: float) -> bool:
    """Whether a leader is alive as far as this member knows; also for a while after its own start."""
    if state.role is Role.LEADER:
        return now < _lease_end(state)
    return now < state.heard_at + state.electorate.timing.timeout_seconds[0]


def _lease_end(state: ElectionState) -> float:
    """When a leader must step down unless it is answered; a new leader first gets time for answers."""
    return max(_last_majority_contact(state), state.asked_at) + state.electorate.timing.contact_seconds


def _last_majority_contact(state: ElectionState) -> float:
    """The latest time since which a majority, including the leader, has answered."""
    others = sorted(state.answered, reverse=True)
    needed = state.electorate.majority - 1  # the leader counts itself
    # A single member is its own majority at any time.
    return others[needed - 1] if needed else float("inf")


def _become_follower(state: ElectionState, vote: Vote, now: float, draw: float) -> ElectionState:
    """A follower that knows no leader yet, and waits for one before it asks for votes."""
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
    """A member that has asked for votes, with its own."""
    return replace(
        state,
        role=role,
        leader=None,
        asked_at=now,
        deadline=now + _pick_between(state.electorate.timing.retry_seconds, draw),
        granted=frozenset({state.electorate.member}),
    )


def _has_majority(state: ElectionState) -> bool:
    """Whether enough votes were granted."""
    return len(state.granted) >= state.electorate.majority


def _pick_between(bounds: tuple[float, float], draw: float) -> float:
    """A wait within bounds."""
    return bounds[0] + (bounds[1] - bounds[0]) * draw
