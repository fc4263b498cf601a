"""`python -m benchmarks peers`: the same rounds in cfel, a bare PyTorch loop, pfl and Flower, taking turns.

Each system runs one round, again and again, in a worker process of its own (`peer_workers`), so that all
meet the same load. pfl and Flower have a virtual environment of their own: their pins contradict ours.
"""

import os
import socket
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from rich.console import Console

import benchmarks
import cfel
from benchmarks.child import find_parent, read_memory
from benchmarks.peer_workers import WORKLOADS, Workload, to_argument
from cfel.cli.output import new_table, print_table
from cfel.errors import DeploymentError, InputError

PINS = {"pfl": "pfl==0.6.0", "flower": "flwr[simulation]==1.41.0"}
ENVIRONMENT = Path.home() / ".cache" / "cfel" / "peers"
# Flower's first round took 73 s on two cores; an overloaded machine takes longer.
_FIRST_SECONDS, _ROUND_SECONDS, _END_SECONDS = 900.0, 600.0, 60.0


@dataclass(frozen=True, slots=True)
class Entrant:
    """One system in the race.

    Attributes:
        name: display name.
        python: its interpreter.
        system: a key of `peer_workers.WORKERS`.
        parallel: threads, processes or actors that it may use.
    """

    name: str
    python: Path
    system: str
    parallel: int


@dataclass(frozen=True, slots=True)
class Standing:
    """What was measured of one system.

    Attributes:
        name: display name.
        start_seconds: from the start of the process to the end of the first round.
        seconds: of each further round.
        peak_bytes: memory of all its processes after a round, shared pages counted once; the largest.
    """

    name: str
    start_seconds: float
    seconds: tuple[float, ...]
    peak_bytes: int

    @property
    def median(self) -> float:
        """Median seconds of a round."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class Results:
    """The standings, by workload."""

    races: Mapping[str, Sequence[Standing]]

    def document(self) -> dict[str, Any]:
        """The results as plain values."""
        return {name: [asdict(each) for each in standings] for name, standings in self.races.items()}

    def show(self, console: Console) -> None:
        """Prints one table per workload."""
        for name, standings in self.races.items():
            _print_standings(console, WORKLOADS[name].name, standings)


def _print_standings(console: Console, title: str, standings: Sequence[Standing]) -> None:
    table = new_table("system", "s per round", "fastest", "relative", "MiB", "first round s")
    for each in standings:
        table.add_row(
            each.name,
            f"{each.median:.2f}",
            f"{min(each.seconds):.2f}",
            f"{each.median / standings[0].median:.2f}",
            f"{each.peak_bytes / 2**20:,.0f}",
            f"{each.start_seconds:.1f}",
        )
    print_table(console, title, table)


def measure(*, quick: bool, only: str | None = None) -> Results:
    """Runs the benchmark, or one workload of it."""
    print(f"{', '.join(PINS.values())} in {ENVIRONMENT} …", file=sys.stderr)
    entrants = _list_entrants(prepare_environment(ENVIRONMENT, tuple(PINS)))
    races = {}
    for name, workload in WORKLOADS.items():
        if only in (None, name):
            print(f"{workload.name} …", file=sys.stderr)
            races[name] = run_race(workload, entrants, 2 if quick else 7)
    return Results(races)


def _list_entrants(theirs: Path) -> list[Entrant]:
    ours, cores = Path(sys.executable), os.cpu_count() or 1
    return [
        Entrant("cfel", ours, "cfel", cores),
        Entrant("bare loop, 1 thread", ours, "bare", 1),
        Entrant(f"bare loop, {cores} threads", ours, "bare", cores),
        Entrant("pfl, 1 process", theirs, "pfl", 1),
        Entrant(f"pfl, {cores} processes", theirs, "pfl", cores),
        Entrant(f"Flower, {cores} actors", theirs, "flower", cores),
    ]


def prepare_environment(folder: Path, peers: tuple[str, ...]) -> Path:
    """Installs the peers, with the torch of this environment, if needed; returns their interpreter.

    Raises:
        InputError: pip cannot install one of them; the message ends with pip's own last line.
    """
    python = folder / "bin" / "python"
    wanted = [f"torch=={version('torch').partition('+')[0]}", *(PINS[peer] for peer in peers)]
    done = folder / "installed.txt"
    if done.is_file() and set(wanted) <= set(done.read_text(encoding="utf-8").splitlines()):
        return python
    venv.create(folder, with_pip=True, clear=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if installed.returncode:
        reason = (installed.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(f"{', '.join(wanted)}: pip cannot install this into {folder}: {reason}")
    done.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    return python


class Worker:
    """A running worker."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, listener: socket.socket) -> None:
        self.process, self._log = process, log
        self._connection, self._lines = self._accept(listener)

    def read_seconds(self, limit: float) -> float:
        """Seconds of the round that the worker reports next."""
        self._connection.settimeout(limit)
        try:
            line = self._lines.readline()
        except TimeoutError as error:
            raise self._explain(f"no round in {limit:.0f} s") from error
        if not line:
            raise self._explain("it ended early")
        return float(line)

    def run_round(self) -> float:
        """Asks for a round; returns its seconds."""
        self._connection.sendall(b"\n")
        return self.read_seconds(_ROUND_SECONDS)

    def measure_memory(self) -> int:
        """Memory of the worker and everything it started."""
        return sum(read_memory(pid, "Pss:") for pid in find_descendants(self.process.pid))

    def end(self) -> None:
        """Closes the connection, which ends the worker, and stops what does not end by itself."""
        family = find_descendants(self.process.pid)
        self._lines.close()
        self._connection.close()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid in family:
            if find_parent(pid):
                os.kill(pid, 15)

    def _accept(self, listener: socket.socket) -> tuple[socket.socket, TextIO]:
        listener.settimeout(1.0)
        deadline = time.monotonic() + _FIRST_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            return connection, connection.makefile("r", encoding="utf-8")
        raise self._explain("it never connected")

    def _explain(self, reason: str) -> DeploymentError:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return DeploymentError(
            f"{self._log.stem}: {reason}; its last words: {' / '.join(lines[-3:]) or 'none'}"
        )


def find_descendants(pid: int) -> set[int]:
    """A process and all its descendants that still run."""
    parents = {int(each.name): find_parent(int(each.name)) for each in Path("/proc").glob("[0-9]*")}
    family, size = {pid}, 0
    while len(family) > size:
        size = len(family)
        family |= {child for child, parent in parents.items() if parent in family}
    return family


def run_race(workload: Workload, entrants: Sequence[Entrant], rounds: int) -> list[Standing]:
    """Starts all systems, one after another, and then lets them take turns.

    Raises:
        DeploymentError: a worker ended early or took too long; the message has its last words.
    """
    starts, seconds, peaks = {}, {each.name: list[float]() for each in entrants}, dict[str, int]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        workers: Mapping[str, Worker] = {}
        for entrant in entrants:
            begin = time.perf_counter()
            worker = stack.enter_context(_start_worker(workload, entrant, folder))
            worker.read_seconds(_FIRST_SECONDS)
            starts[entrant.name] = time.perf_counter() - begin
            workers = {**workers, entrant.name: worker}
        for _ in range(rounds):
            for name, worker in workers.items():
                seconds[name].append(worker.run_round())
                peaks[name] = max(peaks.get(name, 0), worker.measure_memory())
    return [Standing(name, starts[name], tuple(seconds[name]), peaks[name]) for name in starts]


def _link_packages(folder: Path) -> Path:
    """A folder with cfel and its benchmarks only: the peers must not see our other packages."""
    place = folder / "path"
    if not place.exists():
        place.mkdir()
        for package in (cfel, benchmarks):
            (place / package.__name__).symlink_to(Path(str(package.__file__)).parent)
    return place


@contextmanager
def _start_worker(workload: Workload, entrant: Entrant, folder: Path) -> Iterator[Worker]:
    place = folder / f"{entrant.name}.socket"
    log = folder / f"{entrant.name}.log"
    arguments = [entrant.system, str(place), to_argument(workload), str(entrant.parallel)]
    command = [str(entrant.python), "-m", "benchmarks.peer_workers", *arguments]
    environment = os.environ | {"PYTHONPATH": str(_link_packages(folder)), "PYTHONUNBUFFERED": "1"}
    with socket.socket(socket.AF_UNIX) as listener, log.open("wb") as words:
        listener.bind(str(place))
        listener.listen(1)
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=words, stderr=words, env=environment
        )
        worker = None
        try:
            worker = Worker(process, log, listener)
            yield worker
        finally:
            if worker is None:
                process.kill()
                process.wait()
            else:
                worker.end()
