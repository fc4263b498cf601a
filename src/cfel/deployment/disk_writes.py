"""Writes that are repeated until the disk takes them: a full disk stops a node for a while, and ends nothing.

A failure is logged once, and once more when everything is written again; in between it is the node's problem.
What is written, and that it is written in one step, is up to `durable`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from cfel.deployment.compute_thread import ComputeThread
from cfel.errors import DiskError

Result = TypeVar("Result")

FIRST_SECONDS = 0.5
MOST_SECONDS = 5.0
GROWTH = 2.0
STUCK_SECONDS = 10.0
"""A node whose disk fails for this long leaves the coordinator's role to another one."""

_LOG = logging.getLogger(__name__)


class DiskHealth:
    """Whether a node's disk takes what is written to it.

    Args:
        now: a monotonic clock.

    Attributes:
        problem: what could not be written, in words; empty if all was.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # What is written apart fails apart: there may be room for a vote, but none for a model.
        self._failing: set[str] = set()
        # Both start now, so that a fresh node is not stuck before its first write.
        self._since = self._worked_at = now()
        self.problem = ""

    @property
    def is_stuck(self) -> bool:
        """Whether something failed and nothing was written for long."""
        return bool(self._failing) and self._now() - max(self._since, self._worked_at) > STUCK_SECONDS

    def note_failure(self, what: str, error: DiskError) -> None:
        """Something was not written."""
        if not self._failing:
            self._since = self._now()
            self.problem = f"{error} (this node tries again by itself)"
            _LOG.error("%s", self.problem)
        self._failing.add(what)

    def note_success(self, what: str) -> None:
        """Something was written."""
        self._worked_at = self._now()
        if what not in self._failing:
            return
        self._failing.remove(what)
        if not self._failing:
            self.problem = ""
            _LOG.warning("the disk takes writes again after %.0f s", self._now() - self._since)


class DiskWrites:
    """What one node writes to its disk.

    Args:
        compute: where files are written.
        health: where failures are noted.
    """

    def __init__(self, compute: ComputeThread, health: DiskHealth) -> None:
        self._compute, self._health = compute, health

    @property
    def is_stuck(self) -> bool:
        """Whether nothing can be written, and has not been for long."""
        return self._health.is_stuck

    async def write(self, what: str, function: Callable[[], Result]) -> Result:
        """Writes off the event loop, again and again until it works.

        Args:
            what: names what is written.
            function: writes it; may be called again after it raised a `DiskError`.
        """
        waits = wait_longer()
        while True:
            try:
                result = await self._compute.run(function)
            except DiskError as error:
                self._health.note_failure(what, error)
                await asyncio.sleep(next(waits))
                continue
            self._health.note_success(what)
            return result


def wait_longer() -> Iterator[float]:
    """Seconds to wait after each failure, without end."""
    seconds = FIRST_SECONDS
    while True:
        yield seconds
        seconds = min(GROWTH * seconds, MOST_SECONDS)
