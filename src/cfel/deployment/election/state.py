"""What a member of the election remembers, sends, and asks of its driver.

Values only: `rules` is the state machine that uses them, `vote_file` stores a vote, `member` is the driver.
Instants and durations are seconds of a monotonic clock; every member has its own.
"""

import math
from dataclasses import dataclass
from enum import Enum

import msgspec

from cfel.errors import InputError

MOST_TERM = 2**53
"""Beyond any real run, and exact as a float; a larger term is forged or faulty."""

MOST_TERM_JUMP = 1000
"""A member that shows a term further beyond the newest known one is named."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a member waits for what; with the defaults a new leader follows within 2 s of a kill.

    Attributes:
        heartbeat_seconds: from one heartbeat of the leader to the next.
        contact_seconds: a leader steps down when no majority has answered it for this long.
        timeout_seconds: bounds of the silence after which a member asks for an election. Below the lower one
            it does not vote against the leader it heard. Must exceed `contact_seconds` by more than clocks
            drift apart, so that the old leader has stepped down before a new one can be elected.
        retry_seconds: bounds of the wait after an election without a winner.
    """

    heartbeat_seconds: float = 0.1
    contact_seconds: float = 0.6
    timeout_seconds: tuple[float, float] = (0.7, 1.1)
    retry_seconds: tuple[float, float] = (0.1, 0.4)

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
        _check_term(self.term)


@dataclass(frozen=True, slots=True)
class Raise:
    """Another member raised the term: who, when, by how much, and whether that ended a leadership."""

    sender: int
    at: float
    terms: int
    deposed: bool


class Role(Enum):
    """A member's current role."""

    FOLLOWER = "follower"
    PRECANDIDATE = "precandidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Electorate:
    """Who votes, seen by one member; the members are the same everywhere and for the whole run.

    Attributes:
        member: this member.
        members: everyone with a vote, in increasing order.
        timing: the waits.
    """

    member: int
    members: tuple[int, ...]
    timing: Timing

    def __post_init__(self) -> None:
        if list(self.members) != sorted(set(self.members)):
            raise InputError(f"members: must increase strictly, not {self.members}")
        if self.member not in self.members:
            raise InputError(f"member: {self.member} is not among the members {self.members}")

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
    """One member's state; only `vote` survives a crash.

    Attributes:
        electorate: who votes.
        vote: term and vote, on disk before any other member learns of them.
        role: this member's role.
        leader: who leads `vote.term`, if known.
        heard_at: when a leader was last heard, or when this member started.
        deadline: when to act without a message: a leader sends heartbeats, others ask for votes.
        asked_at: when the votes being counted were asked for; for a leader, when it was elected.
        granted: who has granted a vote so far.
        answered: for a leader, when the newest heartbeat that each member answered was sent.
        far_terms: members that showed a term beyond reach, and the newest such term of each.
        raises: the latest raises of the term by others (`raises`).
    """

    electorate: Electorate
    vote: Vote
    role: Role
    leader: int | None
    heard_at: float
    deadline: float
    asked_at: float
    granted: frozenset[int]
    answered: tuple[float, ...]
    far_terms: tuple[tuple[int, int], ...] = ()
    raises: tuple[Raise, ...] = ()

    @property
    def term(self) -> int:
        """The newest term known."""
        return self.vote.term


class VoteRequest(msgspec.Struct, frozen=True, tag=True):
    """Asks for a vote in `term`; a preliminary request binds nobody and changes no term.

    Attributes:
        term: the term that the sender wants to lead.
        asked_at: the sender's clock, returned unchanged in the reply.
        preliminary: whether this only asks if a real request would be granted.
    """

    term: int
    asked_at: float
    preliminary: bool

    def __post_init__(self) -> None:
        _check_term(self.term)
        _check_instant("asked_at", self.asked_at)
        _check_flag("preliminary", self.preliminary)


class VoteReply(msgspec.Struct, frozen=True, tag=True):
    """Answers a vote request; `term` is the voter's."""

    term: int
    asked_at: float
    preliminary: bool
    granted: bool

    def __post_init__(self) -> None:
        _check_term(self.term)
        _check_instant("asked_at", self.asked_at)
        _check_flag("preliminary", self.preliminary)
        _check_flag("granted", self.granted)


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """The leader of `term` is alive; `sent_at` is its clock, returned unchanged in the reply."""

    term: int
    sent_at: float

    def __post_init__(self) -> None:
        _check_term(self.term)
        _check_instant("sent_at", self.sent_at)


class HeartbeatReply(msgspec.Struct, frozen=True, tag=True):
    """Answers a heartbeat; `term` is that of the member who answers."""

    term: int
    sent_at: float

    def __post_init__(self) -> None:
        _check_term(self.term)
        _check_instant("sent_at", self.sent_at)


ElectionMessage = VoteRequest | VoteReply | Heartbeat | HeartbeatReply


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; due at `rules.next_tick_at`, harmless at any other time."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived; `sender` is authenticated by the transport, not claimed by the message."""

    sender: int
    message: ElectionMessage


@dataclass(frozen=True, slots=True)
class Resign:
    """This member cannot do the leader's work: it steps down and waits before it asks for votes again.

    Attributes:
        rest_seconds: how long it asks for no votes, so that another member is elected.
    """

    rest_seconds: float


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


def _check_term(term: object) -> None:
    if type(term) is not int or not 0 <= term <= MOST_TERM:
        raise InputError(f"term = {term!r}: must be a whole number from 0 to {MOST_TERM}")


def _check_instant(name: str, instant: object) -> None:
    if type(instant) not in (int, float) or not math.isfinite(instant):  # type: ignore[arg-type]
        raise InputError(f"{name} = {instant!r}: must be a finite number")


def _check_flag(name: str, flag: object) -> None:
    if type(flag) is not bool:
        raise InputError(f"{name} = {flag!r}: must be true or false")
