"""`python -m benchmarks resilience`: what faults cost a federation of real processes.

    slow_link     a device on 200 kbit/s and 500 ms, with a model of 1 MB: does it take part in every round?
    gone          an edge server is killed for good: how many seconds do the others lose, once?
    coordinator   the coordinator is killed again and again: how long is there none?

All processes run on one machine: three edge servers with two devices each. The kernel shapes the slow link
where it can (`shaped_namespace`), and a relay in user space adds its delay; otherwise the relay does both.
"""

import asyncio
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.child import ROOT
from benchmarks.federations import CLUSTERS, build_kill_experiment, build_slow_link_experiment
from cfel.cli.output import new_table, print_table
from cfel.deployment.payloads import model_size
from cfel.deployment.protocol.addresses import split_address
from cfel.deployment.protocol.calls import RemoteCalls
from cfel.deployment.protocol.edge_requests import StatusAnswer, StatusRequest
from cfel.deployment.protocol.grpc_transport import GrpcClient
from cfel.deployment.security.credentials import Credentials
from cfel.deployment.security.identity import Identity
from cfel.errors import DeploymentError
from cfel.experiment import Experiment, experiment_toml
from cfel.launch.federation import LaunchOptions, Processes, prepare_nodes
from cfel.launch.node import read_node, write_node
from cfel.rounds.run_directory import describe_run
from cfel.runlog import RoundRecord
from cfel.runlog.directory import read_plan
from cfel.runlog.records import read_log
from cfel.world import World
from tests.support.link_shaper import Link, Relay, shape
from tests.support.shaped_namespace import ShapedNamespace, find_missing, shape_namespace

MOBILE = Link(200_000, delay_seconds=0.25)
ROUND_SECONDS = 60.0
MAX_BEYOND_GONE = 3.0
MAX_MEDIAN_VACANCY = 1.0
MAX_VACANCY = 2.0
# Rounds before the kill, which show how long a round usually takes, and after it.
_ROUNDS_BEFORE, _ROUNDS_AFTER = 6, 8
_SLOW_DEVICE = 0
_POLL_SECONDS = 0.05
_LOOK_SECONDS = 0.05
_ANSWER_SECONDS = 1.0
_PATIENCE_SECONDS = 600.0
# The relay adds the delay only: it must be faster than the kernel's link, but hold no more bytes than that.
_RELAY_SPEED = 1.25
_KERNEL = "the kernel: tbf at both ends of a network namespace's cable; the delay by a relay in user space"

Looks = dict[int, StatusAnswer]
"""What the edge servers that answer show, by number."""


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


@dataclass(frozen=True, slots=True)
class Results:
    """What was measured, by part."""

    slow_link: SlowLink | None = None
    gone: Sequence[GoneServer] = ()
    coordinator: Vacancies | None = None

    def document(self) -> dict[str, Any]:
        """The results as plain values."""
        document = asdict(self)
        if self.coordinator is not None:
            document["coordinator"] |= {
                "median": self.coordinator.median,
                "longest": self.coordinator.longest,
            }
        return document

    def show(self, console: Console) -> None:
        """Prints the results as tables."""
        if self.slow_link is not None:
            _print_slow_link(console, self.slow_link)
        if self.gone:
            _print_gone(console, self.gone)
        if self.coordinator is not None:
            _print_vacancies(console, self.coordinator)


def measure(*, quick: bool, only: str | None = None) -> Results:
    """Runs the benchmark, or one part of it."""
    link, gone, vacancies = None, [], None
    if only in (None, "slow_link"):
        rounds = 1 if quick else 8
        print(f"slow link: {rounds} × about 50 s …", file=sys.stderr)
        link = asyncio.run(measure_slow_link(rounds))
    if only in (None, "gone"):
        for coordinated in (True,) if quick else (False, True, False, True):
            print(f"{_name_killed(coordinated)} is killed for good …", file=sys.stderr)
            gone.append(asyncio.run(measure_gone(coordinated=coordinated)))
    if only in (None, "coordinator"):
        kills = 10 if quick else 100
        print(f"the coordinator is killed {kills} times …", file=sys.stderr)
        vacancies = asyncio.run(measure_vacancies(kills))
    return Results(link, gone, vacancies)


def _name_killed(coordinated: bool) -> str:
    return "the coordinator" if coordinated else "another edge server"


def _print_slow_link(console: Console, link: SlowLink) -> None:
    table = new_table(
        *("model MB", "sent MB", "link alone s", "round s", "slowest s", "deadline s", "took part", "goal")
    )
    table.add_row(
        f"{link.model_bytes / 1e6:.2f}",
        f"{link.carried_bytes / 1e6:.2f}",
        f"{link.link_seconds:.1f}",
        f"{statistics.median(link.round_seconds):.1f}",
        f"{max(link.round_seconds):.1f}",
        f"{link.deadline_seconds:.0f}",
        f"{sum(link.took_part)} of {len(link.took_part)}",
        "all",
    )
    print_table(console, "A device on 200 kbit/s and 500 ms", table)
    console.print(f"The link was shaped by {link.shaper}.\n")


def _print_gone(console: Console, gone: Sequence[GoneServer]) -> None:
    table = new_table("killed", "gone_seconds", "usual round s", "longest s", "lost s", "goal")
    for each in gone:
        table.add_row(
            _name_killed(each.coordinated),
            f"{each.gone_seconds:.0f}",
            f"{each.usual_seconds:.2f}",
            f"{each.longest_seconds:.2f}",
            f"{each.lost_seconds:.2f}",
            f"≤ {each.gone_seconds + MAX_BEYOND_GONE:.0f}",
        )
    print_table(console, "An edge server killed for good", table)


def _print_vacancies(console: Console, found: Vacancies) -> None:
    table = new_table("kills", "median s", "goal", "longest s", "goal")
    table.add_row(
        str(len(found.seconds)),
        f"{found.median:.2f}",
        f"< {MAX_MEDIAN_VACANCY:.1f}",
        f"{found.longest:.2f}",
        f"< {MAX_VACANCY:.0f}",
    )
    print_table(console, "Seconds without a coordinator", table)


class LiveFederation:
    """A federation of real processes whose nodes can be killed, started again, or put behind a slow link.

    Unlike in `cfel up`, nothing restarts a node that is dead. What happened is read from the edge servers'
    answers to an operator, and from their logs.

    Args:
        nodes: directory of the nodes.
        processes: one of each node, by its name.
        client: an operator's connections to the edge servers.
        edges: the edge servers.
        relays: the slow links, by device.

    Attributes:
        relays: as given.
    """

    def __init__(
        self,
        nodes: Path,
        processes: dict[str, Processes],
        client: GrpcClient,
        edges: Sequence[Identity],
        relays: Mapping[int, Relay],
    ) -> None:
        self._nodes, self._processes, self._client, self._edges = nodes, processes, client, edges
        self.relays = relays

    async def look(self) -> Looks:
        """Asks all edge servers at once."""

        async def ask(edge: Identity) -> StatusAnswer | None:
            try:
                return await RemoteCalls(self._client).call(edge, StatusRequest(), _ANSWER_SECONDS)
            except DeploymentError:
                return None  # dead, or about to be

        answers = await asyncio.gather(*(ask(edge) for edge in self._edges))
        return {
            edge.number: each for edge, each in zip(self._edges, answers, strict=True) if each is not None
        }

    async def look_until(self, what: str, is_so: Callable[[Looks], bool]) -> Looks:
        """Looks again and again; returns the first look that is as wanted.

        Raises:
            DeploymentError: that takes too long.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            looks = await self.look()
            if is_so(looks):
                return looks
            await asyncio.sleep(_LOOK_SECONDS)
        raise DeploymentError(f"waited {_PATIENCE_SECONDS:.0f} s in vain: {what}")

    async def kill(self, name: str) -> float:
        """Kills a node for good; returns when, by the wall clock."""
        killed_at = time.time()
        os.kill(self._processes[name].pid(name), signal.SIGKILL)
        await asyncio.to_thread(self._processes[name].wait, _PATIENCE_SECONDS)
        return killed_at

    async def start_again(self, name: str) -> None:
        """Starts a node that was killed."""
        self._processes[name] = await asyncio.to_thread(Processes, [self._nodes / f"{name}.toml"])

    def read_records(self, edge: int) -> list[RoundRecord]:
        """The rounds that an edge server has logged."""
        path = self._nodes / f"edge-{edge}" / "rounds.jsonl"
        return list(read_log(path).records) if path.exists() else []

    def took_part(self, edge: int, round_number: int) -> list[int]:
        """The devices that took part in a round, as an edge server logged it."""
        return list(read_plan(self._nodes / f"edge-{edge}", round_number).device.tolist())


@asynccontextmanager
async def start_federation(
    experiment: Experiment, world: World, links: Mapping[int, Link] | None = None, *, in_kernel: bool = False
) -> AsyncIterator[LiveFederation]:
    """Starts all nodes as processes; stops them when the context ends.

    Args:
        experiment: what to run.
        world: its world.
        links: by device, the link between it and its edge server; without one, loopback.
        in_kernel: whether the kernel limits the rate of links; there may be only one then.
    """
    async with AsyncExitStack() as stack:
        out = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        describe_run(out, world.setting, experiment_toml(experiment.resolve(world)))
        configurations = prepare_nodes(experiment, world, out, LaunchOptions(import_from=(ROOT,)))
        relays: dict[int, Relay] = {}
        elsewhere: list[tuple[Path, ShapedNamespace]] = []
        for device, link in (links or {}).items():
            edge, path = int(world.setting.fleet.cluster[device]), out / "nodes" / f"device-{device}.toml"
            if in_kernel:
                namespace = stack.enter_context(shape_namespace(link.bits_per_second))
                behind = replace(link, bits_per_second=_RELAY_SPEED * link.bits_per_second)
                relays[device] = await _put_behind(stack, path, edge, behind, namespace.address)
                elsewhere.append((path, namespace))
            else:
                relays[device] = await _put_behind(stack, path, edge, link)
        node = read_node(out / "nodes" / "operator-0.toml").node
        outside = {path for path, _ in elsewhere}
        processes: dict[str, Processes] = {}
        stack.push_async_callback(_stop_all, processes)
        for path in configurations:
            if path not in outside:
                processes[path.stem] = await asyncio.to_thread(Processes, [path])
        for path, namespace in elsewhere:
            await _start_device(stack, path, namespace)
        client = GrpcClient(Credentials.read(node.certificates, node.identity), node.peers(), 0)
        stack.push_async_callback(client.close)
        yield LiveFederation(out / "nodes", processes, client, list(node.peers()), relays)


async def _stop_all(processes: Mapping[str, Processes]) -> None:
    await asyncio.gather(*(asyncio.to_thread(each.stop) for each in processes.values()))


async def _start_device(stack: AsyncExitStack, path: Path, namespace: ShapedNamespace) -> None:
    """Runs a device in a namespace; its log is beside its configuration."""
    command = namespace.wrap(sys.executable, "-m", "cfel", "device", "--config", str(path))
    log = stack.enter_context(path.with_suffix(".log").open("wb"))
    process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)

    async def stop() -> None:
        # It may have ended with the experiment.
        if process.returncode is None:
            process.kill()
        await process.wait()

    stack.push_async_callback(stop)


async def _put_behind(
    stack: AsyncExitStack, path: Path, edge: int, link: Link, relay_host: str = "127.0.0.1"
) -> Relay:
    """Lets a device reach its edge server over a link."""
    file = read_node(path)
    addresses = list(file.node.addresses)
    host, port = split_address("addresses", addresses[edge])
    relay = await stack.enter_async_context(shape(link, host, port, host=relay_host))
    addresses[edge] = f"{relay_host}:{relay.port}"
    write_node(path, replace(file, node=replace(file.node, addresses=tuple(addresses))))
    return relay


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


async def measure_vacancies(kills: int) -> Vacancies:
    """Kills the coordinator so often, at any moment of a round; each is back before the next kill."""
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
