"""`cfel bench deployment`: what real processes cost beyond training, and how much memory they need.

    overhead   an edge round's wall time over (slowest training + bytes / loopback throughput), LEAF's CNN
    memory     all processes of a federation together, shared pages counted once
    flat       an edge server early and late in a long run

Times depend on the machine; the ratio hardly does. Memory is what the kernel says: of all processes together
their proportional set sizes, of one its resident set, as the former grows when others end that shared pages.
"""

import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cfel.bench.federations import leaf_federation, small_federation
from cfel.deployment.coordinator.control_state import CoordinatorState, from_json
from cfel.deployment.edge.state import EdgeDisk
from cfel.deployment.payloads import model_size
from cfel.experiment import Experiment
from cfel.launch.federation import LaunchOptions, launch_federation
from cfel.launch.processes import Processes
from cfel.world import World

MOST_OVERHEAD = 1.15
MOST_BYTES = 16 * 2**30
MOST_GROWTH = 1.05
_PIECE = 2**20


@dataclass(frozen=True, slots=True)
class Overhead:
    """Edge rounds of LEAF's CNN.

    Attributes:
        devices: that took part.
        wall_seconds: of an edge round, from one count of the coordinator to the next, the median.
        training_seconds: of its slowest device.
        transfer_seconds: bytes over throughput.
        transferred_bytes: models down and updates up, of all devices.
        bytes_per_second: of one plain TCP connection over loopback, measured right afterwards.
        ratio: the median over edge rounds of wall / (training + transfer).
    """

    devices: int
    wall_seconds: float
    training_seconds: float
    transfer_seconds: float
    transferred_bytes: int
    bytes_per_second: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak of all processes together."""

    devices: int
    edge_servers: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Flat:
    """An edge server's memory after some rounds, and after many."""

    early_round: int
    early_bytes: int
    late_round: int
    late_bytes: int

    @property
    def growth(self) -> float:
        """Late over early."""
        return self.late_bytes / self.early_bytes


def measure_overhead(edge_rounds: int, local_steps: int) -> Overhead:
    """Runs the federation of LEAF's CNN and looks at the last global round but for its first edge round.

    Args:
        edge_rounds: per global round, ≥ 2; the first also holds what follows the global round before.
        local_steps: τ.
    """
    experiment = leaf_federation(edge_rounds, local_steps)
    world = experiment.world()
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        launch_federation(experiment, out, LaunchOptions())
        state = EdgeDisk(out / "nodes" / "edge-0", world.start).load()
    if state.control is None:
        raise AssertionError("a finished run has a control")
    return overhead_of(world, from_json(state.control), loopback_bytes_per_second())


def overhead_of(world: World, control: CoordinatorState, bytes_per_second: float) -> Overhead:
    """From what the clocks said of the edge rounds of one global round."""
    full = model_size(world.start)
    walls, trainings, sizes = [], [], []
    for done in control.done[1:]:
        if done.clocked is None:
            raise AssertionError("the bench measures")
        walls.append(done.clocked.seconds)
        trainings.append(max(each.seconds for each in done.clocked.devices if each is not None))
        sizes.append(sum(full + -(-work.wire_bits // 8) for work in done.work))
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


def loopback_bytes_per_second(total: int = 2**30) -> float:
    """Throughput of one TCP connection to ourselves."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server.getsockname()[1], total), daemon=True)
        sender.start()
        connection, _ = server.accept()
        with connection:
            place, left, begin = bytearray(_PIECE), total, time.perf_counter()
            while left and (got := connection.recv_into(place)):
                left -= got
            seconds = time.perf_counter() - begin
        sender.join()
    return (total - left) / seconds


def _send(port: int, total: int) -> None:
    piece = bytes(_PIECE)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(total // _PIECE):
            connection.sendall(piece)


def measure_memory(devices: int, clusters: int) -> Memory:
    """The peak over two rounds, looked at twice a second."""
    watch = _Watch()
    _played(
        small_federation(devices, clusters, 2), LaunchOptions(on_start=watch.begin, interrupted=watch.look)
    )
    return Memory(devices, clusters, watch.peak)


def measure_flat(early: int, late: int) -> Flat:
    """Edge server 0 of two, with one device each."""
    seen: dict[int, int] = {}
    started: list[Processes] = []

    def note(round_number: int) -> None:
        if round_number in (early, late):
            seen[round_number] = memory_bytes(started[0].pid("edge-0"), "Rss")

    options = LaunchOptions(on_start=started.append, on_round=lambda record: note(record.round))
    # Some rounds more, so that nobody has gone home when the late one is seen.
    _played(small_federation(2, 2, late + 20), options)
    return Flat(early, seen[early], late, seen[late])


def _played(experiment: Experiment, options: LaunchOptions) -> None:
    with tempfile.TemporaryDirectory() as directory:
        launch_federation(experiment, Path(directory) / "run", options)


class _Watch:
    """Adds up the memory of all processes now and then."""

    def __init__(self) -> None:
        self.peak = 0
        self._processes: Processes | None = None
        self._next = 0.0

    def begin(self, processes: Processes) -> None:
        """There is something to look at."""
        self._processes = processes

    def look(self) -> bool:
        """Looks, if it is time; never wants to interrupt."""
        if self._processes is not None and time.monotonic() >= self._next:
            pids = self._processes.pids()
            servers = {parent(pid) for pid in pids}
            self.peak = max(self.peak, sum(memory_bytes(pid, "Pss") for pid in (*pids, *servers)))
            self._next = time.monotonic() + 0.5
        return False


def parent(pid: int) -> int:
    """The process that started a process: here, the one that all nodes are forked from."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])


def memory_bytes(pid: int, kind: str) -> int:
    """Memory of a process; 0 if it has gone.

    Args:
        pid: its number.
        kind: "Rss" for all its pages, "Pss" for shared ones divided by those who share them.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))


def as_document(
    overheads: Sequence[Overhead], memories: Sequence[Memory], flats: Sequence[Flat]
) -> dict[str, Any]:
    """What was measured, as plain values."""
    return {
        "overhead": [asdict(each) | {"aim": MOST_OVERHEAD} for each in overheads],
        "memory": [asdict(each) | {"aim_bytes": MOST_BYTES} for each in memories],
        "flat": [asdict(each) | {"growth": each.growth, "aim": MOST_GROWTH} for each in flats],
    }
