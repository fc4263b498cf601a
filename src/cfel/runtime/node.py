"""One process of a federation: an edge server or a device, put together, run and stopped.

The experiment is built by whoever calls; here its parts meet the network. A process may be stopped at any
moment: what counts is on the disk before anybody hears of it.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cfel.errors import DeploymentError, InputError
from cfel.learning.task import DeviceData
from cfel.rounds import SimulationParameters
from cfel.runtime.agreement import Agreement
from cfel.runtime.contacts import Contacts, NotedCalls
from cfel.runtime.contents import model_size
from cfel.runtime.desk import Desk
from cfel.runtime.device_agent import DeviceAgent
from cfel.runtime.device_memory import alone_in
from cfel.runtime.edge_server import EdgeServer
from cfel.runtime.identity import Identity
from cfel.runtime.joules import EnergyCounter, find_counter
from cfel.runtime.lookout import Lookout
from cfel.runtime.measured import counting
from cfel.runtime.member import Member
from cfel.runtime.messages import Message
from cfel.runtime.office import Office, WithOwn
from cfel.runtime.parameters import DeploymentParameters
from cfel.runtime.refusals import count, is_worth_a_line
from cfel.runtime.status import Others, snapshot
from cfel.runtime.transport import Calls, Credentials, GrpcCalls, GrpcServer, Method
from cfel.runtime.workroom import Workroom
from cfel.status import Status
from cfel.world import World

_LOG = logging.getLogger(__name__)
_FAREWELL_SECONDS = 5.0
_LEAST_LOOK_SECONDS = 1.0
_LINGER_LOOK_SECONDS = 0.1

Companion = Callable[[Callable[[], Status]], Coroutine[None, None, None]]
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
        energy: where a device that measures takes its joules from: the host's counters ("auto"), the
            experiment's "model", or the path of a file that shows microwatts.
    """

    identity: Identity
    addresses: tuple[str, ...]
    directory: Path
    certificates: Path
    listen: str | None = None
    energy: str = "auto"

    def peers(self) -> dict[Identity, str]:
        """The edge servers' addresses."""
        return {Identity("edge", i): address for i, address in enumerate(self.addresses)}

    def counter(self) -> EnergyCounter | None:
        """The counter of joules; None for the experiment's model.

        Raises:
            InputError: the file that was named shows no microwatts.
        """
        if self.energy == "model":
            return None
        return find_counter() if self.energy == "auto" else find_counter(power_file=Path(self.energy))


class EdgeNode:
    """All parts of an edge server put together; how they are reached is the caller's business.

    Args:
        world: what is run.
        simulation: accounts, evaluation, when to stop.
        deployment: deadlines and limits.
        number: its cluster.
        directory: where it keeps what it must not forget.
        calls: how it reaches other edge servers.

    Attributes:
        methods: what it offers to others.
    """

    def __init__(
        self,
        world: World,
        simulation: SimulationParameters,
        deployment: DeploymentParameters,
        number: int,
        directory: Path,
        calls: Calls,
    ) -> None:
        self.identity = Identity("edge", number)
        self.methods: dict[str, Method] = {}
        self.refused: dict[str, int] = {}
        self._world = world
        simulation = counting(simulation, deployment)
        self._shown: Status | None = None
        self._patience_seconds = 2 * deployment.gossip_seconds
        self._linger_seconds = deployment.linger_seconds
        self._workroom = Workroom()
        others = [i for i in range(world.fleet.clusters) if i != number]
        interval_seconds = max(_LEAST_LOOK_SECONDS, 2 * deployment.election_seconds)
        self._contacts = Contacts(others, interval_seconds, time.monotonic)
        calls = NotedCalls(calls, self._contacts)
        reach = WithOwn(self.identity, calls, self.methods)
        devices = tuple(np.flatnonzero(world.fleet.cluster == number).tolist())
        self.desk = Desk(
            devices,
            world.start,
            deployment,
            self._workroom,
            time.monotonic,
            len(world.local.kept_energy_at),
        )
        self.server = EdgeServer(
            world,
            simulation,
            number,
            directory,
            self.desk,
            reach,
            self._workroom,
            deployment.gossip_seconds,
        )
        self._office = Office(
            self.server, reach, self._workroom, world, simulation, deployment, self.on_refusal
        )
        self.member = Member(
            number,
            world.fleet.clusters,
            deployment.election_seconds,
            directory / "ballot.json",
            calls,
            self._on_leader,
        )
        self.server.obey(self.member.state.term)
        self.lookout = Lookout(self.server, self.desk, self.member, calls, self._contacts, time.monotonic)
        parts = (self.server, self.desk, self.member, self.lookout)
        methods = {name: method for part in parts for name, method in part.methods().items()}
        methods["status"] = Method(("edge", "operator"), self._status)
        self.methods |= self._contacts.noting(methods)

    async def run(self, companion: Companion | None = None) -> None:
        """Takes part until the experiment is over."""
        chronicle = self.server.chronicle
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(self.member.run()), group.create_task(self.lookout.run())]
                if companion is not None:
                    beside.append(group.create_task(companion(self.look)))
                await chronicle.finished.wait()
                await self.desk.finish(_FAREWELL_SECONDS)
                # Its vote is needed until the coordinator has told everybody.
                await self._office.closing()
                await _at_most(self._patience_seconds, "not dismissed", chronicle.dismissed.wait())
                if chronicle.awaited:
                    missing = f"edge servers {list(chronicle.awaited)} have not come for the end"
                    await _at_most(self._linger_seconds, missing, self._all_know())
                for task in beside:
                    task.cancel()
        finally:
            self._office.leave()
            self._workroom.close()
            chronicle.log.close()

    async def _all_know(self) -> None:
        """Returns when those who missed the end have come and learned of it."""
        while not self.lookout.over.issuperset(self.server.chronicle.awaited):
            await asyncio.sleep(_LINGER_LOOK_SECONDS)

    def look(self) -> Status:
        """What it shows of itself."""
        problem = " ".join(each for each in (self.lookout.problem, self._office.problem) if each)
        others = Others(self.lookout.devices(), self._contacts.state, problem)
        now = snapshot(self._world, self.server, self.member, others, self.refused)
        if self._shown is None or replace(self._shown, unix_seconds=0.0) != now:
            self._shown = replace(now, unix_seconds=time.time())
        return self._shown

    def on_refusal(self, caller: Identity | None, method: str, reason: str) -> None:
        """Counts a call that was refused."""
        times = count(self.refused, reason)
        if is_worth_a_line(times):
            _LOG.warning("refused %s of %s: %s (%d so far)", method, caller, reason, times)

    def _on_leader(self, term: int, leader: int | None) -> None:
        self._office.change(term, leader, self.member)

    async def _status(self, caller: Identity, message: Message) -> Message:
        del caller, message
        here = {
            "role": self.member.state.role.value,
            "global_round": self.server.state.position[0],
            "connected": self.desk.connected(),
        }
        return Message({**json.loads(self.look().to_json()), **here})


async def run_edge(
    world: World,
    simulation: SimulationParameters,
    deployment: DeploymentParameters,
    node: Node,
    agreement: Agreement,
    companion: Companion | None = None,
) -> None:
    """Runs an edge server until the experiment is over or the task is cancelled."""
    number, clusters = node.identity.number, world.fleet.clusters
    if number >= clusters:
        raise InputError(f"{node.identity}: the experiment has edge servers 0 to {clusters - 1}")
    _check_addresses(node, clusters)
    credentials = Credentials.read(node.certificates, node.identity)
    calls = GrpcCalls(credentials, node.peers(), model_size(world.start))
    edge = EdgeNode(world, simulation, deployment, number, node.directory, agreement.said_in(calls))
    listener = GrpcServer(credentials, agreement.expected_of(edge.methods), edge.on_refusal, deployment)
    port = await listener.start(node.listen or node.addresses[number])
    _LOG.info("%s of %d listens on port %d", node.identity, world.fleet.clusters, port)
    try:
        await edge.run(companion)
    finally:
        await listener.stop(1.0)
        await calls.close()


def _check_addresses(node: Node, clusters: int) -> None:
    if len(node.addresses) != clusters:
        raise InputError(
            f"{node.identity}: addresses has {len(node.addresses)} entries, the experiment {clusters} edge "
            "servers"
        )


async def _at_most(seconds: float, otherwise: str, what: Coroutine[None, None, Any]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await what
    except TimeoutError:
        _LOG.warning("goes after %s s: %s", seconds, otherwise)


async def run_device(
    world: World,
    deployment: DeploymentParameters,
    node: Node,
    agreement: Agreement,
    data: DeviceData | None = None,
) -> None:
    """Runs a device until the experiment is over or the task is cancelled.

    Args:
        world: what is run.
        deployment: deadlines and limits.
        node: where it stands.
        agreement: which experiment that is.
        data: samples of its own; None for its part of the experiment's.
    """
    number = node.identity.number
    if number >= world.fleet.devices:
        raise InputError(f"{node.identity}: the experiment has devices 0 to {world.fleet.devices - 1}")
    _check_addresses(node, world.fleet.clusters)
    with alone_in(node.directory):
        await _run_device(world, deployment, node, agreement, data or own_data(world, number))


async def _run_device(
    world: World, deployment: DeploymentParameters, node: Node, agreement: Agreement, data: DeviceData
) -> None:
    credentials = Credentials.read(node.certificates, node.identity)
    calls = GrpcCalls(credentials, node.peers(), model_size(world.start))
    workroom = Workroom()
    agent = DeviceAgent(
        world,
        node.identity.number,
        data,
        deployment,
        agreement.said_in(calls),
        node.directory,
        workroom,
        time.monotonic,
        node.counter() if deployment.measures else None,
    )
    try:
        await agent.run()
    finally:
        await calls.close()
        workroom.close()


async def ask_status(node: Node, seconds: float = 3.0) -> dict[int, Status | str]:
    """The snapshot of every edge server that answers, else the reason why it does not."""
    calls = GrpcCalls(Credentials.read(node.certificates, node.identity), node.peers(), 0)

    async def ask(edge: Identity) -> Status | str:
        try:
            answer = await calls.call(edge, "status", Message(), seconds)
            return Status.from_json(json.dumps(dict(answer.header)))
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
