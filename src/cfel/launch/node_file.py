"""The configuration file of one node.

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
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from cfel.deployment.node import Node
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.addresses import split_address
from cfel.durable import read_bytes, replace_file
from cfel.errors import ExperimentError, InputError, StorageError
from cfel.experiment import Experiment, load_experiment
from cfel.experiment.document import reject_unknown
from cfel.launch.logs import LogSettings
from cfel.plugins import ANY_CODE, import_from
from cfel.runlog import holds_run
from cfel.runlog.toml_text import parse_toml

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
