"""How long a device waits before it calls its edge server again: longer each time, and out of step.

A device does not change to another edge server; docs/protocol.md says why.
"""

import logging
from collections.abc import Callable

_LOG = logging.getLogger(__name__)
FIRST_SECONDS = 0.3
MOST_SECONDS = 5.0
GROWTH = 1.5
LOUD_SECONDS = 30.0
"""A silence of this length is logged, and again each time it has doubled."""


class Backoff:
    """The waits between calls to one node.

    Args:
        whom: the node, for the log.
        now: a monotonic clock.
        draw: a random number from [0, 1).
    """

    def __init__(self, whom: str, now: Callable[[], float], draw: Callable[[], float]) -> None:
        self._whom, self._now, self._draw = whom, now, draw
        self._wait, self._since, self._loud = FIRST_SECONDS, now(), LOUD_SECONDS

    def reset(self) -> None:
        """It answered: the next wait is short again."""
        if self._loud > LOUD_SECONDS:
            _LOG.warning("%s answers again after %.0f s", self._whom, self._now() - self._since)
        self._wait, self._since, self._loud = FIRST_SECONDS, self._now(), LOUD_SECONDS

    @property
    def silent_seconds(self) -> float:
        """How long it has not answered."""
        return self._now() - self._since

    def next_seconds(self) -> float:
        """How long to wait after one more call without an answer."""
        # Random, so that devices that lost the same edge server do not come back at the same moment.
        wait = self._wait * (0.5 + 0.5 * self._draw())
        self._wait = min(MOST_SECONDS, GROWTH * self._wait)
        silent = self.silent_seconds
        if silent >= self._loud:
            self._loud = 2 * silent
            _LOG.warning(
                "%s has not answered for %.0f s; a device stays with its edge server and keeps asking, "
                "at least every %.0f s",
                self._whom,
                silent,
                MOST_SECONDS,
            )
        return wait
