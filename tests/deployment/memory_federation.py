"""A federation in one event loop: a network made of memory, with faults, and members that can be killed."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from cfel.deployment.device.agent import DeviceAgent, add_device
from cfel.deployment.edge.node import EdgeNode
from cfel.deployment.election.rules import Heartbeat
from cfel.deployment.host import Host, make_host
from cfel.deployment.measurement.energy_counters import EnergyCounter
from cfel.deployment.node import own_data
from cfel.deployment.protocol.calls import Client, Endpoint, RemoteCalls
from cfel.deployment.protocol.edge_requests import ElectionRequest
from cfel.deployment.protocol.messages import Message, join_message, split_message
from cfel.deployment.security.identity import Identity
from cfel.errors import UnreachableError
from cfel.experiment import Experiment
from cfel.runlog import RoundRecord
from cfel.runlog.records import read_log
from cfel.world import World
from tests.support.inline_compute import InlineCompute
from tests.support.memory_disk import MemoryDisk

MOST_BYTES = 10**7


PATIENCE_SECONDS = 60.0


@dataclass
class Network:
    """Who can be reached, and how well.

    Attributes:
        drop: share of calls lost on the way there, and likewise on the way back.
        double: share of calls that arrive twice.
        delay_seconds: the longest a call is under way.
        cut: pairs of members that do not reach each other.
        frozen: members that do not answer, and whose own calls stay open: only time shows that they are gone.
        blocked: members that no calls reach, though theirs reach others, as behind a firewall.
        on_call: called for every call before it is delivered.
    """

    drop: float = 0.0
    double: float = 0.0
    delay_seconds: float = 0.0
    cut: set[frozenset[Identity]] = field(default_factory=set)
    frozen: set[Identity] = field(default_factory=set)
    blocked: set[Identity] = field(default_factory=set)
    on_call: Callable[[Identity, Identity, str], None] = lambda _from, _to, _method: None
    members: dict[Identity, dict[str, Endpoint]] = field(default_factory=dict)
    under_way: dict[Identity, set["asyncio.Task[Message]"]] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311

    async def deliver(self, caller: Identity, to: Identity, method: str, message: Message) -> Message:
        """Brings a call to its receiver and the answer back, if nothing happens to them."""
        self.on_call(caller, to, method)
        await asyncio.sleep(self.chance.uniform(0, self.delay_seconds))
        while self.frozen & {caller, to}:
            await asyncio.sleep(0.01)
        lost = self.chance.random() < self.drop
        if lost or to in self.blocked or to not in self.members or frozenset((caller, to)) in self.cut:
            raise UnreachableError(f"{to}, {method}: nobody answers")
        if self.chance.random() < self.double:
            await self._handled(caller, to, method, message)
        answer = await self._handled(caller, to, method, message)
        if self.chance.random() < self.drop or frozenset((caller, to)) in self.cut:
            raise UnreachableError(f"{to}, {method}: the answer was lost")
        return answer

    async def _handled(self, caller: Identity, to: Identity, method: str, message: Message) -> Message:
        offered = self.members[to][method]
        offered.check_caller(caller)
        most_header_bytes = offered.most_header_bytes
        came = await join_message(
            _as_stream(message), offered.most_bytes, most_header_bytes=most_header_bytes
        )
        task = asyncio.ensure_future(offered.answer(caller, came))
        self.under_way.setdefault(to, set()).add(task)
        try:
            return await join_message(_as_stream(await task), MOST_BYTES)
        except asyncio.CancelledError:
            if to in self.members and self.members[to][method] is offered:
                raise
            raise UnreachableError(f"{to}, {method}: died") from None
        finally:
            self.under_way[to].discard(task)


async def _as_stream(message: Message) -> Any:
    for piece in split_message(message):
        yield piece


@dataclass(frozen=True)
class MemoryClient:
    """How one member sends messages to the others."""

    own: Identity
    network: Network

    async def send(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        """See `Client`."""
        try:
            async with asyncio.timeout(seconds):
                return await self.network.deliver(self.own, to, method, message)
        except TimeoutError:
            raise UnreachableError(f"{to}, {method}: no answer in time") from None


class Federation:
    """Edge servers and devices as tasks; a context manager that ends them all."""

    def __init__(
        self,
        experiment: Experiment,
        directory: Path,
        network: Network | None = None,
        make: Callable[[Identity], Host] = lambda _: make_host(),
        world: World | None = None,
    ) -> None:
        self._make = make
        self.experiment = experiment
        self.world: World = world or experiment.build_world()
        self.directory = directory
        self.network = network or Network()
        self.edges: dict[int, EdgeNode] = {}
        self.energy: Callable[[], EnergyCounter | None] = lambda: None
        self.tasks: dict[Identity, asyncio.Task[None]] = {}

    def start(self, *members: Identity) -> None:
        """Starts some members, or all."""
        for member in members or self.everybody():
            self.tasks[member] = asyncio.create_task(
                self._edge(member) if member.role == "edge" else self._device(member)
            )

    def everybody(self) -> Iterable[Identity]:
        """Edge servers first."""
        fleet = self.world.setting.fleet
        return [
            *(Identity("edge", i) for i in range(fleet.clusters)),
            *(Identity("device", n) for n in range(fleet.devices)),
        ]

    def _client(self, member: Identity) -> Client:
        return MemoryClient(member, self.network)

    def _watch(self, member: Identity, node: EdgeNode) -> None:
        """Called with every edge server before others can reach it."""

    async def _edge(self, member: Identity) -> None:
        node = EdgeNode(
            self.world,
            self.experiment.deployment,
            member.number,
            self.directory / str(member),
            RemoteCalls(self._client(member)),
            self._make(member),
        )
        self.edges[member.number] = node
        self._watch(member, node)
        self.network.members[member] = {each.request.method: each for each in node.endpoints.values()}
        await node.run()

    async def _device(self, member: Identity) -> None:
        host, directory = self._make(member), self.directory / str(member)
        agent = DeviceAgent(
            self.world,
            member.number,
            own_data(add_device(self.world, member.number), member.number),
            self.experiment.deployment,
            RemoteCalls(self._client(member)),
            directory,
            host,
            self.energy(),
        )
        try:
            with host.disk.reserve(directory):
                await agent.run()
        finally:
            host.compute.close()

    async def kill(self, member: Identity) -> None:
        """Ends a member in the middle of whatever it does; calls to it fail at once."""
        self.network.members.pop(member, None)
        task = self.tasks.pop(member)
        task.cancel()
        for handling in list(self.network.under_way.get(member, ())):
            handling.cancel()
        if member.role == "edge":
            for running in self.edges[member.number].server.running.values():
                running.cancel()
        await asyncio.wait([task])

    def coordinator(self) -> int | None:
        """The coordinator now."""
        leading = [
            i
            for i, node in self.edges.items()
            if Identity("edge", i) in self.tasks and node.member.is_leading()
        ]
        return leading[0] if leading else None

    async def finished(self, seconds: float = 60.0) -> None:
        """Returns when every member that is alive has ended by itself."""
        done, _ = await asyncio.wait(self.tasks.values(), timeout=seconds)
        pending = [str(member) for member, task in self.tasks.items() if not task.done()]
        assert not pending, f"{pending} still run after {seconds} s"
        for task in done:
            task.result()

    def records(self) -> list[RoundRecord]:
        """The longest log of all edge servers."""
        paths = self.directory.glob("edge-*/rounds.jsonl")
        return max((list(read_log(path).records) for path in paths), key=len)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in list(self.tasks):
            await self.kill(member)


def virtual_hosts(disk: MemoryDisk, seed: int) -> Callable[[Identity], Host]:
    """Machines without clocks, threads or files of their own, for an event loop with a virtual clock."""
    now = asyncio.get_running_loop().time

    def make(member: Identity) -> Host:
        chance = random.Random(f"{seed} {member}")  # noqa: S311 (repeatable chance is the point)
        return Host(disk, InlineCompute(), chance, now)

    return make


def play_to_the_end(
    experiment: Experiment, directory: Path, network: Network | None = None
) -> list[RoundRecord]:
    """The log of a federation that is left alone until it has ended."""

    async def play() -> list[RoundRecord]:
        async with Federation(experiment, directory, network) as federation:
            federation.start()
            await federation.finished()
            return federation.records()

    return asyncio.run(play())


async def claim_term(own: Identity, to: Identity, term: int, network: Network) -> None:
    """Has an edge server believe that `own` leads a term, for as long as a leader may be silent."""
    await RemoteCalls(MemoryClient(own, network)).call(to, ElectionRequest(Heartbeat(term, 0.0)), 5)


@asynccontextmanager
async def led_edge_server(
    member: Identity, leader: Identity, experiment: Experiment, directory: Path
) -> AsyncIterator[tuple[Federation, RemoteCalls]]:
    """An edge server without others, which believes that `leader` leads term 1; and the leader's calls."""
    async with Federation(experiment, directory) as federation:
        federation.start(member)
        await until("it is there", lambda: member in federation.network.members)
        await claim_term(leader, member, 1, federation.network)
        yield federation, RemoteCalls(MemoryClient(leader, federation.network))


async def until(what: str, condition: Callable[[], bool]) -> None:
    """Waits for something to become true."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.005)
