"""How a federation is doing, as one edge server sees it: who is there, who is late, and what is wrong.

Values and clocks only. Who is asked when, and what follows, is up to `edge.monitor` and `edge.devices`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any, Literal

from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.protocol.calls import AnyRequest, Endpoint
from cfel.deployment.security.identity import Identity
from cfel.learning.device_messages import DeviceOrder

_LOG = logging.getLogger(__name__)
# All in intervals at which the others are asked: when one counts as suspect, and as lost,
_ALIVE, _LOST = 2.5, 5.0
# and how long one must be silent at least until the others continue without it.
_LEAST_GONE = 2.0


class PeerContacts:
    """When each other edge server was last heard of, in whatever call, and when it last answered.

    Args:
        interval_seconds: how often each of them is asked for a sign of life.
    """

    def __init__(self, others: Iterable[int], interval_seconds: float, now: Callable[[], float]) -> None:
        self.interval_seconds, self._now = interval_seconds, now
        self._started_at = now()
        self._heard_at: dict[int, float | None] = dict.fromkeys(others)
        self._answered_at = dict.fromkeys(self._heard_at, self._started_at)
        # Since when each has been in touch without a break.
        self._there_since = dict.fromkeys(self._heard_at, self._started_at)

    def change_others(self, others: Iterable[int]) -> None:
        """The other edge servers from now on."""
        wanted = set(others)
        for number in wanted - self._heard_at.keys():
            self._heard_at[number] = None
            self._answered_at[number] = self._there_since[number] = self._now()
        for number in self._heard_at.keys() - wanted:
            del self._heard_at[number], self._answered_at[number], self._there_since[number]

    def note(self, node: Identity) -> None:
        """Notes a sign of life."""
        if node.role == "edge" and node.number in self._heard_at:
            if self.state(node.number) != "alive":
                self._there_since[node.number] = self._now()
            self._heard_at[node.number] = self._now()

    def note_answer(self, node: Identity) -> None:
        """Notes that an edge server can be reached, which is more than a sign of life."""
        self.note(node)
        if node.role == "edge" and node.number in self._answered_at:
            self._answered_at[node.number] = self._now()

    def state(self, number: int) -> str:
        """One of `cfel.status.EDGE_STATES`; suspect, too, until it is heard of for the first time."""
        if number not in self._heard_at:
            return "alive"
        at = self._heard_at[number]
        silence = self._silence(number) / self.interval_seconds
        if silence > _LOST:
            return "lost"
        return "alive" if at is not None and silence <= _ALIVE else "suspect"

    def is_gone(self, number: int, gone_seconds: float) -> bool:
        """Whether the others should continue without an edge server: it answers no calls.

        Its own calls do not count. One behind a firewall may greet the others, but carries out no command.
        """
        if number not in self._answered_at:
            return False
        # One that was asked only twice since it last answered may just have been slow.
        most = max(gone_seconds, _LEAST_GONE * self.interval_seconds)
        return self._now() - self._answered_at[number] > most

    def find_unreachable(self) -> list[int]:
        """Edge servers that call, but have not answered for long."""
        # One that has just been started calls before it is asked for the first time.
        since = self._now() - _LOST * self.interval_seconds
        alive = [i for i in self._answered_at if self.state(i) == "alive"]
        return [i for i in alive if max(self._answered_at[i], self._there_since[i]) < since]

    def _silence(self, number: int) -> float:
        at = self._heard_at[number]
        return self._now() - (max(self._started_at, self._there_since[number]) if at is None else at)

    def find_lost(self) -> list[int]:
        """Edge servers that have been silent for long."""
        return [number for number in self._heard_at if self.state(number) == "lost"]

    def watch_endpoint(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint where each call is a sign of life of its caller."""

        async def handle(caller: Identity, request: AnyRequest) -> Any:  # noqa: ANN401 — any answer
            self.note(caller)
            return await endpoint.handle(caller, request)

        return replace(endpoint, handle=handle)


LEAST_GRACE_SECONDS = 3.0
"""A device counts as lost after `gone_seconds`, but not sooner than this."""
DOUBLED_TIMES, DOUBLED_SECONDS = 3, 60.0
"""So many overlapping requests in so many seconds: a restart causes one, a second process many."""
APPLICANT_PATIENCE_SECONDS = 60.0
"""A device that asks for orders for so long and is no member has been forgotten."""
MISSED_SECONDS = 60.0
"""A device that has been silent for so long is reported: it does not just change its place or its battery."""
# One that asks comes back at least this often.
_APPLICANT_SECONDS = 10.0
# A device that was absent for longer lost its connection, or was restarted.
_BETWEEN_REQUESTS_SECONDS = 1.0


class DevicePresence:
    """Which devices of an edge server are there: connected, between two requests, or lost.

    A device keeps a request open at nearly all times. Between two requests, and while its connection is
    opened again, it is not connected for a moment; only after a grace period does it count as lost.

    Args:
        gone_seconds: see `DeploymentParameters`.
    """

    def __init__(self, devices: tuple[int, ...], gone_seconds: float, now: Callable[[], float]) -> None:
        self._now, self._gone_seconds = now, gone_seconds
        self._members = frozenset(devices)
        self._open: dict[int, int] = dict.fromkeys(devices, 0)
        self._left_at: dict[int, float] = dict.fromkeys(devices, now())
        self._overlaps: dict[int, deque[float]] = {n: deque(maxlen=DOUBLED_TIMES) for n in devices}
        self._versions: dict[int, str] = {}
        self._back_at: dict[int, float] = dict.fromkeys(devices, now())

    def change_devices(self, devices: Iterable[int]) -> None:
        """The devices of this edge server from now on; one that comes back is as new as any other."""
        before, self._members = self._members, frozenset(devices)
        for device in self._members - before:
            self._open.setdefault(device, 0)
            self._left_at[device] = self._back_at[device] = self._now()
            self._overlaps[device] = deque(maxlen=DOUBLED_TIMES)

    def __contains__(self, device: int) -> bool:
        """Whether it is a device of this edge server."""
        return device in self._members

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
        return [device for device, count in self._open.items() if count and device in self._members]

    def back_at(self, device: int) -> float:
        """When it was last back after an absence: what it was doing then, it may have to begin again."""
        return self._back_at[device]

    def is_gone(self, device: int) -> bool:
        """Whether a round need not wait for it any more."""
        return self._silent_seconds(device) > self._gone_seconds

    def is_lost(self, device: int) -> bool:
        """Whether it has been silent for too long to be between two requests."""
        return self._silent_seconds(device) > max(self._gone_seconds, LEAST_GRACE_SECONDS)

    def list_missed(self) -> list[int]:
        """Devices that have been silent for so long that somebody should look."""
        limit = max(self._gone_seconds, MISSED_SECONDS)
        return sorted(device for device in self._members if self._silent_seconds(device) > limit)

    def is_doubled(self, device: int) -> bool:
        """Whether two processes seem to use its certificate."""
        times = self._overlaps[device]
        return len(times) == DOUBLED_TIMES and self._now() - times[0] < DOUBLED_SECONDS

    def version(self, device: int) -> str:
        """The version of cfel on the device; empty before it is known."""
        return self._versions.get(device, "")

    def _silent_seconds(self, device: int) -> float:
        return 0.0 if self._open[device] else self._now() - self._left_at[device]


class Applicants:
    """Devices that ask for orders and are no members of the fleet: somebody has to add them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # When each was first and last heard of.
        self._seen: dict[int, tuple[float, float]] = {}

    def note(self, device: int) -> None:
        """Notes that it asks."""
        now = self._now()
        self._seen[device] = self._seen.get(device, (now, now))[0], now

    def forget(self, members: Collection[int]) -> None:
        """These belong to the fleet."""
        self._seen = {device: seen for device, seen in self._seen.items() if device not in members}

    def list(self) -> list[int]:
        """Those that were heard of lately."""
        oldest = self._now() - _APPLICANT_SECONDS
        return sorted(device for device, (_, last) in self._seen.items() if last >= oldest)

    @property
    def problem(self) -> str:
        """Who has asked for a while and was not added, and what to do; empty if nobody has."""
        since = self._now() - APPLICANT_PATIENCE_SECONDS
        waiting = [device for device in self.list() if self._seen[device][0] < since]
        if not waiting:
            return ""
        names, numbers = list_nodes("device", waiting), " ".join(map(str, waiting[:_MOST_LISTED]))
        return f"not in the fleet: {names}; `cfel fleet add device {numbers} --edge N` adds them"


_MOST_REMEMBERED = 8


class InstanceWatch:
    """Which process speaks for an edge server: two that use the same certificate take turns.

    Each process draws an `instance` when it starts. A restart brings a new one, and the old one is never seen
    again; two processes at the same time bring theirs back again and again.
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

    A device that answered before gets a multiple of what it took, so one that stops answering holds the
    others up for about as long as it used to take. After several rounds without an update it is left out, and
    tried again ever less often.

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


class RoundWaits:
    """The time of one round after the other.

    Args:
        presence: which devices are there.
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


NO_MAJORITY = "no majority"
LEAST_STALL_SECONDS = 30.0
"""A run without progress for this long is stalled, unless its steps usually take long."""
STALL_FACTOR = 3.0
"""A run is stalled if a step takes so many times as long as the longest recent one."""
_RECENT_STEPS = 20
_MOST_LISTED = 8


@dataclass(frozen=True, slots=True)
class InTouch:
    """Which edge servers are in touch."""

    members: int  # how many there are
    majority: int  # how many are needed to elect a coordinator
    lost: tuple[int, ...]  # those that have been silent for long

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
        if not self.lost:
            return ""
        remove = f"`cfel fleet remove edge {self.lost[0]}`"
        return f"not in touch: {silent}; the others continue without; if it is gone for good, {remove}"


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
        time_of_day: seconds since 1970, for the message.
    """

    def __init__(self, now: Callable[[], float], time_of_day: Callable[[], float]) -> None:
        self._now, self._time_of_day = now, time_of_day
        self._step: Hashable = None
        self._started_at, self._started_clock = now(), time_of_day()
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
            self._step, self._started_at, self._started_clock = step, now, self._time_of_day()
        usual = STALL_FACTOR * max(self._durations, default=0.0)
        if now - self._started_at <= max(LEAST_STALL_SECONDS, usual):
            return ""
        devices = f", waits for {list_nodes('device', waited_for)}" if waited_for else ""
        since = datetime.fromtimestamp(self._started_clock, UTC)
        return f"no progress since {since:%H:%M:%S} UTC: {words}{devices}"


def list_nodes(role: str, numbers: Sequence[int]) -> str:
    """Nodes by name, not too many: "device-1, device-2 and 30 more"."""
    names = ", ".join(f"{role}-{number}" for number in numbers[:_MOST_LISTED])
    left = len(numbers) - _MOST_LISTED
    return f"{names} and {left} more" if left > 0 else names


SHOWN_SECONDS = 300.0
"""How long a fault is shown after it was last seen."""

Fault = Literal["model", "command", "answer"]


class PeerFaults:
    """What other edge servers did wrong: invalid models and answers, and commands that they may not send.

    An edge server continues without what was wrong; an operator learns of it here. Each text stays the same
    while its problem lasts, as every change is logged.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seen: dict[tuple[int, Fault], tuple[float, str]] = {}

    def note(self, number: int, fault: Fault, what: str) -> None:
        """Notes what an edge server did wrong; the newest fault of each kind is shown."""
        text = f"edge-{number} {what}"
        if text not in self._list_recent():
            _LOG.warning("%s", text)
        self._seen[number, fault] = self._now(), text

    def clear(self, number: int, fault: Fault) -> None:
        """It has done this right since."""
        self._seen.pop((number, fault), None)

    @property
    def problem(self) -> str:
        """Recent faults in words; empty if there are none."""
        return "; ".join(self._list_recent())

    def _list_recent(self) -> list[str]:
        oldest = self._now() - SHOWN_SECONDS
        return [text for _, (at, text) in sorted(self._seen.items()) if at >= oldest]


class ChangeSignal:
    """A condition without a value."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()

    async def notify(self) -> None:
        """Wakes all that wait."""
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, seconds: float) -> None:
        """Returns at the next change, or when the time is up."""
        async with self._changed:
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                return
