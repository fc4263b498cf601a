"""Which devices of an edge server are there: connected, between two requests, or lost.

A device keeps a request open at nearly all times. Between two requests, and while its connection is opened
again, it is not connected for a moment; only after a grace period does it count as lost. What devices are
asked is up to `edge.device_service`.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LEAST_GRACE_SECONDS = 3.0
"""A device counts as lost after `gone_seconds`, but not sooner than this."""
DOUBLED_TIMES, DOUBLED_SECONDS = 3, 60.0
"""So many overlapping requests in so many seconds: a restart causes one, a second process many."""
# A device that was absent for longer lost its connection, or was restarted.
_BETWEEN_REQUESTS_SECONDS = 1.0

_LOG = logging.getLogger(__name__)


class DevicePresence:
    """The devices of one edge server.

    Args:
        devices: their numbers.
        gone_seconds: see `DeploymentParameters`.
        now: a monotonic clock.
    """

    def __init__(self, devices: tuple[int, ...], gone_seconds: float, now: Callable[[], float]) -> None:
        self._now, self._gone_seconds = now, gone_seconds
        self._open: dict[int, int] = dict.fromkeys(devices, 0)
        self._left_at: dict[int, float] = dict.fromkeys(devices, now())
        self._overlaps: dict[int, deque[float]] = {n: deque(maxlen=DOUBLED_TIMES) for n in devices}
        self._versions: dict[int, str] = {}
        self._back_at: dict[int, float] = dict.fromkeys(devices, now())

    def __contains__(self, device: int) -> bool:
        """Whether it is a device of this edge server."""
        return device in self._open

    @contextmanager
    def hold_request(self, device: int, version: str) -> Iterator[None]:
        """Counts a request as open until the context ends."""
        if self._silent_seconds(device) > _BETWEEN_REQUESTS_SECONDS:
            self._back_at[device] = self._now()
        self._open[device] += 1
        self._versions[device] = version
        if self._open[device] > 1:
            if not self._overlaps[device]:
                _LOG.warning("device %d has two open requests: it was restarted, or runs twice", device)
            self._overlaps[device].append(self._now())
        try:
            yield
        finally:
            self._open[device] -= 1
            self._left_at[device] = self._now()

    def list_connected(self) -> list[int]:
        """Devices with an open request."""
        return [device for device, count in self._open.items() if count]

    def back_at(self, device: int) -> float:
        """When it was last back after an absence: what it was doing then, it may have to begin again."""
        return self._back_at[device]

    def is_gone(self, device: int) -> bool:
        """Whether a round need not wait for it any more."""
        return self._silent_seconds(device) > self._gone_seconds

    def is_lost(self, device: int) -> bool:
        """Whether it has been silent for too long to be between two requests."""
        return self._silent_seconds(device) > max(self._gone_seconds, LEAST_GRACE_SECONDS)

    def is_doubled(self, device: int) -> bool:
        """Whether two processes seem to use its certificate."""
        times = self._overlaps[device]
        return len(times) == DOUBLED_TIMES and self._now() - times[0] < DOUBLED_SECONDS

    def version(self, device: int) -> str:
        """The version of cfel on the device; empty before it is known."""
        return self._versions.get(device, "")

    def _silent_seconds(self, device: int) -> float:
        return 0.0 if self._open[device] else self._now() - self._left_at[device]
