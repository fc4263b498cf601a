"""How long a device waits before it asks its edge server again: ever longer, and not in step with others.

A device does not turn to another edge server: docs/protocol.md says why.
"""

import logging
from collections.abc import Callable

_LOG = logging.getLogger(__name__)
FIRST_SECONDS = 0.3
MOST_SECONDS = 5.0
GROWTH = 1.5
LOUD_SECONDS = 30.0
"""Silence of this length is worth a line in the log, and again each time it has doubled."""


class Backoff:
    """One way of asking.

    Args:
        whom: for the log.
        now: a clock that only runs forward.
        draw: a random number from [0, 1).
    """

    def __init__(self, whom: str, now: Callable[[], float], draw: Callable[[], float]) -> None:
        self._whom, self._now, self._draw = whom, now, draw
        self._wait, self._since, self._loud = FIRST_SECONDS, now(), LOUD_SECONDS

    def answered(self) -> None:
        """It was there: the next silence begins anew."""
        if self._loud > LOUD_SECONDS:
            _LOG.warning("%s answers again after %.0f s", self._whom, self._now() - self._since)
        self._wait, self._since, self._loud = FIRST_SECONDS, self._now(), LOUD_SECONDS

    def seconds(self) -> float:
        """How long to wait after one more call that nobody answered."""
        wait = self._wait * (0.5 + 0.5 * self._draw())
        self._wait = min(MOST_SECONDS, GROWTH * self._wait)
        silent = self._now() - self._since
        if silent >= self._loud:
            self._loud = 2 * silent
            _LOG.warning(
                "%s has not answered for %.0f s; a device stays with its edge server and goes on asking, "
                "at least every %.0f s",
                self._whom,
                silent,
                MOST_SECONDS,
            )
        return wait
