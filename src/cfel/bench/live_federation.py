"""A federation of real processes whose nodes can be killed, started again, or put behind a slow link.

Unlike `cfel up`, nothing restarts a node that is dead. What happened is read from the edge servers' answers
to an operator, and from their logs.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from cfel.bench.link_shaper import Link, Relay, shape
from cfel.bench.shaped_namespace import ShapedNamespace, shape_namespace
from cfel.deployment.protocol.calls import RemoteCalls
from cfel.deployment.protocol.peer_requests import StatusAnswer, StatusRequest
from cfel.deployment.security.credentials import Credentials
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.addresses import split_address
from cfel.deployment.transport.grpc_client import GrpcClient
from cfel.errors import DeploymentError
from cfel.experiment import Experiment, experiment_toml
from cfel.launch.node_file import read_node, write_node
from cfel.launch.preparation import prepare_nodes
from cfel.launch.processes import Processes
from cfel.rounds.run_directory import describe_run
from cfel.runlog import RoundRecord
from cfel.runlog.log import read_log
from cfel.runlog.plans import read_plan
from cfel.world import World

_LOOK_SECONDS = 0.05
_ANSWER_SECONDS = 1.0
_PATIENCE_SECONDS = 600.0
# The relay adds the delay only: it must be faster than the kernel's link, but hold no more bytes than that.
_RELAY_SPEED = 1.25

Looks = dict[int, StatusAnswer]
"""What the edge servers that answer show, by number."""


class LiveFederation:
    """A federation under way.

    Args:
        nodes: directory of the nodes.
        processes: its processes.
        client: an operator's connections to the edge servers.
        edges: the edge servers.
        relays: the slow links, by device.

    Attributes:
        relays: as given.
    """

    def __init__(
        self,
        nodes: Path,
        processes: Processes,
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
        await asyncio.to_thread(self._processes.kill, name)
        return killed_at

    async def start_again(self, name: str) -> None:
        """Starts a node that was killed."""
        await asyncio.to_thread(self._processes.start_again, name)

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
        configurations = prepare_nodes(experiment, world, out, ())
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
        processes = await asyncio.to_thread(
            Processes, [each for each in configurations if each not in outside]
        )
        stack.push_async_callback(asyncio.to_thread, processes.stop)
        for path, namespace in elsewhere:
            await _start_device(stack, path, namespace)
        client = GrpcClient(Credentials.read(node.certificates, node.identity), node.peers(), 0)
        stack.push_async_callback(client.close)
        yield LiveFederation(out / "nodes", processes, client, list(node.peers()), relays)


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
