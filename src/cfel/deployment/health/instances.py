"""Which process speaks for an edge server: two that use the same certificate take turns.

Each process of an edge server draws an `instance` when it starts. A restart brings a new one, and the old one
is never seen again; two processes at the same time bring theirs back again and again. This module only
notices that; which of the two is meant to run, an operator has to know.
"""

from collections import deque
from collections.abc import Callable

from cfel.deployment.health.presence import DOUBLED_SECONDS, DOUBLED_TIMES

_MOST_REMEMBERED = 8


class InstanceWatch:
    """The instances of other edge servers.

    Args:
        now: a monotonic clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # Newest last; bounded, as a faulty edge server may send any number of them.
        self._seen: dict[int, deque[str]] = {}
        self._returns: dict[int, deque[float]] = {}

    def note(self, number: int, instance: str) -> None:
        """Notes that a process spoke for an edge server; an empty instance says nothing."""
        seen = self._seen.setdefault(number, deque(maxlen=_MOST_REMEMBERED))
        if not instance or (seen and seen[-1] == instance):
            return
        if instance in seen:
            seen.remove(instance)
            self._returns.setdefault(number, deque(maxlen=DOUBLED_TIMES)).append(self._now())
        seen.append(instance)

    def is_doubled(self, number: int) -> bool:
        """Whether two processes seem to use an edge server's certificate."""
        times = self._returns.get(number)
        return times is not None and len(times) == DOUBLED_TIMES and self._now() - times[0] < DOUBLED_SECONDS

    def find_doubled(self) -> list[int]:
        """The edge servers that seem to run twice."""
        return sorted(number for number in self._returns if self.is_doubled(number))
