"""`python -m benchmarks coordinator`: whether what the coordinator handles grows with devices.

    memory_transport   whole nodes in one process, on a virtual clock; weighs messages between edge servers
    tls                edge servers as processes, and devices that speak to them over mutual TLS

Fleets of more than 512 devices are planned by asking edge servers. All devices are real ones; those over TLS
share a process, with a connection and a certificate each. A coordinator is an edge server with devices of its
own, so its memory is shown beside that of the others: what it needs for its role is the difference.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from benchmarks.child import ROOT, read_memory
from benchmarks.settings import SMALL, make_random_data
from cfel.cli.output import new_table, print_table
from cfel.deployment.device.agent import DeviceAgent
from cfel.deployment.edge.storage import EdgeDisk
from cfel.deployment.host import Host, RealDisk, make_host
from cfel.deployment.node import Node, ask_status, own_data
from cfel.deployment.payloads import model_size
from cfel.deployment.protocol.calls import ExperimentCheck, RemoteCalls
from cfel.deployment.protocol.edge_requests import TRANSFER_METHODS
from cfel.deployment.protocol.grpc_transport import GrpcClient, device_connections
from cfel.deployment.protocol.messages import Message, encode
from cfel.deployment.security.credentials import Credentials
from cfel.deployment.security.identity import Identity
from cfel.experiment import Experiment, digest_shared_parts, experiment_toml, parse_experiment
from cfel.launch.federation import LaunchOptions, Processes, prepare_nodes
from cfel.launch.node import read_node
from cfel.learning.data.dataset import DataSet
from cfel.learning.torch_state import prepare_process, prepare_thread
from cfel.plugins import ANY_CODE
from cfel.rounds.run_directory import create_run
from cfel.runlog import RoundRecord
from cfel.runlog.records import LogReader
from cfel.status import Status
from cfel.world import World
from tests.deployment.memory_federation import Federation, Network, virtual_hosts
from tests.deployment.virtual_time import run_virtually
from tests.support.memory_disk import MemoryDisk

CLUSTERS = 4
MOST_DEVICES = 3000
# Elections and signs of life say nothing of devices, and snapshots are for people who ask for them.
_OTHERS = ("election", "hello", "status")
_DEADLINE_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a federation of one size exchanges and stores.

    Attributes:
        devices: number of devices.
        state_bytes: the coordinator's state, which travels with commands.
        command_bytes, answer_bytes: the largest of the coordinator, and to it.
        record_bytes: the longest line of the log.
        uses_bytes: which uploads are in a model: what an edge server sends with it, beside its parameters.
    """

    devices: int
    state_bytes: int
    command_bytes: int
    answer_bytes: int
    record_bytes: int
    uses_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessSizes:
    """The same over TLS, with resident memory of edge servers after the last round but one.

    Attributes:
        devices: number of devices, each with its own certificate and connections.
        round_seconds: wall time of the last global round.
        coordinator_bytes: memory of the edge server that coordinates.
        other_bytes: mean memory of the other edge servers.
        state_bytes, record_bytes: as in `Sizes`.
    """

    devices: int
    round_seconds: float
    coordinator_bytes: int
    other_bytes: int
    state_bytes: int
    record_bytes: int


@dataclass(frozen=True, slots=True)
class Results:
    """Federations of different sizes."""

    memory_transport: tuple[Sizes, ...] = ()
    tls: tuple[ProcessSizes, ...] = ()

    def document(self) -> dict[str, Any]:
        """The results as plain values."""
        return asdict(self)

    def show(self, console: Console) -> None:
        """Prints what was measured."""
        if self.memory_transport:
            table = new_table("devices", "state B", "command B", "answer B", "record B", "with a model B")
            for each in self.memory_transport:
                table.add_row(*(f"{value:,}" for value in asdict(each).values()))
            print_table(console, f"Over memory, {CLUSTERS} edge servers", table)
        if self.tls:
            table = new_table("devices", "s/round", "coordinator MiB", "others MiB", "state B", "record B")
            for found in self.tls:
                table.add_row(
                    f"{found.devices:,}",
                    f"{found.round_seconds:.1f}",
                    f"{found.coordinator_bytes / 2**20:.1f}",
                    f"{found.other_bytes / 2**20:.1f}",
                    f"{found.state_bytes:,}",
                    f"{found.record_bytes:,}",
                )
            print_table(console, f"Over mutual TLS, {CLUSTERS} edge servers as processes", table)


def measure(*, quick: bool, only: str | None = None) -> Results:
    """Runs the benchmark, or one part of it."""
    # As in a node's own process: with several threads, small models take longer.
    prepare_process()
    prepare_thread()
    over_memory = (520, 600) if quick else (600, 1000, MOST_DEVICES)
    over_tls = (520,) if quick else (520, 1040)
    return Results(
        tuple(map(measure_messages, over_memory)) if only in (None, "memory_transport") else (),
        tuple(map(measure_processes, over_tls)) if only in (None, "tls") else (),
    )


def load_points(_: Path | None) -> DataSet:
    """Small random images, two for each device of the largest fleet."""
    return make_random_data(replace(SMALL, shape=(1, 4, 4), devices=MOST_DEVICES, samples=2))


def build_experiment(devices: int) -> Experiment:
    """HCEF+ with a small model: each device takes a step in an edge round."""
    return parse_experiment(
        {
            "preset": "none",
            "name": "coordinator",
            "rounds": {"global": 3, "edge": 2, "local": 1},
            "scheme": {"name": "hcef_plus"},
            "fleet": {"devices": devices, "clusters": CLUSTERS},
            "topology": {"kind": "ring"},
            "data": {"name": f"{__name__}:load_points", "partition": "iid", "batch": 2},
            "model": {"name": "mlp"},
            "local": {"learning_rate": 0.01, "momentum_state": "reset"},
            "budget": {"share_of_cef": 0.6},
            "simulation": {"checkpoint_every": 0, "device_accuracy": "never"},
            "deployment": {
                "join_seconds": 900.0,
                "election_seconds": 10.0,
                "gone_seconds": 600.0,
                "round_seconds": 900.0,
                "gossip_seconds": 120.0,
                "linger_seconds": 0.0,
            },
        },
        ANY_CODE,
    )


class Scales(Network):
    """Weighs all messages between edge servers."""

    def __init__(self) -> None:
        super().__init__()
        self.command_bytes: dict[str, int] = {}
        self.answer_bytes: dict[str, int] = {}

    async def deliver(self, caller: Identity, to: Identity, method: str, message: Message) -> Message:
        """See `Network`."""
        answer = await super().deliver(caller, to, method, message)
        if caller.role == to.role == "edge" and method not in _OTHERS:
            for known, found in ((self.command_bytes, message), (self.answer_bytes, answer)):
                known[method] = max(len(found.header), known.get(method, 0))
        return answer


def measure_messages(devices: int) -> Sizes:
    """Plays a federation in this process, on a virtual clock."""
    print(f"{devices:,} devices over memory …", file=sys.stderr)
    experiment, scales = build_experiment(devices), Scales()
    disk = MemoryDisk()

    async def play() -> int:
        home = Path("/nowhere")
        async with Federation(experiment, home, scales, virtual_hosts(disk, 0)) as federation:
            federation.start()
            await federation.finished(_DEADLINE_SECONDS)
            states = [node.server.state.coordinator_state for node in federation.edges.values()]
            return max(len(encode(each)) for each in states)

    state_bytes = run_virtually(play())
    logs = [content for path, content in disk.files.items() if path.name == "rounds.jsonl"]
    return Sizes(
        devices,
        state_bytes,
        max(scales.command_bytes.values()),
        max(size for method, size in scales.answer_bytes.items() if method != "peer_model"),
        max(len(line) for log in logs for line in log.splitlines()),
        scales.answer_bytes["peer_model"],
    )


def measure_processes(devices: int) -> ProcessSizes:
    """Runs edge servers as processes, and devices as tasks of this one."""
    print(f"{devices:,} devices over TLS …", file=sys.stderr)
    experiment = build_experiment(devices)
    world = experiment.build_world()
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        create_run(out, world.setting, experiment_toml(experiment), ()).close()
        files = prepare_nodes(experiment, world, out, LaunchOptions(import_from=(ROOT,)))
        with Processes(files[:CLUSTERS]) as processes:
            return asyncio.run(_serve_devices(experiment, world, files, processes))


async def _serve_devices(
    experiment: Experiment, world: World, files: Sequence[Path], processes: Processes
) -> ProcessSizes:
    host, check = make_host(), ExperimentCheck(digest_shared_parts(experiment))
    nodes = [read_node(path).node for path in files[CLUSTERS:]]
    tasks = [asyncio.create_task(_run_device(experiment, world, node, check, host)) for node in nodes]
    watching = asyncio.create_task(_watch(experiment, world, files, processes))
    try:
        return await watching
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        host.compute.close()


async def _run_device(
    experiment: Experiment, world: World, node: Node, check: ExperimentCheck, host: Host
) -> None:
    """As `deployment.node.run_device`; all of them share a thread, and know their own edge server only."""
    number = node.identity.number
    home = Identity("edge", int(world.setting.fleet.cluster[number]))
    credentials = Credentials.read(node.certificates, node.identity)
    kept = device_connections(experiment.deployment)
    peers = {home: node.peers()[home]}
    client = GrpcClient(credentials, peers, model_size(world.start), kept, kept, TRANSFER_METHODS)
    calls = RemoteCalls(client, check.parts)
    data = own_data(world, number)
    agent = DeviceAgent(
        world, number, data, experiment.deployment, calls, node.directory, host, homes=[home.number]
    )
    try:
        with host.disk.reserve(node.directory):
            await agent.run()
    finally:
        await client.close()


async def _watch(
    experiment: Experiment, world: World, files: Sequence[Path], processes: Processes
) -> ProcessSizes:
    """Waits until the last round but one is logged, and looks at the edge servers."""
    nodes = files[0].parent
    log, records = LogReader(nodes / "edge-0" / "rounds.jsonl"), list[RoundRecord]()
    deadline = asyncio.get_running_loop().time() + _DEADLINE_SECONDS
    while len(records) < experiment.rounds.global_rounds - 1:
        if processes.restart_dead() or asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"{len(records)} rounds within {_DEADLINE_SECONDS:g} s")
        await asyncio.sleep(0.5)
        records += log.read_new()
    answers = await ask_status(read_node(nodes / "operator-0.toml").node, 60.0)
    named = {each.coordinator for each in answers.values() if isinstance(each, Status)}
    memory = {f"edge-{i}": read_memory(processes.pid(f"edge-{i}"), "Rss:") for i in range(CLUSTERS)}
    others = [size for name, size in memory.items() if name not in named]
    state = EdgeDisk(RealDisk(), nodes / "edge-0", world.start).load().coordinator_state
    return ProcessSizes(
        world.setting.fleet.devices,
        records[-1].wall_seconds,
        next(size for name, size in memory.items() if name in named),
        round(mean(others)),
        len(encode(state)),
        max(len(each.to_json_line()) for each in records),
    )
