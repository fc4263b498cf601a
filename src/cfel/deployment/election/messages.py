"""The words of an election: what is remembered, what is sent, what is asked of the driver.

Values only; the rules that use them are in `election`, their bytes on the disk in `votes`.
Instants and durations are seconds of a clock that only runs forward, each member's its own.
"""

import math
from dataclasses import dataclass

from cfel.errors import InputError

MOST_TERM = 2**53
"""Far beyond any run, and exact wherever numbers are kept; a larger term is a forgery or a fault."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a member waits for what; the defaults put a new leader in place within 2 s of a kill.

    Attributes:
        heartbeat_seconds: from one heartbeat of the leader to the next.
        contact_seconds: a leader that no majority has answered for this long steps down.
        timeout_seconds: bounds of the silence after which a member asks for an election; within the lower one
            it refuses to vote against the leader it heard. Longer than `contact_seconds` by more than clocks
            drift apart, so that the old leader is out of office before a new one can be voted in.
        retry_seconds: bounds of the wait after an election that nobody won.
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
class Ballot:
    """All that a member must never forget: the newest term it knows, and whom it voted for in it."""

    term: int = 0
    voted_for: int | None = None

    def __post_init__(self) -> None:
        _checked_term(self.term)


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """Asks for a vote in `term`; a preliminary one binds nobody and changes no term.

    Attributes:
        term: the term that the sender wants to lead.
        asked_at: the sender's clock, to be given back unchanged.
        preliminary: whether this only sounds out if a real request would be granted.
    """

    term: int
    asked_at: float
    preliminary: bool

    def __post_init__(self) -> None:
        _checked_term(self.term)
        _checked_instant("asked_at", self.asked_at)
        _checked_flag("preliminary", self.preliminary)


@dataclass(frozen=True, slots=True)
class VoteReply:
    """Answers a vote request; `term` is the voter's own."""

    term: int
    asked_at: float
    preliminary: bool
    granted: bool

    def __post_init__(self) -> None:
        _checked_term(self.term)
        _checked_instant("asked_at", self.asked_at)
        _checked_flag("preliminary", self.preliminary)
        _checked_flag("granted", self.granted)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The leader of `term` is alive; `sent_at` is its clock, to be given back unchanged."""

    term: int
    sent_at: float

    def __post_init__(self) -> None:
        _checked_term(self.term)
        _checked_instant("sent_at", self.sent_at)


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Answers a heartbeat; `term` is the answering member's own."""

    term: int
    sent_at: float

    def __post_init__(self) -> None:
        _checked_term(self.term)
        _checked_instant("sent_at", self.sent_at)


Message = VoteRequest | VoteReply | Heartbeat | HeartbeatReply


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; due at `election.wakes_at`, harmless at any other time."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message came; `sender` is who the transport proved it to be, never what the message claims."""

    sender: int
    message: Message


@dataclass(frozen=True, slots=True)
class Resign:
    """This member cannot do the leader's work: it steps down, and rests before it stands again.

    Attributes:
        rest_seconds: how long it asks for no votes, so that somebody else is elected.
    """

    rest_seconds: float


Event = Tick | Received | Resign


@dataclass(frozen=True, slots=True)
class Persist:
    """Make the ballot durable before any action that follows is carried out; if that fails, stop."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message once; it may be lost, late, doubled or overtaken."""

    receiver: int
    message: Message


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """From now on `leader` leads as far as this member knows: itself, another, or nobody known."""

    term: int
    leader: int | None


Action = Persist | Send | LeaderChanged


def _checked_term(term: object) -> None:
    if type(term) is not int or not 0 <= term <= MOST_TERM:
        raise InputError(f"term = {term!r}: must be a whole number from 0 to {MOST_TERM}")


def _checked_instant(name: str, instant: object) -> None:
    if type(instant) not in (int, float) or not math.isfinite(instant):  # type: ignore[arg-type]
        raise InputError(f"{name} = {instant!r}: must be a finite number")


def _checked_flag(name: str, flag: object) -> None:
    if type(flag) is not bool:
        raise InputError(f"{name} = {flag!r}: must be true or false")
