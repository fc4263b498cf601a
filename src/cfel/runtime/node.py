"""One process of a federation: an edge server or a device, put together, run and stopped.

The experiment is built by whoever calls; here its parts meet the network. A process may be stopped at any
moment: what counts is on the disk before anybody hears of it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cfel.errors import DeploymentError, InputError
from cfel.learning.task import DeviceData
from cfel.rounds import SimulationParameters
from cfel.runtime.contents import model_bytes
from cfel.runtime.coordinator import Coordinator, DeposedError
from cfel.runtime.desk import Desk
from cfel.runtime.device_agent import DeviceAgent
from cfel.runtime.edge_server import EdgeServer
from cfel.runtime.identity import Identity
from cfel.runtime.member import Member
from cfel.runtime.messages import Message
from cfel.runtime.parameters import DeploymentParameters
from cfel.runtime.status import Snapshot, snapshot
from cfel.runtime.transport import Calls, Credentials, GrpcCalls, GrpcServer, Method
from cfel.runtime.workroom import Workroom
from cfel.world import World

_LOG = logging.getLogger(__name__)
_FAREWELL_SECONDS = 5.0

Companion = Callable[[Callable[[], Snapshot]], Awaitable[None]]
"""Runs beside an edge server and may look at its snapshot: the dashboard."""


@dataclass(frozen=True, slots=True)
class Node:
    """Where a process stands.

    Attributes:
        identity: who it is.
        addresses: "host:port" of every edge server, by number.
        directory: where it keeps what it must not forget.
        certificates: directory with its certificate, key and authority.
        listen: address to listen on, if another than others reach it at; edge servers only.
    """

    identity: Identity
    addresses: tuple[str, ...]
    directory: Path
    certificates: Path
    listen: str | None = None

    def peers(self) -> dict[Identity, str]:
        """The edge servers' addresses."""
        return {Identity("edge", i): address for i, address in enumerate(self.addresses)}


class _WithOwn:
    """Calls where one's own methods are called without a network."""

    def __init__(self, own: Identity, calls: Calls, methods: Mapping[str, Method]) -> None:
        self._own, self._calls, self._methods = own, calls, methods

    async def call(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        if to == self._own:
            return await self._methods[method].handle(self._own, message)
        return await self._calls.call(to, method, message, seconds)


async def run_edge(
    world: World,
    simulation: SimulationParameters,
    deployment: DeploymentParameters,
    node: Node,
    companion: Companion | None = None,
) -> None:
    """Runs an edge server until the experiment is over or the task is cancelled."""
    number = node.identity.number
    if len(node.addresses) != world.fleet.clusters or number >= world.fleet.clusters:
        raise InputError(f"{node.identity}: {len(node.addresses)} addresses, {world.fleet.clusters} clusters")
    credentials = Credentials.read(node.certificates, node.identity)
    calls = GrpcCalls(credentials, node.peers(), len(model_bytes(world.start)))
    methods: dict[str, Method] = {}
    reach = _WithOwn(node.identity, calls, methods)
    workroom = Workroom()
    devices = tuple(np.flatnonzero(world.fleet.cluster == number).tolist())
    desk = Desk(devices, world.start, deployment, workroom, time.monotonic)
    server = EdgeServer(
        world, simulation, number, node.directory, desk, reach, workroom, deployment.gossip_seconds
    )
    office = _Office(server, reach, workroom, world, simulation, deployment)
    member = Member(
        number,
        world.fleet.clusters,
        deployment.election_seconds,
        node.directory / "ballot.json",
        calls,
        office.on_leader,
    )
    office.member = member
    refused: dict[str, int] = {}

    def on_refusal(caller: Identity | None, method: str, reason: str) -> None:
        refused[reason] = refused.get(reason, 0) + 1
        _LOG.warning("refused %s of %s: %s", method, caller, reason)

    def look() -> Snapshot:
        return snapshot(world, server, desk, member, refused)

    async def status(caller: Identity, message: Message) -> Message:
        del caller, message
        return Message(look())

    methods |= {**server.methods(), **desk.methods(), **member.methods()}
    methods["status"] = Method(("edge", "operator"), status)
    listener = GrpcServer(credentials, methods, on_refusal)
    await listener.start(node.listen or node.addresses[number])
    try:
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(member.run())]
            if companion is not None:
                beside.append(group.create_task(_awaited(companion(look))))
            await server.finished.wait()
            await desk.finish(_FAREWELL_SECONDS)
            await office.finished()
            for task in beside:
                task.cancel()
    finally:
        office.stop()
        await listener.stop(1.0)
        await calls.close()
        workroom.close()
        server.log.close()


async def _awaited(what: Awaitable[None]) -> None:
    await what


class _Office:
    """Holds the coordinator's office while this edge server is the leader."""

    def __init__(
        self,
        server: EdgeServer,
        calls: Calls,
        workroom: Workroom,
        world: World,
        simulation: SimulationParameters,
        deployment: DeploymentParameters,
    ) -> None:
        self._server, self._calls, self._workroom = server, calls, workroom
        self._world, self._simulation, self._deployment = world, simulation, deployment
        self._term: asyncio.Task[None] | None = None
        self.member: Member | None = None

    def on_leader(self, term: int, leader: int | None) -> None:
        """Takes or leaves the office."""
        self._server.obey(term)
        self.stop()
        if leader == self._server.number:
            self._term = asyncio.get_running_loop().create_task(self._lead(term))

    async def _lead(self, term: int) -> None:
        member = self.member
        coordinator = Coordinator(
            self._world,
            self._simulation,
            self._deployment,
            term,
            self._calls,
            self._workroom,
            lambda: member is not None and member.state.term == term and member.leads(),
            self._server.number,
        )
        while not (member is not None and member.leads()):
            await asyncio.sleep(0.01)
        try:
            await coordinator.lead()
        except DeposedError as error:
            _LOG.warning("%s", error)

    async def finished(self) -> None:
        """Returns when the coordinator, if it is this one, has told everybody."""
        if self._term is not None:
            with suppress(asyncio.CancelledError):
                await self._term

    def stop(self) -> None:
        """Leaves the office."""
        if self._term is not None and not self._term.done():
            self._term.cancel()


async def run_device(world: World, deployment: DeploymentParameters, node: Node) -> None:
    """Runs a device until the experiment is over or the task is cancelled."""
    number = node.identity.number
    if number >= world.fleet.devices:
        raise InputError(f"{node.identity}: the experiment has devices 0 to {world.fleet.devices - 1}")
    node.directory.mkdir(parents=True, exist_ok=True)
    credentials = Credentials.read(node.certificates, node.identity)
    calls = GrpcCalls(credentials, node.peers(), len(model_bytes(world.start)))
    workroom = Workroom()
    agent = DeviceAgent(
        world, number, own_data(world, number), deployment, calls, node.directory, workroom, time.monotonic
    )
    try:
        await agent.run()
    finally:
        await calls.close()
        workroom.close()


async def ask_status(node: Node, seconds: float = 3.0) -> dict[int, Any]:
    """The snapshot of every edge server that answers, else the reason why it does not."""
    calls = GrpcCalls(Credentials.read(node.certificates, node.identity), node.peers(), 0)

    async def ask(edge: Identity) -> Any:  # noqa: ANN401
        try:
            return dict((await calls.call(edge, "status", Message(), seconds)).header)
        except DeploymentError as error:
            return str(error)

    try:
        edges = list(node.peers())
        answers = await asyncio.gather(*(ask(edge) for edge in edges))
        return {edge.number: answer for edge, answer in zip(edges, answers, strict=True)}
    finally:
        await calls.close()


def own_data(world: World, number: int) -> DeviceData:
    """A device's samples alone, in a data set of their own: the others' need not stay in its memory."""
    held = world.data[number]
    places = torch.from_numpy(held.indices)
    writers = held.data.train_writers
    alone = replace(
        held.data,
        train_inputs=held.data.train_inputs.index_select(0, places),
        train_targets=held.data.train_targets.index_select(0, places),
        train_writers=None if writers is None else writers[held.indices],
    )
    return DeviceData(alone, np.arange(held.samples))
