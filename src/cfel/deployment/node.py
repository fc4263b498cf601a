"""One process of a federation: builds an edge server or a device, connects it to the network, and runs it.

The caller builds the experiment. A process may be stopped at any moment: what matters is on its disk before
any other node hears of it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from cfel.deployment.device.agent import DeviceAgent, add_device
from cfel.deployment.edge.node import EdgeNode, ServeStatus
from cfel.deployment.fleet_limit import check_fleet_size
from cfel.deployment.host import make_host
from cfel.deployment.measurement.energy_counters import EnergyCounter, find_counter
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.payloads import model_size
from cfel.deployment.protocol.calls import Calls, ExperimentCheck, RemoteCalls
from cfel.deployment.protocol.edge_requests import (
    TRANSFER_METHODS,
    ChangeAnswer,
    ChangeRequest,
    StatusRequest,
)
from cfel.deployment.protocol.grpc_transport import (
    GrpcClient,
    GrpcServer,
    control_connections,
    device_connections,
    transfer_connections,
)
from cfel.deployment.security.credentials import CredentialFiles, Credentials, watch_expiry
from cfel.deployment.security.identity import Identity
from cfel.errors import DeploymentError, InputError, RejectedError, UnreachableError
from cfel.learning.task import DeviceData
from cfel.membership import FleetChange
from cfel.status import Status
from cfel.world import World

_LOG = logging.getLogger(__name__)
_CHANGE_SECONDS = 10.0
_ASK_AGAIN_SECONDS = 0.5
# Longer than an election takes, and than a few edge servers take to restart.
_SILENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Node:
    """Where a process stands."""

    identity: Identity  # who it is
    addresses: tuple[str, ...]  # "host:port" of every edge server, by number
    directory: Path  # where it keeps its state
    certificates: Path  # directory with its certificate, key and authority
    listen: str | None = None  # address to listen on, if another than others reach it at; edge servers only
    # Where a device that measures takes its joules from: the host's counters ("auto"), the experiment's
    # "model", or the path of a file that shows microwatts.
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


async def run_edge(
    world: World,
    deployment: DeploymentParameters,
    node: Node,
    experiment_check: ExperimentCheck,
    serve_status: ServeStatus | None = None,
) -> None:
    """Runs an edge server until the experiment is over or the task is cancelled."""
    number, clusters = node.identity.number, world.setting.fleet.clusters
    _check_addresses(node, max(clusters, number + 1))
    check_fleet_size(world, deployment)
    credentials = CredentialFiles(node.certificates, node.identity)
    client = GrpcClient(
        credentials,
        node.peers(),
        model_size(world.start),
        control_connections(deployment),
        transfer_connections(deployment),
        TRANSFER_METHODS,
    )
    calls = RemoteCalls(client, experiment_check.parts)
    edge = EdgeNode(world, deployment, number, node.directory, calls, make_host(), credentials, client.reach)
    endpoints = experiment_check.check_endpoints(edge.endpoints.values())
    listener = GrpcServer(credentials, endpoints, edge.on_rejection, deployment)
    port = await listener.start(node.listen or node.addresses[number])
    _LOG.info("%s of %d listens on port %d", node.identity, world.setting.fleet.clusters, port)
    try:
        async with watch_expiry(lambda: credentials.validity):
            await edge.run(serve_status)
    finally:
        await listener.stop(1.0)
        await client.close()


def _check_addresses(node: Node, clusters: int) -> None:
    if len(node.addresses) < clusters:
        given = f"{node.identity}: addresses has {len(node.addresses)} entries"
        raise InputError(f"{given}, must have {clusters}: one per edge server")


async def run_device(
    world: World,
    deployment: DeploymentParameters,
    node: Node,
    experiment_check: ExperimentCheck,
    data: DeviceData | None = None,
) -> None:
    """Runs a device until the experiment is over or the task is cancelled.

    Args:
        world: what is run.
        deployment: deadlines and limits.
        node: where it stands.
        experiment_check: which experiment that is.
        data: its own samples; None for its part of the experiment's.
    """
    number = node.identity.number
    world = add_device(world, number)
    _check_addresses(node, world.setting.fleet.clusters)
    data = data or own_data(world, number)
    credentials, kept = CredentialFiles(node.certificates, node.identity), device_connections(deployment)
    client = GrpcClient(credentials, node.peers(), model_size(world.start), kept, kept, TRANSFER_METHODS)
    calls, counter = RemoteCalls(client, experiment_check.parts), None
    if deployment.measures:
        counter = node.counter()
    host = make_host()
    try:
        with host.disk.reserve(node.directory):
            homes = range(len(node.addresses))
            agent = DeviceAgent(
                world, number, data, deployment, calls, node.directory, host, counter, homes, client.reach
            )
            async with watch_expiry(lambda: credentials.validity):
                await agent.run()
    finally:
        await client.close()
        host.compute.close()


async def ask_status(node: Node, seconds: float = 3.0) -> dict[int, Status | str]:
    """The snapshot of every edge server that answers, else the reason why it does not."""
    client = GrpcClient(Credentials.read(node.certificates, node.identity), node.peers(), 0)
    calls = RemoteCalls(client)

    async def ask(edge: Identity) -> Status | str:
        try:
            return (await calls.call(edge, StatusRequest(), seconds)).status
        except DeploymentError as error:
            return str(error)

    try:
        edges = list(node.peers())
        answers = await asyncio.gather(*(ask(edge) for edge in edges))
        return _leave_out(dict(zip((edge.number for edge in edges), answers, strict=True)))
    finally:
        await client.close()


def _leave_out(answers: dict[int, Status | str]) -> dict[int, Status | str]:
    """The answers without edge servers that have left the fleet, as those that know the newest round say."""
    known = [each for each in answers.values() if isinstance(each, Status) and each.clusters]
    newest = max(known, key=lambda each: each.round, default=None)
    if newest is None:
        return answers
    members = {each.cluster for each in newest.clusters}
    return {i: each for i, each in answers.items() if i in members or isinstance(each, Status)}


async def ask_for_change(node: Node, change: FleetChange, seconds: float) -> int:
    """Asks the edge servers of a federation for a change; see `ask_until_it_holds`."""
    client = GrpcClient(Credentials.read(node.certificates, node.identity), node.peers(), 0)
    try:
        return await ask_until_it_holds(RemoteCalls(client), node.peers(), change, seconds)
    finally:
        await client.close()


async def ask_until_it_holds(
    calls: Calls, edges: Iterable[Identity], change: FleetChange, seconds: float
) -> int:
    """Asks for a change until a majority has stored it; returns the first global round that it holds for.

    The same edge server is not always there, and a coordinator that dies forgets what waits for the end of
    its round. The change's ticket makes it count once, however often it is asked for.

    Raises:
        RejectedError: it is not possible.
        UnreachableError: no edge server could say within `seconds` that it holds; it may hold later.
    """
    clock, to_ask, words = asyncio.get_running_loop().time, deque(edges), ""
    deadline = clock() + seconds
    silence_ends = clock() + _SILENCE_SECONDS
    while clock() < min(deadline, silence_ends):
        answer = await _ask_any(calls, to_ask, ChangeRequest(change))
        if isinstance(answer, str):
            words = answer
        elif answer.refused:
            raise RejectedError(answer.refused)
        elif answer.round:
            return answer.round
        else:
            words, silence_ends = "", clock() + _SILENCE_SECONDS
        await asyncio.sleep(_ASK_AGAIN_SECONDS)
    if words:
        raise UnreachableError(
            f"{change.describe()}: nobody could take it for {_SILENCE_SECONDS:g} s; the federation has "
            f"ended, is not running, or has no coordinator, see `cfel status`. {words}"
        )
    raise UnreachableError(
        f"{change.describe()} does not hold yet after {seconds:g} s: the present round has not ended; "
        "`cfel status` says what it waits for"
    )


async def _ask_any(calls: Calls, edges: deque[Identity], request: ChangeRequest) -> ChangeAnswer | str:
    """The answer of the first edge server that gives one, which is asked first the next time; or why not."""
    words = ""
    for _ in range(len(edges)):
        try:
            return await calls.call(edges[0], request, _CHANGE_SECONDS)
        except UnreachableError as error:
            words = str(error)
            edges.rotate(-1)
    return words


def own_data(world: World, number: int) -> DeviceData:
    """A data set with one device's samples only, so that those of others need not stay in its memory."""
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
