"""What a round under way waits for: devices that are there and whose time is not up yet.

How much time that is follows from what they took before (`lateness`). Orders and answers themselves are in
`edge.open_round`.
"""

from collections.abc import Callable, Iterable, Mapping

from cfel.deployment.health.lateness import Lateness
from cfel.deployment.health.presence import DevicePresence
from cfel.deployment.parameters import DeploymentParameters
from cfel.learning.device_messages import DeviceOrder


class RoundWaits:
    """The time of one round after the other.

    Args:
        presence: which devices are there.
        parameters: deadlines.
        now: a monotonic clock.
    """

    def __init__(
        self, presence: DevicePresence, parameters: DeploymentParameters, now: Callable[[], float]
    ) -> None:
        self._presence, self._now, self._round_seconds = presence, now, parameters.round_seconds
        # Emulated devices take the times of the fleet, which may differ a lot from round to round.
        least_seconds = parameters.round_seconds if parameters.time_scale else parameters.gone_seconds
        self._lateness = Lateness(parameters.round_seconds, least_seconds)
        self._kind, self._started_at = "", now()
        self._orders: Mapping[int, DeviceOrder] = {}
        self._taken: dict[int, float] = {}
        self._missing: set[int] = set()
        self._progress_at: dict[int, float] = {}

    def begin(self, kind: str, orders: Mapping[int, DeviceOrder]) -> None:
        """A round begins: devices can see their orders."""
        self._kind, self._orders, self._started_at = kind, orders, self._now()
        self._taken, self._missing, self._progress_at = {}, set(), {}

    def is_worth_waiting(self, waiting: Iterable[int]) -> bool:
        """Whether one of these devices may still answer."""
        # The deadline of the whole round holds even for devices that still make progress.
        in_time = self._now() < self._started_at + self._round_seconds
        return in_time and any(self._is_expected(device) for device in waiting)

    def _is_expected(self, device: int) -> bool:
        if self._presence.is_gone(device):
            return False
        taken = list(self._taken.values())
        seconds = self._lateness.find_deadline(device, self._kind, self._orders[device], taken)
        progress_at = self._progress_at.get(device, self._started_at)
        return self._now() < max(progress_at, self._presence.back_at(device)) + seconds

    def note_progress(self, device: int) -> None:
        """Notes that a device fetched or sent a part of a model: it gets its time again from now on."""
        self._progress_at[device] = self._now()

    def note_answer(self, device: int) -> None:
        """Notes that a device answered in time."""
        seconds = self._taken[device] = self._now() - self._started_at
        self._lateness.note_answer(device, self._kind, self._orders[device], seconds, late=False)

    def note_upload(self, device: int, sent: tuple[int, int]) -> None:
        """Notes a part of an upload of this round: progress, or that it came after its round has ended."""
        self.note_progress(device)
        if device not in self._missing or self._kind != "update":
            return
        order = self._orders[device]
        if sent == (order.global_round, order.edge_round):
            self._missing.discard(device)
            seconds = self._now() - self._started_at
            self._lateness.note_answer(device, self._kind, order, seconds, late=True)

    def end(self, waiting: Iterable[int]) -> None:
        """The round ends without an answer of these devices."""
        self._missing = set(waiting)
        for device in self._missing:
            self._lateness.note_missing(device)
        if self._kind == "update":
            self._lateness.finish_round()

    def is_left_out(self, device: int) -> bool:
        """Whether to plan without a device that was late again and again."""
        return self._lateness.is_left_out(device)
