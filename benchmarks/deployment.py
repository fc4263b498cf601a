"""`python -m benchmarks deployment`: overhead and memory of real processes.

    overhead   wall time of an edge round / (slowest training + bytes / loopback throughput), with LEAF's CNN,
               and where the processor time of such a round goes
    memory     all processes of a federation together, shared pages counted once
    flat       memory of an edge server early and late in a long run

Times depend on the machine, the ratio hardly does. Memory is the proportional set size for all processes
together, and the resident set size for a single one: the proportional size of a process grows when another
one that shared pages with it ends.
"""

import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.breakdown import VARIABLE, read_spent
from benchmarks.child import ROOT, find_parent, read_memory
from benchmarks.federations import build_leaf_experiment, build_small_experiment
from cfel.cli.output import new_table, print_table
from cfel.deployment.coordinator.state import CoordinatorState
from cfel.deployment.edge.storage import EdgeDisk
from cfel.deployment.host import RealDisk
from cfel.deployment.payloads import model_size
from cfel.experiment import Experiment
from cfel.launch.federation import LaunchOptions, Processes, launch_federation
from cfel.runlog.directory import plan_path
from cfel.world import World

MAX_OVERHEAD = 1.10
MAX_BYTES = 16 * 2**30
MAX_GROWTH = 1.05
_CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Overhead:
    """Edge rounds of LEAF's CNN.

    Attributes:
        devices: number of devices.
        wall_seconds: median duration of an edge round, as recorded by the coordinator.
        training_seconds: median training time of the slowest device.
        transfer_seconds: bytes divided by throughput.
        transferred_bytes: models and updates of all devices.
        bytes_per_second: throughput of one plain TCP connection over loopback, measured right afterwards.
        ratio: median over edge rounds of wall / (training + transfer).
        edge_server, all_devices: what they do, and the seconds of processor time of an edge round.
    """

    devices: int
    wall_seconds: float
    training_seconds: float
    transfer_seconds: float
    transferred_bytes: int
    bytes_per_second: float
    ratio: float
    edge_server: Mapping[str, float] = field(default_factory=dict)
    all_devices: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak memory of all processes together."""

    devices: int
    edge_servers: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """Memory of an edge server early and late in a run."""

    early_round: int
    early_bytes: int
    late_round: int
    late_bytes: int

    @property
    def growth(self) -> float:
        """Late memory divided by early memory."""
        return self.late_bytes / self.early_bytes


@dataclass(frozen=True, slots=True)
class Results:
    """The parts that were measured."""

    overhead: Overhead | None = None
    memory: Memory | None = None
    flat: MemoryGrowth | None = None

    def document(self) -> dict[str, Any]:
        """The results as plain values."""
        document = asdict(self)
        if self.flat is not None:
            document["flat"]["growth"] = self.flat.growth
        return document

    def show(self, console: Console) -> None:
        """Prints what was measured."""
        if self.overhead is not None:
            _print_overhead(console, self.overhead)
        if self.memory is not None:
            peak = self.memory
            console.print(
                f"peak memory of {peak.devices} devices and {peak.edge_servers} edge servers: "
                f"{peak.peak_bytes / 2**30:.2f} GiB (goal: below {MAX_BYTES / 2**30:.0f})"
            )
        if self.flat is not None:
            flat = self.flat
            console.print(
                f"an edge server after {flat.early_round} rounds: {flat.early_bytes / 2**20:.1f} MiB, after "
                f"{flat.late_round}: {flat.late_bytes / 2**20:.1f} MiB, ratio {flat.growth:.3f} "
                f"(goal: ≤ {MAX_GROWTH})"
            )


def _print_overhead(console: Console, found: Overhead) -> None:
    table = new_table("devices", "wall s", "slowest training s", "MB moved", "transfer s", "ratio", "goal")
    table.add_row(
        str(found.devices),
        f"{found.wall_seconds:.2f}",
        f"{found.training_seconds:.2f}",
        f"{found.transferred_bytes / 1e6:,.0f}",
        f"{found.transfer_seconds:.2f}",
        f"{found.ratio:.3f}",
        f"≤ {MAX_OVERHEAD}",
    )
    print_table(console, "An edge round of LEAF's CNN", table)
    edge, devices = found.edge_server, found.all_devices
    table = new_table("processor time of an edge round", "edge server", "all devices")
    for item in sorted({*edge, *devices}, key=lambda item: -edge.get(item, 0.0) - devices.get(item, 0.0)):
        table.add_row(item, *(f"{1e3 * each.get(item, 0.0):,.0f} ms" for each in (edge, devices)))
    table.add_row("all", *(f"{1e3 * sum(each.values()):,.0f} ms" for each in (edge, devices)))
    print_table(console, "Where it goes", table)


def measure(*, quick: bool, only: str | None = None) -> Results:
    """Runs the benchmark, or one part of it."""
    overhead, memory, flat = None, None, None
    if only in (None, "overhead"):
        print("LEAF's CNN on 8 device processes …", file=sys.stderr)
        overhead = measure_overhead(*((3, 3) if quick else (6, 5)))
    if only in (None, "memory"):
        devices, clusters = (16, 4) if quick else (64, 8)
        print(f"{devices} device processes and {clusters} edge servers …", file=sys.stderr)
        memory = measure_memory(devices, clusters)
    if only in (None, "flat"):
        early, late = (20, 60) if quick else (50, 200)
        print(f"{late} rounds of one edge server …", file=sys.stderr)
        flat = measure_growth(early, late)
    return Results(overhead, memory, flat)


def measure_overhead(edge_rounds: int, local_steps: int) -> Overhead:
    """Runs a federation with LEAF's CNN and measures its last global round, except the first edge round.

    Args:
        edge_rounds: per global round, ≥ 2; the first one includes work left from the previous global round.
        local_steps: τ.
    """
    experiment = build_leaf_experiment(edge_rounds, local_steps)
    world = experiment.build_world()
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        edge, os.environ[VARIABLE] = out / "nodes" / "edge-0", directory
        try:
            launch_federation(experiment, out, LaunchOptions(import_from=(ROOT,)))
        finally:
            del os.environ[VARIABLE]
        state = EdgeDisk(RealDisk(), edge, world.start).load()
        # An edge server writes the plan table at the end of a global round.
        begin, end = (plan_path(edge, number).stat().st_mtime for number in (1, 2))
        spent = {path.stem: read_spent(path, begin, end) for path in Path(directory).glob("*.jsonl")}
    if state.coordinator_state is None:
        raise AssertionError("a finished run has a control state")
    found = compute_overhead(world, state.coordinator_state, measure_loopback())
    kinds: dict[str, Counter[str]] = {"edge": Counter(), "device": Counter()}
    for node, items in spent.items():
        kinds[node.partition("-")[0]].update(items)
    each = [{item: seconds / edge_rounds for item, seconds in kind.items()} for kind in kinds.values()]
    return replace(found, edge_server=each[0], all_devices=each[1])


def compute_overhead(world: World, control: CoordinatorState, bytes_per_second: float) -> Overhead:
    """The overhead of one global round, from the times that the nodes measured."""
    full = model_size(world.start)
    walls, trainings, sizes = [], [], []
    for finished in control.finished[1:]:
        if finished.measurements is None:
            raise AssertionError("the benchmark runs with measured conditions")
        walls.append(finished.measurements.seconds)
        trainings.append(max(each.seconds for each in finished.measurements.devices if each is not None))
        sizes.append(sum(full + -(-work.wire_bits // 8) for work in finished.work))
    ratios = [
        wall / (training + size / bytes_per_second)
        for wall, training, size in zip(walls, trainings, sizes, strict=True)
    ]
    size = round(statistics.median(sizes))
    return Overhead(
        devices=world.setting.fleet.devices,
        wall_seconds=statistics.median(walls),
        training_seconds=statistics.median(trainings),
        transfer_seconds=size / bytes_per_second,
        transferred_bytes=size,
        bytes_per_second=bytes_per_second,
        ratio=statistics.median(ratios),
    )


def measure_loopback(total: int = 2**30) -> float:
    """Throughput in bytes per second of one TCP connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server.getsockname()[1], total), daemon=True)
        sender.start()
        connection, _ = server.accept()
        with connection:
            buffer, left, begin = bytearray(_CHUNK_BYTES), total, time.perf_counter()
            while left and (got := connection.recv_into(buffer)):
                left -= got
            seconds = time.perf_counter() - begin
        sender.join()
    return (total - left) / seconds


def _send(port: int, total: int) -> None:
    chunk = bytes(_CHUNK_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(total // _CHUNK_BYTES):
            connection.sendall(chunk)


def measure_memory(devices: int, clusters: int) -> Memory:
    """Peak memory over two rounds, sampled twice a second."""
    monitor = _MemoryMonitor()
    _run_federation(
        build_small_experiment(devices, clusters, 2),
        LaunchOptions(interrupted=monitor.sample),
    )
    return Memory(devices, clusters, monitor.peak)


def measure_growth(early: int, late: int) -> MemoryGrowth:
    """Memory of edge server 0 in a federation of two edge servers with one device each."""
    seen: dict[int, int] = {}
    started: list[Processes] = []

    def measure(round_number: int) -> None:
        if round_number in (early, late):
            seen[round_number] = read_memory(started[0].pid("edge-0"), "Rss:")

    options = LaunchOptions(on_start=started.append, on_round=lambda record: measure(record.round))
    # Some extra rounds, so that all processes still run when the late round is measured.
    _run_federation(build_small_experiment(2, 2, late + 20), options)
    return MemoryGrowth(early, seen[early], late, seen[late])


def _run_federation(experiment: Experiment, options: LaunchOptions) -> None:
    with tempfile.TemporaryDirectory() as directory:
        launch_federation(experiment, Path(directory) / "run", options)


class _MemoryMonitor:
    """Samples the memory of all processes and keeps the peak."""

    def __init__(self) -> None:
        self.peak = 0
        self._next = 0.0

    def sample(self) -> bool:
        """Takes a sample if it is time. Used as the check for interrupts, so it returns False."""
        if time.monotonic() >= self._next:
            pids = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
            # All nodes are forked from one server process, which belongs to the federation too.
            servers = {find_parent(pid) for pid in pids}
            self.peak = max(self.peak, sum(read_memory(pid, "Pss:") for pid in (*pids, *servers)))
            self._next = time.monotonic() + 0.5
        return False
