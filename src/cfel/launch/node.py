"""Runs one node of a federation in this process, until the experiment is over or the process is stopped.

Adds to `deployment` what belongs to a process: its directory, its dashboard, signals, and its configuration:

    role = "edge"                       # or "device", or "operator" for `cfel status`
    number = 0
    experiment = "experiment.toml"      # the same file at every node; relative to this file
    certificates = "certificates"       # directory with authority.pem, edge-0.pem, edge-0.key
    directory = "edge-0"                # where the node keeps its state
    addresses = ["10.0.0.1:7400", "10.0.0.2:7400", "10.0.0.3:7400"]

Optional for edge servers: `listen`, the address to listen on if it differs from the one others use;
`dashboard`, the address to serve the dashboard on (beyond loopback it needs a token, see
docs/guides/dashboard.md); `dashboard_tls`, true to serve it with the edge server's own certificate.
For devices that measure: `energy`. For devices with their own samples: `data`, a function that returns them,
and `data_path`, its argument. For all: `import_from`, folders with user-defined code; `log_level` and
`log_format`. `docs/guides/deploy.md` explains them.
"""

import asyncio
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import tomllib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor

from cfel.deployment.edge.node import ServeStatus
from cfel.deployment.node import Node, run_device, run_edge
from cfel.deployment.protocol.addresses import split_address
from cfel.deployment.protocol.calls import ExperimentCheck
from cfel.deployment.security.credentials import read_host_names
from cfel.deployment.security.identity import Identity
from cfel.durable import read_bytes, replace_file, translate_os_errors
from cfel.errors import (
    AllDivergedError,
    CfelError,
    CredentialsError,
    DiskError,
    ExperimentError,
    InputError,
    NotAdmittedError,
    RunBusyError,
    SilentEdgeServerError,
    StorageError,
    VersionError,
    find_expected_error,
)
from cfel.experiment import Experiment, digest_shared_parts, experiment_toml, load_experiment
from cfel.experiment.experiment import NODE_KEYS
from cfel.experiment.sections import reject_unknown
from cfel.launch.logs import LogSettings
from cfel.learning.task import DeviceData, check_batches, check_task
from cfel.plugins import ANY_CODE, import_from, resolve
from cfel.rounds.run_directory import describe_run, reject_other_experiment
from cfel.runlog import holds_run
from cfel.simulation.parameters import reject_buffering
from cfel.status import Status
from cfel.validation import check_list, check_switch, check_text, check_whole, parse_toml
from cfel.world import World

_NEEDED = ("role", "number", "experiment", "certificates", "directory", "addresses")
_OPTIONAL = ("listen", "dashboard", "dashboard_tls", "import_from", "energy", "data", "data_path")
_LOG_KEYS = ("log_level", "log_format")
_TEXTS = ("experiment", "certificates", "directory", "energy", "data", "data_path", *_LOG_KEYS)


@dataclass(frozen=True, slots=True)
class NodeFile:
    """The content of a configuration file."""

    node: Node
    experiment: Path
    import_from: tuple[Path, ...] = ()
    dashboard: str | None = None  # "host:port"
    data: str | None = None  # a function; None for the device's part of the experiment's data
    data_path: Path | None = None  # its argument
    dashboard_tls: bool = False
    log: LogSettings = field(default_factory=LogSettings)

    def load_experiment(self) -> Experiment:
        """Loads the experiment, and makes its user-defined code importable."""
        folder = self.experiment.parent
        # `cfel up` keeps the experiment in its run directory, from which no code is loaded.
        import_from(*self.import_from, *(() if holds_run(folder) else (folder,)))
        return load_experiment(self.experiment, code=ANY_CODE)


def read_node(path: Path) -> NodeFile:
    try:
        table: dict[str, Any] = parse_toml(read_bytes(path, follow_links=True).decode())
        reject_unknown("node", table, (*_NEEDED, *_OPTIONAL, *_LOG_KEYS))
        return _parse_table(path.absolute().parent, table)
    except (StorageError, ValueError) as error:
        raise ExperimentError(f"{path}: cannot be used: {error}") from error


def _parse_table(folder: Path, table: dict[str, Any]) -> NodeFile:
    """Parses a table; paths are relative to `folder`."""
    missing = [key for key in _NEEDED if key not in table]
    if missing:
        raise InputError(f"{missing[0]} is missing")
    for key in ("listen", "dashboard"):
        if key in table:
            split_address(key, table[key])
    texts = {key: check_text(key, table[key]) for key in _TEXTS if key in table}
    energy = texts.get("energy", "auto")
    node = Node(
        Identity(table["role"], check_whole("number", table["number"], least=0)),
        _check_addresses(table["addresses"]),
        folder / texts["directory"],
        folder / texts["certificates"],
        table.get("listen"),
        # Anything else is a file that shows microwatts.
        energy if energy in ("auto", "model") else str(folder / energy),
    )
    folders = check_list("import_from", table.get("import_from", []))
    return NodeFile(
        node,
        folder / texts["experiment"],
        tuple(folder / check_text("import_from", each) for each in folders),
        table.get("dashboard"),
        texts.get("data"),
        folder / texts["data_path"] if "data_path" in texts else None,
        check_switch("dashboard_tls", table.get("dashboard_tls", False)),
        LogSettings(**{key.removeprefix("log_"): texts[key] for key in _LOG_KEYS if key in texts}),
    )


def _check_addresses(given: object) -> tuple[str, ...]:
    addresses = tuple(check_text("addresses", address) for address in check_list("addresses", given))
    if not addresses:
        raise InputError("addresses = []: must name all edge servers")
    for address in addresses:
        split_address("addresses", address)
    return addresses


def write_node(path: Path, file: NodeFile) -> None:
    node = file.node
    table: dict[str, Any] = {
        "role": node.identity.role,
        "number": node.identity.number,
        "experiment": str(file.experiment),
        "certificates": str(node.certificates),
        "directory": str(node.directory),
        "addresses": list(node.addresses),
        "import_from": [str(folder) for folder in file.import_from],
    }
    optional = {
        "energy": None if node.energy == "auto" else node.energy,
        "listen": node.listen,
        "dashboard": file.dashboard,
        "data": file.data,
        "data_path": None if file.data_path is None else str(file.data_path),
        "dashboard_tls": file.dashboard_tls or None,
    }
    # Defaults are left out, so that a file shows what is special about its node.
    table |= {key: value for key, value in optional.items() if value is not None}
    if file.log != LogSettings():
        table |= {"log_level": file.log.level, "log_format": file.log.format}
    replace_file(path, tomli_w.dumps(table).encode(), private=True)


def change_node(path: Path, changes: dict[str, Any]) -> None:
    """Changes keys of a configuration file; paths in it stay relative."""
    table = tomllib.loads(path.read_text(encoding="utf-8")) | changes
    replace_file(path, tomli_w.dumps(table).encode(), private=True)
    read_node(path)


def load_samples(name: str, path: Path | None, world: World) -> DeviceData:
    """Returns all samples of a function as the data of one device; they stay on the device.

        def samples(path: Path | None) -> tuple[Tensor, Tensor]:      # inputs, targets; one entry per sample

    It is named as "module:function", or an entry point of the group `cfel.samples`. Its samples must fit the
    experiment's data: same shape, same classes, images scaled the same way.
    """
    what = f"data = {name!r}"
    found = _call(what, resolve("samples", name, {}, ("path",), code=ANY_CODE), path)
    if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(x, Tensor) for x in found):
        raise InputError(f"{what}: must return two tensors, inputs and targets, not {type(found).__name__}")
    inputs, targets = found
    like = world.task.data
    _check_part(f"{what}: inputs", inputs, like.train_inputs)
    _check_part(f"{what}: targets", targets, like.train_targets)
    _check_classes(what, targets, like.classes)
    # The test set stays the experiment's, so that accuracy means the same for every device.
    data = replace(like, name=name, train_inputs=inputs, train_targets=targets, train_writers=None)
    task = replace(world.task, data=data)
    check_task(what, task)
    check_batches(task.build(), world.training.batch, [len(inputs)])
    return DeviceData(data, np.arange(len(inputs)))


def _call(what: str, function: Callable[[Path | None], object], path: Path | None) -> object:
    if path is not None and not path.exists():
        raise InputError(f"data_path = {str(path)!r}: does not exist")
    try:
        return function(path)
    except (OSError, ValueError, KeyError, EOFError) as error:
        called_with = "without a data_path" if path is None else f"with data_path = {str(path)!r}"
        raise InputError(f"{what} failed {called_with}: {type(error).__name__}: {error}") from error


def _check_part(what: str, given: Tensor, like: Tensor) -> None:
    wanted, shape = tuple(like.shape[1:]), tuple(given.shape[1:])
    if given.ndim == 0 or shape != wanted or given.dtype != like.dtype:
        raise InputError(
            f"{what}: samples of shape {shape} and type {given.dtype}, the experiment's have shape {wanted} "
            f"and type {like.dtype}"
        )


def _check_classes(what: str, targets: Tensor, classes: int) -> None:
    if targets.is_floating_point() or not len(targets):
        return
    low, high = int(torch.min(targets)), int(torch.max(targets))
    if low < 0 or high >= classes:
        raise InputError(f"{what}: targets from {low} to {high}, the experiment's are 0 to {classes - 1}")


TOKEN_VARIABLE = "CFEL_DASHBOARD_TOKEN"  # noqa: S105 — the variable's name
_REFRESH_SECONDS = 0.5

_LOG = logging.getLogger(__name__)


def run_node(path: Path) -> bool:
    """Runs the node of a configuration file until the experiment is over; False if it was asked to stop."""
    file = read_node(path)
    experiment = file.load_experiment()
    reject_buffering(experiment.aggregation, "a deployment")
    world = experiment.build_world()
    node, experiment_check = file.node, ExperimentCheck(digest_shared_parts(experiment))
    if node.identity.role == "operator":
        raise InputError(f"{path}: an operator runs no node")
    # Before any connection is made: a directory of another experiment must not join this one.
    prepare_directory(node.directory, experiment, world)
    if node.identity.role == "edge":
        dashboard = None if file.dashboard is None else _make_dashboard(experiment, file)
        work = run_edge(world, experiment.deployment, node, experiment_check, dashboard)
    else:
        data = None if file.data is None else load_samples(file.data, file.data_path, world)
        work = run_device(world, experiment.deployment, node, experiment_check, data)
    return asyncio.run(run_until_stopped(work))


def prepare_directory(directory: Path, experiment: Experiment, world: World) -> None:
    """Writes into a node's directory what is run there; makes an edge server's directory a run directory."""
    text = experiment_toml(experiment)
    if (directory / "experiment.toml").exists():
        reject_other_experiment(directory, text, [".".join(key) for key in NODE_KEYS])
        return
    with translate_os_errors("create", directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    describe_run(directory, world.setting, text)


def _make_dashboard(experiment: Experiment, file: NodeFile) -> ServeStatus:
    """Returns the coroutine function that serves the dashboard of an edge server."""
    # Only here: devices do without a web server.
    from cfel.dashboard import Dashboard, serve

    host, port = split_address("dashboard", file.dashboard)
    certificate = file.node.certificates / f"{file.node.identity}.pem"

    async def serve_dashboard(take_snapshot: Callable[[], Status]) -> None:
        def add_names() -> Status:
            target = experiment.rounds.target
            return replace(
                take_snapshot(), name=experiment.name, scheme=experiment.scheme.name, target=target
            )

        token = os.environ.get(TOKEN_VARIABLE) or None
        names = read_host_names(certificate) if file.dashboard_tls else ()
        app = Dashboard(add_names, _REFRESH_SECONDS, token, names)
        tls = {"certificate": certificate, "key": certificate.with_suffix(".key")}
        async with serve(app, host, port, **(tls if file.dashboard_tls else {})) as address:
            _LOG.info("dashboard: %s", address)
            await asyncio.Event().wait()

    return serve_dashboard


async def run_until_stopped(work: Coroutine[Any, Any, None]) -> bool:
    """Runs until it is done, a signal to stop arrives, or the parent has ended; whether it is done."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        # `cfel up` handles Ctrl-C for all its nodes; a node that died by itself would be restarted.
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)
    parent = multiprocessing.parent_process()
    # The sentinel becomes readable when the parent ends; an orphan would run on unnoticed.
    if parent is not None:
        loop.add_reader(parent.sentinel, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return False
    except BaseExceptionGroup as group:
        # An edge server is several tasks; the user wants to know what went wrong, not in which of them.
        raise find_expected_error(group) or group from None
    finally:
        if parent is not None:
            loop.remove_reader(parent.sentinel)
    return True


# Exit codes of a node, which tell a supervisor whether to restart it.
FAILED = 1
"""Failed: an address in use, the disk, a clock that is behind. Restarting it may help."""
INVALID = 2
"""Invalid usage or configuration: arguments, node file, experiment, samples, the dashboard's token."""
REJECTED = 3
"""Not admitted: certificate or key missing, damaged, expired or revoked, or another experiment. The message
names the file and the command."""
SILENT = 4
"""A device whose edge server has been silent for `deployment.give_up_seconds`: it missed the end, or the edge
server is gone for good. If the run continues, start it again."""
DAMAGED = 5
"""Its directory is damaged and cannot be recovered, or is of another experiment or version. The message says
which file, and what to do."""
DIVERGED = 6
"""An edge server of a run in which the training of all devices diverged. Started again it goes on from the
last round, most likely to the same end: use a smaller `local.learning_rate` in a new run."""

OTHER_VERSION = 7
"""The others speak other versions of the protocol: upgrade the older ones, one version at a time."""
BUSY = 8
"""Its directory is in use by another process: the node runs already, perhaps started by hand."""

STOPPED = 130
"""Asked to stop."""

FINAL = (INVALID, REJECTED, SILENT, DAMAGED, DIVERGED, OTHER_VERSION, BUSY)
"""Codes after which no supervisor should start a node again: somebody has to change something first."""


def choose_exit_code(error: CfelError) -> int:
    """The exit code of a node that ends with an error."""
    match error:
        case InputError():
            return INVALID
        case VersionError():
            return OTHER_VERSION
        case NotAdmittedError() | CredentialsError():
            return REJECTED
        case SilentEdgeServerError():
            return SILENT
        case AllDivergedError():
            return DIVERGED
        # A full disk may not be full the next time.
        case DiskError():
            return FAILED
        case RunBusyError():
            return BUSY
        case StorageError():
            return DAMAGED
        case _:
            return FAILED


_PR_SET_NAME = 15
_MOST_SHORT = 15
# Fields of /proc/self/stat behind the name in parentheses: where the command line begins and ends.
_ARG_START, _ARG_END = 45, 46


def name_process(name: str) -> None:
    """Sets the name of this process that `ps` and `top` show, on Linux; elsewhere this does nothing.

    The nodes of `cfel up` are forked from one server process and would all be called like it. There is no
    function for this in the standard library: the kernel keeps the short name, and reads the long one from
    the memory where the command line was put when the process started.
    """
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:_MOST_SHORT], 0, 0, 0)
        _replace_command_line(name.encode())
    except (OSError, AttributeError, ValueError, IndexError):
        return


def _replace_command_line(name: bytes) -> None:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    if 0 < begin < end:
        ctypes.memmove(begin, name[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)
