"""What is wrong with a federation, in words; empty words where nothing is.

Each text stays the same while its problem lasts, as every change is logged. Where the facts come from is up
to `edge.peer_monitor`.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

NO_MAJORITY = "no majority"
LEAST_STALL_SECONDS = 30.0
"""A run without progress for this long is stalled, unless its steps usually take long."""
STALL_FACTOR = 3.0
"""A run is stalled if a step takes so many times as long as the longest recent one."""
_RECENT_STEPS = 20
_MOST_LISTED = 8


@dataclass(frozen=True, slots=True)
class InTouch:
    """Which edge servers are in touch.

    Attributes:
        members: how many there are.
        majority: how many are needed to elect a coordinator.
        lost: those that have been silent for long.
    """

    members: int
    majority: int
    lost: tuple[int, ...]

    @property
    def has_majority(self) -> bool:
        """Whether a coordinator can be elected."""
        return self.members - len(self.lost) >= self.majority

    def describe(self) -> str:
        """What is wrong."""
        silent = list_nodes("edge", self.lost)
        if not self.has_majority:
            there = self.members - len(self.lost)
            return (
                f"{NO_MAJORITY}: {there} of {self.members} edge servers are in touch, {self.majority} are "
                f"needed; nothing is lost, the run continues when enough of {silent} are back"
            )
        return f"not in touch: {silent}; the others continue without" if self.lost else ""


def describe_unreachable(numbers: Sequence[int]) -> str:
    """What is wrong with edge servers that call this one, but do not answer it."""
    if not numbers:
        return ""
    return f"not reachable, though in touch: {list_nodes('edge', numbers)}; check address and firewall"


class Absence:
    """Something that may be missing for a while before it is a problem.

    Args:
        seconds: how long.
        words: what is wrong then.
        now: a monotonic clock.
    """

    def __init__(self, seconds: float, words: str, now: Callable[[], float]) -> None:
        self._seconds, self._words, self._now = seconds, words, now
        self._there_at = now()

    def describe(self, *, is_there: bool) -> str:
        """What is wrong."""
        if is_there:
            self._there_at = self._now()
        return self._words if self._now() - self._there_at > self._seconds else ""


class Stall:
    """Notices that a run makes no progress, whatever the reason.

    Args:
        now: a monotonic clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._step: Hashable = None
        # Durations by the monotonic clock, the time of day only for the message.
        self._started_at, self._started_clock = now(), datetime.now(UTC)
        self._durations: deque[float] = deque(maxlen=_RECENT_STEPS)

    def describe(self, step: Hashable, words: str, waited_for: Sequence[int]) -> str:
        """What is wrong.

        Args:
            step: changes with every step of the run.
            words: what the edge server is doing.
            waited_for: devices that it waits for.
        """
        now = self._now()
        if step != self._step:
            if self._step is not None:
                self._durations.append(now - self._started_at)
            self._step, self._started_at, self._started_clock = step, now, datetime.now(UTC)
        usual = STALL_FACTOR * max(self._durations, default=0.0)
        if now - self._started_at <= max(LEAST_STALL_SECONDS, usual):
            return ""
        devices = f", waits for {list_nodes('device', waited_for)}" if waited_for else ""
        return f"no progress since {self._started_clock:%H:%M:%S} UTC: {words}{devices}"


def list_nodes(role: str, numbers: Sequence[int]) -> str:
    """Nodes by name, not too many: "device-1, device-2 and 30 more"."""
    names = ", ".join(f"{role}-{number}" for number in numbers[:_MOST_LISTED])
    left = len(numbers) - _MOST_LISTED
    return f"{names} and {left} more" if left > 0 else names
