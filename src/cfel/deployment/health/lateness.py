"""How long an edge round waits for each device, and which devices are planned without because they are late.

A device that answered before gets a multiple of what it took, so a device that stops answering holds the
others up for about as long as it used to take, and not for the whole of `round_seconds`. After several
rounds without an update it is left out, and tried again ever less often. Whether a device is connected at all
is not decided here, see `presence`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from cfel.learning.device_messages import DeviceOrder

LATE_ROUNDS = 3
"""Rounds in a row without an update after which a device is left out."""
MOST_ROUNDS_OUT = 64
TIMES_USUAL = 3.0
"""A device gets this many times what it took at most lately, or what the others took in this round."""
TIMES_USUAL_IF_UNKNOWN = 10.0
"""The same for one that has never answered and has been late `LATE_ROUNDS` times."""
_REMEMBERED = 5


@dataclass(frozen=True, slots=True)
class _Taken:
    seconds: float
    rho: float
    theta: float

    def scale_to(self, order: DeviceOrder) -> float:
        """What an order would take if all the time went into the part that grew most."""
        if order.rho > 0 and not self.rho:
            return float("inf")
        return self.seconds * max(1.0, order.theta / self.theta, order.rho / self.rho if self.rho else 1.0)


class Lateness:
    """What devices of one edge server took, and how often they were late.

    Args:
        round_seconds: the longest a round may take.
        least_seconds: every device gets this long.
    """

    def __init__(self, round_seconds: float, least_seconds: float) -> None:
        self._round_seconds, self._least_seconds = round_seconds, least_seconds
        self._taken: dict[tuple[int, str], deque[_Taken]] = {}
        self._late: dict[int, int] = {}
        self._out_until: dict[int, int] = {}
        self._rounds = 0

    def find_deadline(
        self, device: int, kind: str, order: DeviceOrder, answered_seconds: Sequence[float]
    ) -> float:
        """Seconds that an order may take, from when the device got it.

        Args:
            device: who got it.
            kind: what it asks for, as times of different kinds are not compared.
            order: what it asks.
            answered_seconds: what the devices that have answered in this round took.
        """
        taken = self._taken.get((device, kind))
        usual = median(answered_seconds) if answered_seconds else 0.0
        if taken is not None:
            wanted = TIMES_USUAL * max(usual, *(each.scale_to(order) for each in taken))
        elif self._late.get(device, 0) >= LATE_ROUNDS and usual:
            wanted = TIMES_USUAL_IF_UNKNOWN * usual
        else:
            wanted = self._round_seconds
        return min(self._round_seconds, max(wanted, self._least_seconds))

    def note_answer(self, device: int, kind: str, order: DeviceOrder, seconds: float, *, late: bool) -> None:
        """Notes what an answer took; one that came too late says how long to wait the next time."""
        taken = self._taken.setdefault((device, kind), deque(maxlen=_REMEMBERED))
        taken.append(_Taken(seconds, order.rho, order.theta))
        if kind == "update" and not late:
            self._late.pop(device, None)
            self._out_until.pop(device, None)

    def note_missing(self, device: int) -> None:
        """Notes that a round ended without an answer of a device."""
        late = self._late[device] = self._late.get(device, 0) + 1
        if late >= LATE_ROUNDS:
            self._out_until[device] = self._rounds + min(2 ** (late - LATE_ROUNDS + 1), MOST_ROUNDS_OUT)

    def finish_round(self) -> None:
        """An edge round is over."""
        self._rounds += 1

    def is_left_out(self, device: int) -> bool:
        """Whether the next edge round is planned without it."""
        return self._rounds < self._out_until.get(device, 0)
