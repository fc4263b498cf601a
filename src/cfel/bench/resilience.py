"""`cfel bench resilience`: what faults cost a federation of real processes.

    slow_link     a device on 200 kbit/s and 500 ms, with a model of 1 MB: does it take part in every round?
    gone          an edge server is killed for good: how many seconds do the others lose, once?
    coordinator   the coordinator is killed again and again: how long is there none?

All processes run on one machine: three edge servers with two devices each. The kernel shapes the slow link
where it can (`shaped_namespace`), and a relay in user space adds its delay; otherwise the relay does both.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cfel.bench.federations import CLUSTERS, build_kill_experiment, build_slow_link_experiment
from cfel.bench.link_shaper import Link
from cfel.bench.live_federation import LiveFederation, Looks, start_federation
from cfel.bench.shaped_namespace import find_missing
from cfel.deployment.payloads import model_size

MOBILE = Link(200_000, delay_seconds=0.25)
ROUND_SECONDS = 60.0
MAX_BEYOND_GONE = 3.0
MAX_MEDIAN_VACANCY = 1.0
MAX_VACANCY = 2.0
# Rounds before the kill, which show how long a round usually takes, and after it.
_ROUNDS_BEFORE, _ROUNDS_AFTER = 6, 8
_SLOW_DEVICE = 0
_POLL_SECONDS = 0.05
_KERNEL = "the kernel: tbf at both ends of a network namespace's cable; the delay by a relay in user space"


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A device behind a slow link.

    Attributes:
        model_bytes: size of the model.
        carried_bytes: what the link carried per round, in both directions together.
        link_seconds: how long the link needs for these bytes alone.
        deadline_seconds: `round_seconds` of the deployment.
        round_seconds: how long each round took.
        took_part: for each round, whether the device did.
        shaper: what made the link slow, in words.
    """

    model_bytes: int
    carried_bytes: float
    link_seconds: float
    deadline_seconds: float
    round_seconds: tuple[float, ...]
    took_part: tuple[bool, ...]
    shaper: str


@dataclass(frozen=True, slots=True)
class GoneServer:
    """An edge server that was killed for good.

    Attributes:
        coordinated: whether it was the coordinator.
        gone_seconds: as in the deployment.
        usual_seconds: median duration of a round before.
        lost_seconds: by how much later rounds took longer than usual, all together.
        longest_seconds: the longest of these rounds.
    """

    coordinated: bool
    gone_seconds: float
    usual_seconds: float
    lost_seconds: float
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class Vacancies:
    """How long there was no coordinator, after each kill."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of all kills."""
        return statistics.median(self.seconds)

    @property
    def longest(self) -> float:
        """The maximum of all kills."""
        return max(self.seconds)


async def measure_slow_link(rounds: int) -> SlowLink:
    """Runs a federation in which one device has a slow link."""
    experiment = build_slow_link_experiment(rounds, ROUND_SECONDS)
    world = experiment.build_world()
    edge = int(world.setting.fleet.cluster[_SLOW_DEVICE])
    missing = find_missing()
    links = {_SLOW_DEVICE: MOBILE}
    async with start_federation(experiment, world, links, in_kernel=not missing) as federation:
        while len(records := federation.read_records(edge)) < rounds:
            await asyncio.sleep(_POLL_SECONDS)
        took_part = [_SLOW_DEVICE in federation.took_part(edge, record.round) for record in records]
        carried_bytes = federation.relays[_SLOW_DEVICE].carried_bytes / rounds
    return SlowLink(
        model_bytes=model_size(world.start),
        carried_bytes=carried_bytes,
        link_seconds=8 * carried_bytes / MOBILE.bits_per_second,
        deadline_seconds=ROUND_SECONDS,
        round_seconds=tuple(record.wall_seconds for record in records),
        took_part=tuple(took_part),
        shaper=f"a relay in user space (the kernel's needs {missing})" if missing else _KERNEL,
    )


async def measure_gone(*, coordinated: bool) -> GoneServer:
    """Kills an edge server for good, and measures how much longer rounds take from then on.

    Args:
        coordinated: whether to kill the coordinator, or another one.
    """
    experiment = build_kill_experiment()
    async with start_federation(experiment, experiment.build_world()) as federation:
        leader = None
        # A coordinator that is replaced meanwhile would spoil the comparison.
        while leader is None or leader != await _wait_for_leader(federation):
            leader = await _wait_for_leader(federation)
            watch = _RoundWatch(federation, (leader + 2) % CLUSTERS)
            before = await watch.time_rounds(_ROUNDS_BEFORE)
        killed = leader if coordinated else (leader + 1) % CLUSTERS
        await federation.kill(f"edge-{killed}")
        after = await watch.time_rounds(_ROUNDS_AFTER)
    return compute_loss(before, after, experiment.deployment.gone_seconds, coordinated)


async def _wait_for_leader(federation: LiveFederation) -> int:
    looks = await federation.look_until("all edge servers agree on a coordinator", _is_settled)
    return _find_leader(looks)


class _RoundWatch:
    """Takes the time from each new line in an edge server's log to the next.

    Records have a duration, too, but it leaves out what a successor waits before it repeats the last step.
    """

    def __init__(self, federation: LiveFederation, edge: int) -> None:
        self._federation, self._edge = federation, edge
        self._seen, self._seen_at = len(federation.read_records(edge)), time.monotonic()

    async def time_rounds(self, rounds: int) -> list[float]:
        """The durations of the next rounds."""
        found: list[float] = []
        while len(found) < rounds:
            await asyncio.sleep(_POLL_SECONDS)
            logged, now = len(self._federation.read_records(self._edge)), time.monotonic()
            if logged > self._seen:
                found += [(now - self._seen_at) / (logged - self._seen)] * (logged - self._seen)
                self._seen, self._seen_at = logged, now
        return found


def compute_loss(
    before: Sequence[float], after: Sequence[float], gone_seconds: float, coordinated: bool
) -> GoneServer:
    """What a kill cost, from the durations of the rounds before it and from it on."""
    usual = statistics.median(before)
    lost = sum(max(0.0, seconds - usual) for seconds in after)
    return GoneServer(coordinated, gone_seconds, usual, lost, max(after))


async def measure_vacancies(kills: int, on_kill: Callable[[int], None] = lambda _: None) -> Vacancies:
    """Kills the coordinator again and again, at any moment of a round; each is back before the next kill.

    Args:
        kills: how often.
        on_kill: called with the number of each.
    """
    experiment = build_kill_experiment()
    chance = random.Random(0)  # noqa: S311 — when to kill is no secret
    found: list[float] = []
    async with start_federation(experiment, experiment.build_world()) as federation:
        while len(found) < kills:
            await federation.look_until("all edge servers agree on a coordinator", _is_settled)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            seconds = await _measure_vacancy(federation)
            if seconds is not None:
                found.append(seconds)
                on_kill(len(found))
    return Vacancies(tuple(found))


async def _measure_vacancy(federation: LiveFederation) -> float | None:
    """Seconds from a kill to the next election; None if there was no coordinator to kill."""
    looks = await federation.look()
    if not _is_settled(looks):
        return None
    killed, term = _find_leader(looks), max(_terms(looks))
    killed_at = await federation.kill(f"edge-{killed}")
    elections = await _wait_for_election(federation, term)
    await federation.start_again(f"edge-{killed}")
    # Another one may have been elected just before the kill, which then hit a follower.
    return min(elections) - killed_at if min(elections) >= killed_at else None


async def _wait_for_election(federation: LiveFederation, term: int) -> list[float]:
    """When leaders of later terms were elected, by the wall clock."""

    def find(looks: Looks) -> list[float]:
        events = [event for each in looks.values() for event in each.status.elections]
        return [each.unix_seconds for each in events if each.kind == "elected" and each.term > term]

    return find(await federation.look_until("another one is elected", lambda looks: bool(find(looks))))


def _is_settled(looks: Looks) -> bool:
    """Whether all edge servers have done a round, and one leads whom all know."""
    if not looks or len(looks) < len(next(iter(looks.values())).status.clusters):
        return False
    leads = [number for number, each in looks.items() if each.role == "leader"]
    known = {each.status.coordinator for each in looks.values()}
    done = min(each.position[0] for each in looks.values())
    return len(leads) == 1 and known == {f"edge-{leads[0]}"} and len(set(_terms(looks))) == 1 and done >= 1


def _find_leader(looks: Looks) -> int:
    return next(number for number, each in looks.items() if each.role == "leader")


def _terms(looks: Looks) -> list[int]:
    return [each.status.term or 0 for each in looks.values()]


def as_document(
    links: Sequence[SlowLink], gone: Sequence[GoneServer], vacancies: Sequence[Vacancies]
) -> dict[str, Any]:
    """The results as plain values."""
    aims = {"median_aim": MAX_MEDIAN_VACANCY, "longest_aim": MAX_VACANCY}
    return {
        "slow_link": [asdict(each) for each in links],
        "gone": [asdict(each) | {"aim": each.gone_seconds + MAX_BEYOND_GONE} for each in gone],
        "coordinator": [
            asdict(each) | {"median": each.median, "longest": each.longest, **aims} for each in vacancies
        ],
    }
