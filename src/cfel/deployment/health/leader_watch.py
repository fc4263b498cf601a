"""Whether a coordinator keeps its edge server waiting for longer than an honest one would.

A coordinator may be elected and then command nobody, or only some, or what nobody can carry out. All that an
edge server sees of it is that it does not get on, so that is what counts. What follows is up to
`edge.peer_monitor`. Values and a clock only.
"""

from collections import deque
from collections.abc import Callable, Hashable

WAIT_FACTOR = 5.0
"""A wait is too long if it takes so many times as long as the longest recent step."""
_RECENT_STEPS = 5
# A complaint of one edge server alone is followed once in so many election timeouts.
_COMPLAINT_TIMEOUTS = 100.0


class LeaderWatch:
    """Measures how long an edge server waits for its coordinator.

    Args:
        least_seconds: what it may have to wait at any time, for edge servers that are gone or slow.
        most_seconds: what an honest coordinator waits at most.
        now: a monotonic clock.
    """

    def __init__(self, least_seconds: float, most_seconds: float, now: Callable[[], float]) -> None:
        self._least_seconds, self._most_seconds, self._now = least_seconds, most_seconds, now
        self._durations: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._step: Hashable = None
        self._leader: Hashable = None
        self._step_at = self._waits_since = now()
        self._patience = 1.0

    def is_too_long(self, step: Hashable, leader: Hashable, *, is_idle: bool, others_work: bool) -> bool:
        """Whether it has waited too long for this coordinator, which is true once.

        Args:
            step: changes with every step of the edge server.
            leader: who leads, and the term; None without a leader, or where the edge server leads itself.
            is_idle: whether it has nothing to do, and nothing of its own keeps it from getting on.
            others_work: whether devices of other edge servers, apart from the leader's, are at work.
        """
        now = self._now()
        if step != self._step:
            # A step that took another coordinator to end says nothing about usual durations.
            if self._step is not None and self._patience == 1.0:
                self._durations.append(now - self._step_at)
            self._step, self._step_at, self._patience = step, now, 1.0
            self._waits_since = now
        if leader != self._leader or leader is None or not is_idle:
            self._leader, self._waits_since = leader, now
        if now - self._waits_since <= self._patience * self._find_limit(others_work=others_work):
            return False
        # Twice as long each time: whatever holds up all coordinators must not keep electing new ones.
        self._patience, self._waits_since = 2 * self._patience, now
        return True

    def _find_limit(self, *, others_work: bool) -> float:
        if others_work:
            return self._most_seconds
        usual = WAIT_FACTOR * max(self._durations, default=self._most_seconds)
        return min(max(self._least_seconds, usual), self._most_seconds)


class Complaints:
    """What other edge servers say about the coordinator: whether to stop following it, too.

    Two that complain are believed. One alone may lie, so it is believed only from time to time: it can cost
    the others an election now and then, and no coordinator can leave a single edge server out for good.

    Args:
        election_seconds: the silence after which a coordinator counts as dead.
        now: a monotonic clock.
    """

    def __init__(self, election_seconds: float, now: Callable[[], float]) -> None:
        self._rest_seconds, self._now = _COMPLAINT_TIMEOUTS * election_seconds, now
        self._followed_at: dict[int, float] = {}

    def are_believed(self, complaining: list[int]) -> bool:
        """Whether these edge servers, which follow the coordinator no longer, are believed."""
        if len(complaining) > 1:
            return True
        now = self._now()
        for number in complaining:
            if now - self._followed_at.get(number, -self._rest_seconds) >= self._rest_seconds:
                self._followed_at[number] = now
                return True
        return False
