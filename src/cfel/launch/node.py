"""One process of a federation: its configuration file, and the process itself.

    role = "edge"                       # or "device", or "operator" for `cfel status`
    number = 0
    experiment = "experiment.toml"      # the same file at every node; relative to this file
    certificates = "certificates"       # directory with authority.pem, edge-0.pem, edge-0.key
    directory = "edge-0"                # what the node must not forget
    addresses = ["10.0.0.1:7400", "10.0.0.2:7400", "10.0.0.3:7400"]

Optional, for edge servers: `listen`, an address to listen on if others reach it at another one; `dashboard`,
an address to serve the dashboard on (beyond loopback it needs a token, see docs/dashboard.md). For devices
that measure: `energy`; for devices with samples of their own: `data`, a function that gives them, and
`data_path`, what it is called with. For all: `import_from`, folders with code of one's own. `docs/deploy.md`
explains them.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from cfel.dashboard import dashboard_app, serve
from cfel.deployment.edge.node import Companion
from cfel.deployment.node import Node, run_device, run_edge
from cfel.deployment.security.experiment_check import ExperimentCheck
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.addresses import split_address
from cfel.durable import replace_file, translate_os_errors
from cfel.errors import ExperimentError, InputError, find_expected_error
from cfel.experiment import Experiment, experiment_toml, load_experiment, shared_parts
from cfel.experiment.document import refuse_unknown
from cfel.experiment.files import OWN_BUSINESS
from cfel.launch.device_data import own_samples
from cfel.plugins import ANY_CODE, import_from
from cfel.rounds import fleet_description, refuse_other_experiment
from cfel.runlog import describe_environment
from cfel.status import Status
from cfel.world import World

TOKEN_VARIABLE = "CFEL_DASHBOARD_TOKEN"  # noqa: S105 — the variable's name
_LOOK_SECONDS = 0.5
_NEEDED = ("role", "number", "experiment", "certificates", "directory", "addresses")
_KEYS = (*_NEEDED, "listen", "dashboard", "import_from", "energy", "data", "data_path")

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeFile:
    """What a configuration file says.

    Attributes:
        node: where the process stands.
        experiment: the experiment's file.
        import_from: folders with code of one's own.
        dashboard: "host:port" to serve the dashboard on, or None.
        data: function that gives a device's own samples; None for its part of the experiment's.
        data_path: what that function is called with.
    """

    node: Node
    experiment: Path
    import_from: tuple[Path, ...] = ()
    dashboard: str | None = None
    data: str | None = None
    data_path: Path | None = None

    def load_experiment(self) -> Experiment:
        """The experiment; its own code is found from now on."""
        import_from(self.experiment.parent, *self.import_from)
        return load_experiment(self.experiment, code=ANY_CODE)


def read_node(path: Path) -> NodeFile:
    """Reads a configuration file.

    Raises:
        ExperimentError: it cannot be read, or a key is missing, unknown or not allowed.
    """
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        refuse_unknown("node", table, _KEYS)
        return _node_file(path.absolute().parent, table)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, InputError) as error:
        raise ExperimentError(f"{path}: cannot be used: {error}") from error


def _node_file(beside: Path, table: dict[str, Any]) -> NodeFile:
    """What a table says; paths are relative to `beside`."""
    missing = [key for key in _NEEDED if key not in table]
    if missing:
        raise InputError(f"{missing[0]} is missing")
    for key in ("listen", "dashboard"):
        if key in table:
            split_address(key, table[key])
    node = Node(
        Identity(table["role"], _number(table["number"])),
        _addresses(table),
        beside / _text("directory", table["directory"]),
        beside / _text("certificates", table["certificates"]),
        table.get("listen"),
        _energy(beside, table.get("energy", "auto")),
    )
    given = {key: _text(key, table[key]) for key in ("data", "data_path") if key in table}
    return NodeFile(
        node,
        beside / _text("experiment", table["experiment"]),
        tuple(beside / _text("import_from", folder) for folder in _list("import_from", table)),
        table.get("dashboard"),
        given.get("data"),
        beside / given["data_path"] if "data_path" in given else None,
    )


def _text(key: str, given: object) -> str:
    if not isinstance(given, str) or not given:
        raise InputError(f"{key} = {given!r}: must be a text in quotes")
    return given


def _number(given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool):
        raise InputError(f"number = {given!r}: must be a whole number, without quotes")
    return given


def _list(key: str, table: Mapping[str, object]) -> list[object]:
    given = table.get(key, [])
    if not isinstance(given, list):
        raise InputError(f"{key} = {given!r}: must be a list of texts, in square brackets")
    return given


def _addresses(table: Mapping[str, object]) -> tuple[str, ...]:
    given = [_text("addresses", address) for address in _list("addresses", table)]
    if not given:
        raise InputError("addresses = []: must name all edge servers")
    for address in given:
        split_address("addresses", address)
    return tuple(given)


def _energy(beside: Path, given: object) -> str:
    if not isinstance(given, str) or not given:
        raise InputError(f"energy = {given!r}: must be auto, model, or a file that shows microwatts")
    return given if given in ("auto", "model") else str(beside / given)


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
    replace_file(path, tomli_w.dumps(table).encode())


def run_node(path: Path) -> bool:
    """Runs the node of a configuration file until the experiment is over.

    Args:
        path: the configuration file.

    Returns:
        Whether the experiment is over; False if the process was asked to stop.
    """
    file = read_node(path)
    experiment = file.load_experiment()
    world = experiment.world()
    node, experiment_check = file.node, ExperimentCheck(shared_parts(experiment))
    if node.identity.role == "operator":
        raise InputError(f"{path}: an operator has nothing to run")
    settle(node.directory, experiment, world)
    if node.identity.role == "edge":
        simulation = experiment.resolved(world).simulation
        companion = None if file.dashboard is None else _dashboard(experiment, file.dashboard)
        return asyncio.run(
            _until_stopped(
                run_edge(world, simulation, experiment.deployment, node, experiment_check, companion)
            )
        )
    data = None if file.data is None else own_samples(file.data, file.data_path, world)
    return asyncio.run(_until_stopped(run_device(world, experiment.deployment, node, experiment_check, data)))


def settle(directory: Path, experiment: Experiment, world: World) -> None:
    """Leaves word in a node's directory of what is run there, which makes an edge server's a run directory.

    Raises:
        RunDirectoryError: another experiment was run there.
    """
    text = experiment_toml(experiment.resolved(world))
    if (directory / "experiment.toml").exists():
        refuse_other_experiment(directory, text, [".".join(key) for key in OWN_BUSINESS])
        return
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with translate_os_errors("create", directory):
        directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / "environment.json", describe_environment((), started).to_json().encode())
    replace_file(directory / "fleet.json", fleet_description(world).to_json().encode())
    replace_file(directory / "experiment.toml", text.encode())


def _dashboard(experiment: Experiment, address: str) -> Companion:
    """Serves the dashboard beside an edge server."""
    host, port = split_address("dashboard", address)

    async def show(look: Callable[[], Status]) -> None:
        def named() -> Status:
            target = experiment.simulation.target
            return replace(look(), name=experiment.name, scheme=experiment.scheme.name, target=target)

        app = dashboard_app(named, _LOOK_SECONDS, os.environ.get(TOKEN_VARIABLE) or None)
        async with serve(app, host, port):
            _LOG.info("dashboard: http://%s/", address)
            await asyncio.Event().wait()

    return show


async def _until_stopped(work: Any) -> bool:  # noqa: ANN401 — a coroutine
    """Runs until it is done, a signal to stop comes, or the process that started this one is gone."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)
    parent = multiprocessing.parent_process()
    if parent is not None:
        loop.add_reader(parent.sentinel, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return False
    except BaseExceptionGroup as group:
        # An edge server is several tasks; whoever started it wants to read what went wrong, not in which.
        raise find_expected_error(group) or group from None
    finally:
        if parent is not None:
            loop.remove_reader(parent.sentinel)
    return True


def start_logging(path: Path | None) -> None:
    """Lets the node's log go to a file, or to standard error."""
    logging.basicConfig(
        filename=path,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
