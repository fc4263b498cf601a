"""Runs one node of a federation in this process, until the experiment is over or the process is stopped.

Adds to `deployment` what belongs to a process: its directory, its dashboard and signals.

The configuration file of one node.

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
`log_format`. `docs/guides/deploy.md` explains them. This module reads and writes the file; `node` runs it.

Loads a device's samples from a Python function that its configuration names; they stay on the device.

    def samples(path: Path | None) -> tuple[Tensor, Tensor]:      # inputs, targets; one entry per sample

They must fit the experiment's data: same shape, same classes, images scaled the same way.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor

from cfel.dashboard import dashboard_app, serve
from cfel.deployment.edge.node import ServeStatus
from cfel.deployment.node import Node, run_device, run_edge
from cfel.deployment.security.experiment_check import ExperimentCheck
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.node_credentials import read_host_names
from cfel.deployment.transport.addresses import split_address
from cfel.durable import read_bytes, replace_file, translate_os_errors
from cfel.errors import ExperimentError, InputError, StorageError, find_expected_error
from cfel.experiment import Experiment, digest_shared_parts, experiment_toml, load_experiment
from cfel.experiment.document import reject_unknown
from cfel.experiment.files import NODE_KEYS
from cfel.launch.logs import LogSettings
from cfel.learning.task import DeviceData, check_batches, check_task
from cfel.plugins import ANY_CODE, import_from, resolve
from cfel.rounds.parameters import reject_buffering
from cfel.rounds.run_directory import describe_run, reject_other_experiment
from cfel.runlog import holds_run
from cfel.status import Status
from cfel.validation import parse_toml
from cfel.world import World

_NEEDED = ("role", "number", "experiment", "certificates", "directory", "addresses")
_OPTIONAL = ("listen", "dashboard", "dashboard_tls", "import_from", "energy", "data", "data_path")
_LOG_KEYS = ("log_level", "log_format")


@dataclass(frozen=True, slots=True)
class NodeFile:
    """The content of a configuration file.

    Attributes:
        node: which node it is, and where its files and peers are.
        experiment: the experiment's file.
        import_from: folders with user-defined code.
        dashboard: "host:port" to serve the dashboard on, or None.
        dashboard_tls: whether the dashboard uses the node's certificate.
        data: function that returns a device's samples; None for its part of the experiment's data.
        data_path: the argument of that function.
        log: how it logs.
    """

    node: Node
    experiment: Path
    import_from: tuple[Path, ...] = ()
    dashboard: str | None = None
    data: str | None = None
    data_path: Path | None = None
    dashboard_tls: bool = False
    log: LogSettings = field(default_factory=LogSettings)

    def load_experiment(self) -> Experiment:
        """Loads the experiment, and makes its user-defined code importable."""
        folder = self.experiment.parent
        # `cfel up` keeps the experiment in its run directory, from which no code is loaded.
        import_from(*self.import_from, *(() if holds_run(folder) else (folder,)))
        return load_experiment(self.experiment, code=ANY_CODE)


def read_node(path: Path) -> NodeFile:
    """Reads a configuration file.

    Raises:
        ExperimentError: it cannot be read, or a key is missing, unknown or not allowed.
    """
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
    node = Node(
        Identity(table["role"], _check_number(table["number"])),
        _check_addresses(table),
        folder / _check_text("directory", table["directory"]),
        folder / _check_text("certificates", table["certificates"]),
        table.get("listen"),
        _check_energy(folder, table.get("energy", "auto")),
    )
    given = {key: _check_text(key, table[key]) for key in ("data", "data_path") if key in table}
    return NodeFile(
        node,
        folder / _check_text("experiment", table["experiment"]),
        tuple(folder / _check_text("import_from", each) for each in _check_list("import_from", table)),
        table.get("dashboard"),
        given.get("data"),
        folder / given["data_path"] if "data_path" in given else None,
        _check_flag("dashboard_tls", table.get("dashboard_tls", False)),
        LogSettings(
            **{key.removeprefix("log_"): _check_text(key, table[key]) for key in _LOG_KEYS if key in table}
        ),
    )


def _check_text(key: str, given: object) -> str:
    if not isinstance(given, str) or not given:
        raise InputError(f"{key} = {given!r}: must be text in quotes")
    return given


def _check_flag(key: str, given: object) -> bool:
    if not isinstance(given, bool):
        raise InputError(f"{key} = {given!r}: must be true or false, without quotes")
    return given


def _check_number(given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool):
        raise InputError(f"number = {given!r}: must be a whole number, without quotes")
    return given


def _check_list(key: str, table: Mapping[str, object]) -> list[object]:
    given = table.get(key, [])
    if not isinstance(given, list):
        raise InputError(f"{key} = {given!r}: must be a list of texts, in square brackets")
    return given


def _check_addresses(table: Mapping[str, object]) -> tuple[str, ...]:
    given = [_check_text("addresses", address) for address in _check_list("addresses", table)]
    if not given:
        raise InputError("addresses = []: must name all edge servers")
    for address in given:
        split_address("addresses", address)
    return tuple(given)


def _check_energy(folder: Path, given: object) -> str:
    if not isinstance(given, str) or not given:
        raise InputError(f"energy = {given!r}: must be auto, model, or a file that shows microwatts")
    return given if given in ("auto", "model") else str(folder / given)


def write_node(path: Path, file: NodeFile) -> None:
    """Writes a configuration file."""
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
    # Defaults are left out, so that a file shows what is special about its node.
    if node.energy != "auto":
        table["energy"] = node.energy
    if node.listen is not None:
        table["listen"] = node.listen
    if file.dashboard is not None:
        table["dashboard"] = file.dashboard
    if file.data is not None:
        table["data"] = file.data
    if file.data_path is not None:
        table["data_path"] = str(file.data_path)
    if file.dashboard_tls:
        table["dashboard_tls"] = True
    if file.log != LogSettings():
        table |= {"log_level": file.log.level, "log_format": file.log.format}
    replace_file(path, tomli_w.dumps(table).encode(), private=True)


def load_samples(name: str, path: Path | None, world: World) -> DeviceData:
    """Returns all samples of the function as the data of one device.

    Args:
        name: "module:function", or an entry point of the group `cfel.samples`.
        path: its argument.
        world: what is run; its model must accept the samples.

    Raises:
        InputError: there is no such path or function, it fails, or its samples do not fit the experiment.
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
    """Runs the node of a configuration file until the experiment is over.

    Args:
        path: the configuration file.

    Returns:
        Whether the experiment is over; False if the process was asked to stop.
    """
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
        serve_status = None if file.dashboard is None else _make_dashboard(experiment, file)
        return asyncio.run(
            run_until_stopped(
                run_edge(
                    world, experiment.simulation, experiment.deployment, node, experiment_check, serve_status
                )
            )
        )
    data = None if file.data is None else load_samples(file.data, file.data_path, world)
    return asyncio.run(
        run_until_stopped(run_device(world, experiment.deployment, node, experiment_check, data))
    )


def prepare_directory(directory: Path, experiment: Experiment, world: World) -> None:
    """Writes into a node's directory what is run there; makes an edge server's directory a run directory.

    Raises:
        RunDirectoryError: another experiment was run there.
    """
    text = experiment_toml(experiment)
    if (directory / "experiment.toml").exists():
        reject_other_experiment(directory, text, [".".join(key) for key in NODE_KEYS])
        return
    with translate_os_errors("create", directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    describe_run(directory, world.setting, text)


def _make_dashboard(experiment: Experiment, file: NodeFile) -> ServeStatus:
    """Returns the coroutine function that serves the dashboard of an edge server."""
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
        app = dashboard_app(add_names, _REFRESH_SECONDS, token, names)
        tls = {"certificate": certificate, "key": certificate.with_suffix(".key")}
        async with serve(app, host, port, **(tls if file.dashboard_tls else {})) as address:
            _LOG.info("dashboard: %s", address)
            await asyncio.Event().wait()

    return serve_dashboard


async def run_until_stopped(work: Any) -> bool:  # noqa: ANN401 — a coroutine
    """Runs until it is done, a signal to stop arrives, or the parent process has ended.

    Returns:
        Whether it is done; False if it was stopped.
    """
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
