"""Who votes, and one member's part in it; the rules are in `election`."""

from dataclasses import dataclass
from enum import Enum

from cfel.deployment.election.messages import Ballot, Timing
from cfel.errors import InputError


class Role(Enum):
    """What a member is at the moment."""

    FOLLOWER = "follower"
    PRECANDIDATE = "precandidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Electorate:
    """Who votes, seen from one member; the same at every member for the whole of a run.

    Attributes:
        member: whose view this is.
        members: everybody with a vote, in rising order.
        timing: the waits.
    """

    member: int
    members: tuple[int, ...]
    timing: Timing

    def __post_init__(self) -> None:
        if list(self.members) != sorted(set(self.members)):
            raise InputError(f"members: must rise strictly, not {self.members}")
        if self.member not in self.members:
            raise InputError(f"member: {self.member} is not among the members {self.members}")

    @property
    def others(self) -> tuple[int, ...]:
        """Everybody else."""
        return tuple(member for member in self.members if member != self.member)

    @property
    def majority(self) -> int:
        """The smallest number of members of which any two groups share one."""
        return len(self.members) // 2 + 1


@dataclass(frozen=True, slots=True)
class ElectionState:
    """One member's part in the election; of it only `ballot` survives a crash.

    Attributes:
        electorate: who votes.
        ballot: term and vote, on disk before anybody hears of them.
        role: what this member is.
        leader: who leads `ballot.term`, as far as known.
        heard_at: when a leader was last heard, or this member started.
        deadline: when to do something unprompted: heartbeat as leader, ask for votes otherwise.
        asked_at: when the votes being counted were asked for; as leader, when it was elected.
        granted: who has granted a vote so far.
        answered: as leader, for each member the sending time of the newest heartbeat it answered.
    """

    electorate: Electorate
    ballot: Ballot
    role: Role
    leader: int | None
    heard_at: float
    deadline: float
    asked_at: float
    granted: frozenset[int]
    answered: tuple[float, ...]

    @property
    def term(self) -> int:
        """The newest term known."""
        return self.ballot.term
