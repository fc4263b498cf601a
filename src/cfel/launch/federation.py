"""`cfel up`: a whole federation on one machine, as processes that communicate only over the network.

DIR/
├── experiment.toml, rounds.jsonl, plans/, …     a run directory like any other, merged from the nodes'
├── certificates/                                 authority and certificates of this federation
└── nodes/edge-0.toml, edge-0/, edge-0.log, …     each node's configuration, state and log

Every node gets a certificate and a configuration file, and is restarted when it dies.
"""

import errno
import logging
import multiprocessing
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from cfel.deployment.coordinator.changes import adopt_records
from cfel.deployment.edge.book import join_rows
from cfel.deployment.edge.storage import EdgeDisk, read_losses
from cfel.deployment.fleet_limit import check_fleet_size
from cfel.deployment.host import RealDisk
from cfel.deployment.node import Node
from cfel.deployment.protocol.addresses import join_address
from cfel.deployment.security.certificates import is_revoked, issue, make_authority
from cfel.deployment.security.identity import Identity
from cfel.durable import check_directory, make_directory
from cfel.errors import AllDivergedError, CfelError, DeploymentError, DiskError, InputError, describe_error
from cfel.experiment import Experiment, experiment_toml
from cfel.launch.logs import LogSettings, start_logging
from cfel.launch.node import (
    DAMAGED,
    DIVERGED,
    INVALID,
    OTHER_VERSION,
    REJECTED,
    NodeFile,
    choose_exit_code,
    name_process,
    read_node,
    run_node,
    write_node,
)
from cfel.learning.edge import edge_tensors
from cfel.rounds.kernel import is_over
from cfel.rounds.run_directory import RunRequest, open_run
from cfel.runlog import Checkpoint, RoundRecord, RunDirectory, RunWriter
from cfel.runlog.directory import plan_path, read_plan
from cfel.runlog.records import LogReader
from cfel.simulation.parameters import reject_buffering
from cfel.world import World

STOP_SECONDS = 10.0
MOST_RESTARTS = 20
LOOPBACK, LOOPBACK_V6 = "127.0.0.1", "::1"
# How often the tables of edge servers that do not answer are looked for.
_MOST_LOOKS = 100
_POLL_SECONDS = 0.1
# Between two attempts to write to a disk that is full.
_DISK_SECONDS = 2.0
_LOG = logging.getLogger(__name__)


@dataclass
class _NodeProcess:
    configuration: Path
    process: BaseProcess
    restarts: int = 0
    over: bool = False

    @property
    def is_device(self) -> bool:
        return self.configuration.stem.startswith("device-")

    @property
    def is_rejected(self) -> bool:
        return self.process.exitcode == REJECTED


class Processes:
    """The processes of a federation; a context manager that leaves none behind.

    They are forked from one server process that has imported all code once, so that they start quickly and
    share its memory. Each has a configuration file.
    """

    def __init__(self, configurations: Iterable[Path]) -> None:
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["cfel.launch.federation"])
        self._processes = [_NodeProcess(path, self._start(path)) for path in configurations]

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def pid(self, name: str) -> int:
        """The process id of a node, such as "edge-0"."""
        (found,) = (each for each in self._processes if each.configuration.stem == name)
        return found.process.pid or 0

    @property
    def are_over(self) -> bool:
        """Whether all nodes have ended, as `restart_dead` saw them last."""
        return all(each.over for each in self._processes)

    def restart_dead(self) -> list[str]:
        """Restarts processes that have died, or raises if one of them cannot continue.

        Returns the devices that were rejected since the last call; the others continue without them.
        """
        rejected = []
        for each in self._processes:
            code = each.process.exitcode
            if code is None or each.over:
                continue
            if code == 0:
                each.over = True
            elif code == REJECTED and each.is_device:
                each.over = True
                rejected.append(each.configuration.stem)
            elif code == DIVERGED:
                raise AllDivergedError(
                    "training diverged at all devices, so nothing is left to learn from; most likely "
                    f"local.learning_rate is too large. See {each.configuration.with_suffix('.log')}"
                )
            elif code in (INVALID, REJECTED, DAMAGED, OTHER_VERSION) or each.restarts >= MOST_RESTARTS:
                log = each.configuration.with_suffix(".log")
                raise DeploymentError(f"{each.configuration.stem} ended with code {code}, see {log}")
            else:
                each.process, each.restarts = self._start(each.configuration), each.restarts + 1
        if rejected and all(each.is_rejected for each in self._processes if each.is_device):
            raise DeploymentError(
                "all devices were rejected; --resume gives those that are not revoked another try"
            )
        return rejected

    def wait(self, seconds: float) -> None:
        """Returns when all processes have ended, or after `seconds`."""
        deadline = time.monotonic() + seconds
        for each in self._processes:
            each.process.join(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Ends all processes; kills those that do not end in time."""
        for each in self._processes:
            if each.process.exitcode is None and each.process.pid is not None:
                # A suspended process would not see the signal to stop.
                os.kill(each.process.pid, signal.SIGCONT)
                each.process.terminate()
        self.wait(STOP_SECONDS)
        for each in self._processes:
            if each.process.exitcode is None:
                each.process.kill()
                each.process.join()

    def _start(self, configuration: Path) -> BaseProcess:
        process = self._context.Process(target=_run_process, args=(configuration,), name=configuration.stem)
        process.start()
        return process


def _run_process(configuration: Path) -> None:
    """Runs one node in its own process, with its log in a file."""
    # Ctrl-C reaches the whole process group; the parent decides when nodes stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name_process(f"cfel {configuration.stem}")
    start_logging(configuration.with_suffix(".log"), _read_log_settings(configuration))
    try:
        run_node(configuration)
    except CfelError as error:
        _LOG.error("%s", error)
        raise SystemExit(choose_exit_code(error)) from error
    except Exception:  # noqa: BLE001 — any failure must be in the node's log before the process ends
        _LOG.exception("the node failed")
        raise SystemExit(1) from None


def _read_log_settings(configuration: Path) -> LogSettings:
    """The node's settings; the default if its file cannot be read, which `run_node` will report."""
    try:
        return read_node(configuration).log
    except CfelError:
        return LogSettings()


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How to launch a federation.

    Attributes:
        command: the command line, kept in `environment.json`.
        resume: continue the federation in the directory.
        on_round: called after every round.
        interrupted: checked all the time; true stops the federation, which may be resumed.
        on_start: called when all processes have been started.
        on_loss: called with the name of every device that is rejected; the others continue.
        on_problem: called with what cannot be written, once; the federation waits until it can.
        import_from: folders with user-defined code.
        log: how the nodes log.
    """

    command: tuple[str, ...] = ()
    resume: bool = False
    on_round: Callable[[RoundRecord], None] = lambda _: None
    interrupted: Callable[[], bool] = lambda: False
    on_start: Callable[[Processes], None] = lambda _: None
    on_loss: Callable[[str], None] = lambda _: None
    on_problem: Callable[[str], None] = lambda _: None
    import_from: tuple[Path, ...] = ()
    log: LogSettings = field(default_factory=LogSettings)


def launch_federation(experiment: Experiment, out: Path, options: LaunchOptions) -> list[RoundRecord]:
    """Runs an experiment as a federation of processes on this machine; returns the records of all rounds.

    Interrupted, it raises `KeyboardInterrupt`, and can be resumed.
    """
    find_free_ports(experiment.deployment.host, 1)  # rejects a wrong host before anything is written
    reject_buffering(experiment.aggregation, "a deployment")
    world = experiment.build_world()
    check_fleet_size(world, experiment.deployment)
    # As it is, not resolved: no engine runs, so none is chosen.
    text = experiment_toml(experiment)
    request = RunRequest(out, text, options.command, options.resume, may_differ=("simulation.engine",))
    writer, _ = open_run(request, world.setting)
    with writer:
        configurations = prepare_nodes(experiment, world, out, options)
        logs = LogMerger(out, writer, world, options.on_round)
        logs.merge()
        if not logs.is_over:
            with Processes(configurations) as processes:
                options.on_start(processes)
                _wait_until_over(logs, processes, options)
        _save_models(world, out, writer)
        if not logs.is_over:
            raise KeyboardInterrupt
    return list(RunDirectory.open(out).records())


def prepare_nodes(experiment: Experiment, world: World, out: Path, options: LaunchOptions) -> list[Path]:
    """Writes certificates and configuration files; returns those of edge servers, then of devices."""
    deployment = experiment.deployment
    certificates, nodes = out.absolute() / "certificates", out.absolute() / "nodes"
    # What nodes keep, their keys included, is for this user alone.
    make_directory(nodes, private=True)
    make_directory(certificates, private=True)
    make_authority(certificates)
    fleet = world.setting.fleet
    addresses = _find_addresses(deployment.host, fleet.clusters)
    loopback = LOOPBACK_V6 if ":" in deployment.host else LOOPBACK
    # On loopback, whatever the federation's host is: without a token nobody else may see it.
    dashboards = _find_addresses(loopback, fleet.clusters)
    identities = [
        *(Identity("edge", i) for i in range(fleet.clusters)),
        *(Identity("device", n) for n in range(fleet.devices)),
        Identity("operator", 0),
    ]
    for identity in identities:
        # A new certificate would readmit a node that was revoked before the federation was resumed.
        if not is_revoked(certificates, identity):
            issue(certificates, identity, deployment.certificate_hours, (deployment.host,))
        # A counter measures the whole host: with many devices on it, each would count the others too.
        energy = "model" if identity.role == "device" else "auto"
        check_directory(nodes / str(identity))
        node = Node(identity, addresses, nodes / str(identity), certificates, energy=energy)
        dashboard = dashboards[identity.number] if identity.role == "edge" else None
        shared = out.absolute() / "experiment.toml"
        file = NodeFile(node, shared, options.import_from, dashboard, log=options.log)
        write_node(nodes / f"{identity}.toml", file)
    return [nodes / f"{identity}.toml" for identity in identities if identity.role != "operator"]


def _find_addresses(host: str, count: int) -> tuple[str, ...]:
    return tuple(join_address(host, port) for port in find_free_ports(host, count))


def find_free_ports(host: str, count: int) -> list[int]:
    """Finds ports that are free at the moment."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # All stay bound until the last is found, so that no port is found twice.
    sockets = [socket.socket(family) for _ in range(count)]
    try:
        for each in sockets:
            _bind(each, host)
        return [int(each.getsockname()[1]) for each in sockets]
    except OSError as error:
        words = f"deployment.host = {host!r}: must be an address of this machine ({describe_error(error)})"
        raise InputError(words) from error
    finally:
        for each in sockets:
            each.close()


# Below those that Linux gives to outgoing connections: a node that restarts must find its port free.
_PORTS = range(20_000, 32_000)


def _bind(each: socket.socket, host: str) -> None:
    """Binds a socket to a port that is free."""
    for port in random.sample(_PORTS, 100):
        try:
            return each.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"100 ports between {_PORTS[0]} and {_PORTS[-1]} are in use")


class LogMerger:
    """Adds the rounds in the edge servers' logs to the log of the run directory `out`."""

    def __init__(
        self, out: Path, writer: RunWriter, world: World, on_round: Callable[[RoundRecord], None]
    ) -> None:
        self._writer, self._world, self._on_round = writer, world, on_round
        self._nodes = out / "nodes"
        self._logs: dict[Path, LogReader] = {}  # by the directory of an edge server
        # Rounds that an edge server has logged and the run directory has not.
        self._found: dict[int, RoundRecord] = {}
        records = RunDirectory.open(out).records()
        self._world = adopt_records(world, records)
        self._last: RoundRecord | None = next(reversed(records), None)
        self._looks = 0

    @property
    def is_over(self) -> bool:
        """Whether the last round of the run is in its log."""
        if self._last is None:
            return False
        setting = self._world.at(self._last.round).setting
        return is_over(setting.rounds, setting.budget, setting.metrics[0], self._last)

    def merge(self) -> None:
        """Adds what the edge servers have logged since the last call."""
        # Edge servers may join later, and those that began the run may leave it.
        for node in (each for each in self._nodes.glob("edge-*/") if not each.is_symlink()):
            self._logs.setdefault(node, LogReader(node / "rounds.jsonl"))
        for log in self._logs.values():
            # Several edge servers may have logged a round; their records agree.
            self._found |= {each.round: each for each in log.read_new() if each.round >= self._next_round}
        # Rounds are appended without gaps: one that no edge server has logged yet stops the merge here.
        while self._next_round in self._found and self._has_tables(self._next_round):
            self._append(self._found[self._next_round])
            self._looks = 0

    def _has_tables(self, number: int) -> bool:
        """Whether all edge servers have logged a round, where each logs its own devices; or not soon."""
        if not self._world.setting.by_clusters or number + 1 in self._found:
            return True
        self._looks += 1
        logged = sum(plan_path(node, number).exists() for node in self._logs)
        return logged == len(self._world.membership_at(number - 1).edges) or self._looks > _MOST_LOOKS

    @property
    def _next_round(self) -> int:
        return (self._writer.last_round or 0) + 1

    def _append(self, record: RoundRecord) -> None:
        nodes = [node for node in self._logs if plan_path(node, record.round).exists()]
        tables = [read_plan(node, record.round) for node in nodes]
        if tables and self._world.setting.by_clusters:
            # Each edge server has logged its own devices.
            tables = [join_rows(record.round, tables)]
        lost = [loss for node in self._logs for loss in read_losses(RealDisk(), node, record.round)]
        if lost:
            record = replace(record, losses=(*record.losses, *lost))
        self._writer.append(record, tables[0] if tables else None)
        # Only now: the disk may have been full, and the round is to be appended later.
        self._last = self._found.pop(record.round)
        self._world = adopt_records(self._world, [record])
        self._on_round(record)


def _wait_until_over(logs: LogMerger, processes: Processes, options: LaunchOptions) -> None:
    """Waits until the last round is logged, or it is interrupted, and all processes have ended."""
    problem = ""
    while not logs.is_over:
        if options.interrupted():
            processes.stop()
            logs.merge()
            return
        for name in processes.restart_dead():
            options.on_loss(name)
        time.sleep(_POLL_SECONDS)
        try:
            logs.merge()
        except DiskError as error:
            if not problem:
                options.on_problem(str(error))
            problem = str(error)
            time.sleep(_DISK_SECONDS)
        else:
            problem = ""
    processes.wait(STOP_SECONDS)


def _save_models(world: World, out: Path, writer: RunWriter) -> None:
    """Saves the edge models for `cfel export`, if all belong to the last round in the log."""
    states = [
        EdgeDisk(RealDisk(), out / "nodes" / f"edge-{i}", world.start).load()
        for i in range(world.setting.fleet.clusters)
    ]
    # In the middle of a round the models belong to no line of the log, and an export would be misleading.
    if writer.last_round is None or any(state.position != (writer.last_round, 0, 0) for state in states):
        return
    tensors = edge_tensors([state.model for state in states])
    writer.save_checkpoint(Checkpoint(writer.last_round, tensors, {"deployment": True}))
    writer.wait()
