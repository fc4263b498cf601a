"""`python -m benchmarks peers`: the same rounds in cfel, a bare PyTorch loop and other simulators, in turns.

Each system runs one round, again and again, in a worker process of its own (`peer_workers`), so that all
meet the same load. The others have virtual environments of their own: their pins contradict ours.
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
from benchmarks.child import find_parent, read_cpu_seconds, read_memory
from benchmarks.peer_workers import WORKLOADS, Workload, to_argument
from cfel.cli.output import new_table, print_table
from cfel.errors import DeploymentError, InputError

PINS = {"pfl": "pfl==0.6.0", "flower": "flwr[simulation]==1.41.0", "fluke": "fluke-fl==0.8.1"}
ENVIRONMENTS = Path.home() / ".cache" / "cfel" / "peers"
# What a peer needs: fluke itself can be imported without torchvision, its algorithms cannot.
MODULES = {"pfl": "pfl", "flower": "flwr", "fluke": "fluke.algorithms"}
# Peers that share an environment.
TOGETHER = (("pfl", "flower"), ("fluke",))
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
        cpu_seconds: of all its processes, in each further round.
        peak_bytes: memory of all its processes after a round, shared pages counted once; the largest.
    """

    name: str
    start_seconds: float
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
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
    table = new_table("system", "s per round", "fastest", "relative", "CPU s", "MiB", "first s")
    for each in standings:
        table.add_row(
            each.name,
            f"{each.median:.2f}",
            f"{min(each.seconds):.2f}",
            f"{each.median / standings[0].median:.2f}",
            f"{statistics.median(each.cpu_seconds):.2f}",
            f"{each.peak_bytes / 2**20:,.0f}",
            f"{each.start_seconds:.1f}",
        )
    print_table(console, title, table)


def measure(*, quick: bool, only: str | None = None) -> Results:
    """Runs the benchmark, or one workload of it."""
    print(f"{', '.join(PINS.values())} in {ENVIRONMENTS} …", file=sys.stderr)
    entrants = _list_entrants(_prepare_environments())
    races = {}
    for name, workload in WORKLOADS.items():
        if only in (None, name):
            print(f"{workload.name} …", file=sys.stderr)
            races[name] = run_race(workload, entrants, 2 if quick else 7)
    return Results(races)


def _prepare_environments() -> dict[str, Path]:
    """The interpreter of every peer; one that cannot be installed or imported is named, and left out."""
    found: dict[str, Path] = {}
    for peers in TOGETHER:
        try:
            python = prepare_environment(ENVIRONMENTS / "-".join(peers), peers)
            for peer in peers:
                check_import(python, peer)
        except InputError as error:
            print(f"left out: {error}", file=sys.stderr)
        else:
            found |= dict.fromkeys(peers, python)
    return found


def check_import(python: Path, peer: str) -> None:
    """Raises an `InputError` with the reason if a peer that is installed cannot be imported."""
    tried = subprocess.run(
        [python, "-c", f"import {MODULES[peer]}"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(f"{PINS[peer]}: is installed, but cannot be imported: {reason}")


def _list_entrants(theirs: Mapping[str, Path]) -> list[Entrant]:
    cores = os.cpu_count() or 1
    interpreters = {"cfel": Path(sys.executable), "bare": Path(sys.executable), **theirs}
    listed = [
        ("cfel", "cfel", cores),
        ("bare loop, 1 thread", "bare", 1),
        (f"bare loop, {cores} threads", "bare", cores),
        ("pfl, 1 process", "pfl", 1),
        (f"pfl, {cores} processes", "pfl", cores),
        (f"Flower, {cores} actors", "flower", cores),
        # It has one process, and trains one client after another.
        (f"fluke, {cores} threads", "fluke", cores),
    ]
    return [
        Entrant(name, interpreters[system], system, parallel)
        for name, system, parallel in listed
        if system in interpreters
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

    def measure_cpu_seconds(self) -> float:
        """CPU time so far of the worker and everything it started."""
        return sum(read_cpu_seconds(pid) for pid in find_descendants(self.process.pid))

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
    starts, peaks = dict[str, float](), dict[str, int]()
    seconds, cpu = ({each.name: list[float]() for each in entrants} for _ in range(2))
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
                before = worker.measure_cpu_seconds()
                seconds[name].append(worker.run_round())
                cpu[name].append(worker.measure_cpu_seconds() - before)
                peaks[name] = max(peaks.get(name, 0), worker.measure_memory())
    return [
        Standing(name, starts[name], tuple(seconds[name]), tuple(cpu[name]), peaks[name]) for name in starts
    ]


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
