"""Plays a schedule: whole nodes on one virtual clock, with supervisors that start them again."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec

from cfel.deployment.edge.node import EdgeNode
from cfel.deployment.host import Host
from cfel.deployment.protocol.calls import Client, Endpoint, RemoteCalls
from cfel.deployment.protocol.edge_requests import (
    ChangeRequest,
    DeviceResult,
    EstimateAnswer,
    PlanAnswer,
)
from cfel.deployment.security.identity import Identity
from cfel.errors import CfelError, RejectedError, SilentEdgeServerError, UnreachableError
from cfel.learning.torch_state import prepare_process, prepare_thread
from cfel.membership import FleetChange
from tests.deployment.memory_federation import Federation
from tests.deployment.virtual_time import OWNER, VirtualLoop, run_virtually
from tests.support.inline_compute import InlineCompute
from tests.support.memory_disk import MemoryDisk
from tests.whole_federation.history import Call, History, Write
from tests.whole_federation.schedule import (
    ALL_EDGES,
    EDGES,
    EVERYBODY,
    NEW_DEVICE,
    NEW_EDGE,
    Fault,
    Operation,
    Schedule,
)
from tests.whole_federation.subject import HOME, experiment, world
from tests.whole_federation.wire import Link, Quality, Wire, WireClient

END_SECONDS = 900.0
"""A federation that has not ended so long after its last fault is stuck."""
Result = TypeVar("Result")
OPERATOR = Identity("operator", 0)


class LaggingCompute(InlineCompute):
    """Functions take a little while, so that other things happen between a call and its result."""

    def __init__(self, chance: Random) -> None:
        self._chance, self._turn = chance, asyncio.Lock()

    async def run(self, function: Callable[[], Result]) -> Result:
        """See `Compute`."""
        async with self._turn:
            await asyncio.sleep(self._chance.uniform(0, 0.02))
            return function()


class WholeFederation(Federation):
    """A federation whose members have a disk, a clock and a supervisor each."""

    def __init__(self, schedule: Schedule, history: History) -> None:
        patient = schedule.is_patient
        self.seed, self.history = schedule.seed, history
        self.disks = {member: MemoryDisk() for member in EVERYBODY}
        self.clock_offsets = dict.fromkeys(EVERYBODY, 1e9)
        self._clients: dict[Identity, WireClient] = {}
        self._starts = dict.fromkeys(EVERYBODY, 0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.wire = Wire(seed=schedule.seed)
        asked = experiment(is_patient=patient, returns=schedule.returns, downloads=schedule.downloads)
        shared = world(is_patient=patient, is_large=schedule.is_large, downloads=schedule.downloads)
        super().__init__(asked, HOME, self.wire, self._host, shared)
        for member in EVERYBODY:
            self.disks[member].on_write = partial(self._note_write, member)

    def _note_write(self, member: Identity, path: Path, content: bytes) -> None:
        self.history.writes.append(Write(len(self.history.calls), member, path, content))

    def _host(self, member: Identity) -> Host:
        chance = Random(f"{self.seed} {member} {self._starts[member]}")  # noqa: S311
        now = self.loop.time
        return Host(
            self.disks[member], LaggingCompute(chance), chance, lambda: now() + self.clock_offsets[member]
        )

    def _client(self, member: Identity) -> Client:
        if member in self._clients:
            self._clients[member].is_dead = True
        self._clients[member] = WireClient(member, self.wire)
        return self._clients[member]

    def _watch(self, member: Identity, node: EdgeNode) -> None:
        process = (member, self._starts[member])
        for request, endpoint in node.endpoints.items():
            node.endpoints[request] = replace(endpoint, handle=self._noted(endpoint, process, node))

    def _noted(self, endpoint: Endpoint, process: tuple[Identity, int], node: EdgeNode) -> Callable[..., Any]:
        own = self.disks[process[0]]

        async def handle(caller: Identity, request: Any) -> Any:
            call = Call(self.loop.time(), caller, process, request)
            self.history.calls.append(call)
            answer = await endpoint.handle(caller, request)
            if not own.is_off:
                call.answer, call.answered_at = _name_devices(node, request, answer), len(self.history.calls)
            return answer

        return handle

    def start(self, *members: Identity) -> None:
        """Starts members, each with a supervisor."""
        for member in members or self.everybody():
            self.disks[member] = self.disks[member].hand_over()
            self.disks[member].turn_on()
            context = copy_context()
            context.run(OWNER.set, member)
            self.wire.contexts[member] = context
            self.tasks[member] = self.loop.create_task(self._supervise(member), context=context)

    async def _supervise(self, member: Identity) -> None:
        """Starts a member again when it fails, as a service manager does."""
        while True:
            self._starts[member] += 1
            try:
                await (self._edge(member) if member.role == "edge" else self._device(member))
            except SilentEdgeServerError:
                return
            except CfelError as error:
                self.history.failures.append(f"{member}: {error}")
                self.wire.members.pop(member, None)
                self.disks[member] = self.disks[member].hand_over()
                await asyncio.sleep(1.0)
                continue
            finally:
                self.wire.members.pop(member, None)
            return

    def is_running(self, member: Identity) -> bool:
        """Whether it has neither ended nor been killed."""
        return member in self.tasks and not self.tasks[member].done()

    async def kill(self, member: Identity) -> None:
        """See `Federation`; nothing that the process still does reaches anybody."""
        if member in self._clients:
            self._clients[member].is_dead = True
        self.disks[member].is_off = True
        self.loop.thaw(member)
        self.wire.drop_work(member)
        if member.role == "edge" and member.number not in self.edges:
            self.tasks.pop(member).cancel()
        else:
            await super().kill(member)

    async def play(self, schedule: Schedule) -> None:
        """Starts everybody, lets all faults happen, and returns when everybody has ended."""
        self.start()
        faults = [asyncio.create_task(self._suffer(fault)) for fault in schedule.faults]
        asking = [asyncio.create_task(self._operate(each)) for each in schedule.operations]
        await asyncio.gather(*faults)
        end = self.loop.time() + END_SECONDS
        # Operators may start a machine later.
        while pending := [task for task in self.tasks.values() if not task.done()]:
            if self.loop.time() >= end:
                break
            await asyncio.wait(pending, timeout=end - self.loop.time())
        for task in asking:
            task.cancel()
        started = [member for member in EVERYBODY if member in self.tasks]
        self.history.stuck = [member for member in started if self.is_running(member)]
        for member in started:
            if not self.is_running(member) and (error := self.tasks[member].exception()) is not None:
                self.history.failures.append(f"{member} ended with {error!r}")
                self.history.crashes.append(f"{member} ended with {error!r}")

    async def _operate(self, operation: Operation) -> None:
        """Starts the machine that joins, if one does, and asks for changes, one after the other."""
        await asyncio.sleep(operation.at)
        for change in operation.changes:
            new = {"add device": NEW_DEVICE, "add edge": NEW_EDGE}.get(change.what)
            if new is not None and self._starts[new] == 0:
                self.start(new)
            if not await self._ask(change):
                return

    async def _ask(self, change: FleetChange) -> bool:
        """Asks for a change until it holds, or is refused."""
        self.wire.contexts.setdefault(OPERATOR, copy_context())
        calls = RemoteCalls(WireClient(OPERATOR, self.wire))
        while True:
            for edge in ALL_EDGES:
                try:
                    answer = await calls.call(edge, ChangeRequest(change), 10.0)
                except UnreachableError:
                    continue
                except RejectedError as error:
                    self.history.failures.append(f"{change.describe()}: {error}")
                    return False
                if answer.round or answer.refused:
                    return bool(answer.round)
                break
            await asyncio.sleep(1.0)

    async def _suffer(self, fault: Fault) -> None:
        chance = Random(f"{self.seed} {fault}")  # noqa: S311
        await asyncio.sleep(fault.at)
        members = fault.members
        if fault.method:
            called = await self._next_call(fault.method)
            members = members or called
            await asyncio.sleep(chance.choice((0.0, 0.01, 0.03, 0.1)) * chance.random())
        await self._happen(fault, members or EDGES[:2], chance)

    async def _happen(self, fault: Fault, members: tuple[Identity, ...], chance: Random) -> None:
        """Returns when the fault is over."""
        first, seconds = members[0], fault.seconds
        links = [link for link in permutations(EVERYBODY, 2) if first in link]
        match fault.kind:
            case "kill":
                await self._down((first,), seconds, lambda _: None)
            case "outage":
                await self._down(members, seconds, lambda disk: disk.lose_power(chance))
            case "tear":
                await self._tear(fault, members[-1], chance)
            case "freeze":
                self.loop.freeze(first)
                await asyncio.sleep(seconds)
                self.loop.thaw(first)
            case "isolate":
                await self._break(set(links), seconds)
            case "cut":
                await self._break(set(permutations(members, 2)), seconds)
            case "cut one way":
                await self._break({(first, members[-1])}, seconds)
            case "slow":
                await self._degrade(links, seconds, Quality(fault.number / 15))
            case "lossy":
                await self._degrade(links, seconds, Quality(0.05, fault.number / 100, 0.2, 0.2))
            case "full disk":
                self.disks[first].is_full = True
                await asyncio.sleep(seconds)
                self.disks[first].is_full = False
            case "clock jump":
                self.clock_offsets[first] += chance.choice((-1, 1)) * 10.0 ** chance.randint(0, 6)
            case _:
                raise AssertionError(f"no such fault: {fault.kind}")

    async def _next_call(self, method: str) -> tuple[Identity, ...]:
        """Who calls whom when a method is called next; nobody if it is not for a long while."""
        seen: asyncio.Future[tuple[Identity, ...]] = self.loop.create_future()
        before = self.wire.on_call

        def look(caller: Identity, to: Identity, name: str) -> None:
            before(caller, to, name)
            if name == method and not seen.done():
                seen.set_result(tuple(each for each in (caller, to) if each in self.disks))

        self.wire.on_call = look
        await asyncio.wait([seen], timeout=10.0)
        return seen.result() if seen.done() else ()

    async def _down(
        self, members: tuple[Identity, ...], seconds: float, lose: Callable[[MemoryDisk], None]
    ) -> None:
        killed = [member for member in members if self.is_running(member)]
        for member in killed:
            await self.kill(member)
            lose(self.disks[member])
        await asyncio.sleep(seconds)
        for member in killed:
            if member not in self.tasks:
                self.start(member)

    async def _tear(self, fault: Fault, member: Identity, chance: Random) -> None:
        torn = asyncio.Event()
        self.disks[member].tear_write(fault.number % 4, chance, torn.set)
        torn_before = asyncio.ensure_future(torn.wait())
        await asyncio.wait([torn_before], timeout=20.0)
        torn_before.cancel()
        self.disks[member].keep_power()
        if torn.is_set():
            await self._down((member,), fault.seconds, lambda disk: disk.lose_power(chance))

    async def _break(self, links: set[Link], seconds: float) -> None:
        new = links - self.wire.broken
        self.wire.broken |= new
        await asyncio.sleep(seconds)
        self.wire.broken -= new

    async def _degrade(self, links: list[Link], seconds: float, quality: Quality) -> None:
        self.wire.qualities |= dict.fromkeys(links, quality)
        await asyncio.sleep(seconds)
        for link in links:
            self.wire.qualities.pop(link, None)


def _name_devices(node: EdgeNode, request: Any, answer: Any) -> Any:
    """An answer with the devices that are only counted in it, where edge servers keep what they know."""
    if isinstance(answer, EstimateAnswer) and answer.counts is not None:
        return msgspec.structs.replace(answer, devices=(None,) * answer.counts.answered)
    if not isinstance(answer, PlanAnswer) or answer.sums is None:
        return answer
    rows = node.server.state.own_rounds[request.position].rows
    used = [DeviceResult(n, 1.0, 1.0, 1.0, 0, 0, 0.0, None) for n in rows.device.tolist()]
    return msgspec.structs.replace(answer, devices=tuple(used))


def play(schedule: Schedule) -> History:
    """The history of a schedule."""
    kind = {"is_patient": schedule.is_patient, "is_large": schedule.is_large}
    history = History(schedule, world(**kind, downloads=schedule.downloads))

    async def run() -> None:
        async with WholeFederation(schedule, history) as federation:
            await federation.play(schedule)
            history.disks = {member: disk.files for member, disk in federation.disks.items()}
            history.virtual_seconds = federation.loop.time()
            history.crashes += federation.wire.failures

    # As in a node's own process: results must not depend on how many threads torch uses.
    prepare_process()
    prepare_thread()
    with _quiet():
        run_virtually(run())
    return history


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
