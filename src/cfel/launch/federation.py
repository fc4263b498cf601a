"""`cfel up`: a whole federation on one machine, as processes that know one another only by the network.

DIR/
├── experiment.toml, rounds.jsonl, plans/, …     a run directory like any other, merged from the nodes'
├── certificates/                                 authority and certificates of this federation
└── nodes/edge-0.toml, edge-0/, edge-0.log, …     each node's configuration, memory and log
"""

import multiprocessing
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from cfel.deployment.edge.state import EdgeDisk
from cfel.deployment.node import Node
from cfel.deployment.security.certificates import is_revoked, issue, make_authority
from cfel.deployment.security.identity import Identity
from cfel.errors import CfelError, DeploymentError, InputError, NotAdmittedError, reason
from cfel.experiment import Experiment, experiment_toml
from cfel.launch.node import NodeFile, run_node, start_logging, write_node
from cfel.learning.models.flat import FlatModel
from cfel.rounds import fleet_description, is_last, refuse_other_experiment
from cfel.runlog import (
    Checkpoint,
    RoundRecord,
    RunDirectory,
    RunWriter,
    describe_environment,
    holds_run,
)
from cfel.runlog.log import read_log
from cfel.runlog.plans import plan_path, read_plan
from cfel.world import World

_LOOK_SECONDS = 0.1
_STOP_SECONDS = 10.0
MOST_RESTARTS = 20
# How a process of ours ends when its member is refused; 1 and 2 are taken.
_TURNED_AWAY = 3
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Raising:
    """How a federation is brought up.

    Attributes:
        command: what was typed, for the record.
        resume: go on with the federation in the directory.
        on_round: told of every finished round.
        interrupted: asked all the time; true stops the federation, which may be resumed.
        on_start: told when all processes have been started.
        on_loss: told the name of every device that is let in no more, which ends nothing.
        import_from: folders with code of one's own.
    """

    command: tuple[str, ...] = ()
    resume: bool = False
    on_round: Callable[[RoundRecord], None] = lambda _: None
    interrupted: Callable[[], bool] = lambda: False
    on_start: Callable[["Processes"], None] = lambda _: None
    on_loss: Callable[[str], None] = lambda _: None
    import_from: tuple[Path, ...] = ()


def bring_up(experiment: Experiment, out: Path, raising: Raising) -> list[RoundRecord]:
    """Runs an experiment as a federation of processes on this machine.

    Returns:
        The records of all rounds.

    Raises:
        DeploymentError: a process cannot go on.
        KeyboardInterrupt: it was interrupted; everything is on the disk.
    """
    free_ports(experiment.deployment.host, 1)  # before anything is left on the disk
    world = experiment.world()
    resolved = experiment.resolved(world)
    text = experiment_toml(resolved)
    if raising.resume and holds_run(out):
        refuse_other_experiment(out, text)
        writer, _ = RunWriter.resume(out, experiment_toml=text)
    else:
        environment = describe_environment(
            list(raising.command), started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        )
        writer = RunWriter.create(
            out, experiment_toml=text, fleet=fleet_description(world), environment=environment
        )
    with writer:
        configurations = prepare(resolved, world, out, raising.import_from)
        merge(out, writer, world, raising.on_round)
        if not _is_over(resolved, world, out):
            with Processes(configurations) as processes:
                raising.on_start(processes)
                _watch(resolved, world, out, writer, processes, raising)
        _keep_models(world, out, writer)
    return list(RunDirectory.open(out).records())


def prepare(experiment: Experiment, world: World, out: Path, import_from: tuple[Path, ...]) -> list[Path]:
    """Certificates and configuration files for every node; the paths of the latter, edge servers first."""
    deployment = experiment.deployment
    certificates, nodes = out.absolute() / "certificates", out.absolute() / "nodes"
    nodes.mkdir(exist_ok=True)
    make_authority(certificates)
    clusters = world.fleet.clusters
    ports = free_ports(deployment.host, 2 * clusters)
    addresses = tuple(f"{deployment.host}:{port}" for port in ports[:clusters])
    members = [
        *(Identity("edge", i) for i in range(world.fleet.clusters)),
        *(Identity("device", n) for n in range(world.fleet.devices)),
        Identity("operator", 0),
    ]
    for member in members:
        # Whoever was revoked stays so when the federation goes on.
        if not is_revoked(certificates, member):
            issue(certificates, member, deployment.certificate_hours, (deployment.host,))
        # A counter measures the whole host: with many devices on it, each would count the others too.
        energy = "model" if member.role == "device" else "auto"
        node = Node(member, addresses, nodes / str(member), certificates, energy=energy)
        page = f"{LOOPBACK}:{ports[clusters + member.number]}" if member.role == "edge" else None
        file = NodeFile(node, out.absolute() / "experiment.toml", import_from, page)
        write_node(nodes / f"{member}.toml", file)
    return [nodes / f"{member}.toml" for member in members if member.role != "operator"]


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody listens on at the moment.

    Raises:
        InputError: the host is not this machine.
    """
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((host, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    except OSError as error:
        words = f"deployment.host = {host!r}: must be an address of this machine ({reason(error)})"
        raise InputError(words) from error
    finally:
        for each in sockets:
            each.close()


def merge(
    out: Path, writer: RunWriter, world: World, on_round: Callable[[RoundRecord], None] = lambda _: None
) -> None:
    """Adds rounds that the edge servers have written down to the run directory's own log."""
    logs = [out / "nodes" / f"edge-{i}" for i in range(world.fleet.clusters)]
    found: dict[int, RoundRecord] = {}
    for node in logs:
        if (node / "rounds.jsonl").exists():
            found |= {each.round: each for each in read_log(node / "rounds.jsonl").records}
    while (number := (writer.last_round or 0) + 1) in found:
        tables = [node for node in logs if plan_path(node, number).exists()]
        writer.append(found[number], read_plan(tables[0], number) if tables else None)
        on_round(found[number])


def _is_over(experiment: Experiment, world: World, out: Path) -> bool:
    records = RunDirectory.open(out).records()
    return bool(records) and is_last(world, experiment.simulation, records[-1])


def _watch(
    experiment: Experiment,
    world: World,
    out: Path,
    writer: RunWriter,
    processes: "Processes",
    raising: Raising,
) -> None:
    """Looks on until the last round is written down and everybody has gone home."""
    while not _is_over(experiment, world, out):
        if raising.interrupted():
            processes.stop()
            merge(out, writer, world, raising.on_round)
            _keep_models(world, out, writer)
            raise KeyboardInterrupt
        for name in processes.look():
            raising.on_loss(name)
        time.sleep(_LOOK_SECONDS)
        merge(out, writer, world, raising.on_round)
    processes.wait(_STOP_SECONDS)


def _keep_models(world: World, out: Path, writer: RunWriter) -> None:
    """A checkpoint with the edge models, for `cfel export`, if all are of the last round in the log."""
    states = [EdgeDisk(out / "nodes" / f"edge-{i}", world.start).load() for i in range(world.fleet.clusters)]
    if writer.last_round is None or any(state.position != (writer.last_round, 0, 0) for state in states):
        return
    tensors = {}
    for i, state in enumerate(states):
        model: FlatModel = state.model
        tensors[f"edge/{i}/parameters"] = model.parameters.numpy()
        tensors[f"edge/{i}/buffers"] = model.buffers.numpy()
    writer.save_checkpoint(Checkpoint(writer.last_round, tensors, {"deployment": True}))
    writer.wait()


@dataclass
class _Running:
    configuration: Path
    process: BaseProcess
    restarts: int = 0
    over: bool = field(default=False)

    @property
    def is_device(self) -> bool:
        return self.configuration.stem.startswith("device-")

    @property
    def is_outside(self) -> bool:
        return self.process.exitcode == _TURNED_AWAY


class Processes:
    """The processes of a federation; a context manager that leaves none behind.

    They are forked from one server process that has loaded all code once, so that a process starts in a
    moment and shares its memory. One that dies is started again.

    Args:
        configurations: one file per process.
    """

    def __init__(self, configurations: Iterable[Path]) -> None:
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["cfel.launch.federation"])
        self._running = [_Running(path, self._start(path)) for path in configurations]

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def pid(self, name: str) -> int:
        """The process number of a node, such as "edge-0"."""
        (found,) = (each for each in self._running if each.configuration.stem == name)
        return found.process.pid or 0

    def pids(self) -> list[int]:
        """The process numbers of all nodes that run."""
        return [each.process.pid for each in self._running if each.process.pid and each.process.is_alive()]

    def look(self) -> list[str]:
        """Starts those again that have died.

        Returns:
            The devices that have been turned away since the last look; the others go on without them.

        Raises:
            DeploymentError: one of them cannot go on.
        """
        turned_away = []
        for each in self._running:
            code = each.process.exitcode
            if code is None or each.over:
                continue
            if code == 0:
                each.over = True
            elif code == _TURNED_AWAY and each.is_device:
                each.over = True
                turned_away.append(each.configuration.stem)
            elif code in (2, _TURNED_AWAY) or each.restarts >= MOST_RESTARTS:
                log = each.configuration.with_suffix(".log")
                raise DeploymentError(f"{each.configuration.stem} ended with code {code}, see {log}")
            else:
                each.process, each.restarts = self._start(each.configuration), each.restarts + 1
        if turned_away and all(each.is_outside for each in self._running if each.is_device):
            raise DeploymentError("all devices were turned away; --resume gives those not revoked a new try")
        return turned_away

    def wait(self, seconds: float) -> None:
        """Returns when all have ended, or after a while."""
        deadline = time.monotonic() + seconds
        for each in self._running:
            each.process.join(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Ends all processes, the obstinate ones by force."""
        for each in self._running:
            if each.process.exitcode is None and each.process.pid is not None:
                os.kill(each.process.pid, signal.SIGCONT)
                each.process.terminate()
        self.wait(_STOP_SECONDS)
        for each in self._running:
            if each.process.exitcode is None:
                each.process.kill()
                each.process.join()

    def _start(self, configuration: Path) -> BaseProcess:
        process = self._context.Process(target=_node_process, args=(configuration,), name=configuration.stem)
        process.start()
        return process


def _node_process(configuration: Path) -> None:
    """A node, in its own process; Ctrl-C is the business of whoever brought the federation up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = configuration.with_suffix(".log")
    start_logging(log)
    try:
        run_node(configuration)
    except CfelError as error:
        with log.open("a") as file:
            file.write(f"{error}\n")
        raise SystemExit(_exit_code(error)) from error
    except Exception:  # noqa: BLE001 — whatever it is, it must be in the node's log before the process ends
        with log.open("a") as file:
            traceback.print_exc(file=file)
        raise SystemExit(1) from None


def _exit_code(error: CfelError) -> int:
    """2 for what no restart mends, as on the command line."""
    if isinstance(error, NotAdmittedError):
        return _TURNED_AWAY
    return 2 if isinstance(error, InputError) else 1
