"""A fleet that is set up in advance: which host runs which nodes, and one archive per host.

    experiment = "experiment.toml"
    files = ["my_model.py"]                 # optional: what else every node needs
    hours = 720                             # optional: lifetime of the certificates

    [hosts.gateway-1]
    address = "10.0.0.1"                    # of a host with an edge server; port 7400 unless it says another
    nodes = ["edge-0", "device-0", "device-1"]

File names are relative to the inventory.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cfel.deployment.security.certificates import issue
from cfel.deployment.security.credentials import read_credentials
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.invitations import parse_identity
from cfel.durable import read_bytes
from cfel.errors import ExperimentError, InputError, StorageError
from cfel.experiment.sections import check_table, reject_unknown
from cfel.launch.enrolment import OperatorDirectory, add_port, prepare_operator
from cfel.launch.machine import NodeSetup, pack
from cfel.validation import check_list, check_number, check_text, parse_toml

_KEYS = ("experiment", "files", "hours", "hosts")
_DEFAULT_HOURS = 720.0


@dataclass(frozen=True, slots=True)
class Inventory:
    """The content of an inventory file."""

    experiment: Path
    files: tuple[Path, ...]
    hours: float
    hosts: Mapping[str, tuple[Identity, ...]]  # the nodes of each host
    addresses: tuple[str, ...]  # of the edge servers, by number


def read_inventory(path: Path) -> Inventory:
    """Reads an inventory.

    Raises:
        ExperimentError: it cannot be read, or a key is missing, unknown or not allowed.
    """
    try:
        table: dict[str, Any] = parse_toml(read_bytes(path, follow_links=True).decode())
        return _parse(path.absolute().parent, table)
    except (StorageError, ValueError) as error:
        raise ExperimentError(f"{path}: cannot be used: {error}") from error


def _parse(folder: Path, table: dict[str, Any]) -> Inventory:
    reject_unknown("", table, _KEYS)
    for key in ("experiment", "hosts"):
        if key not in table:
            raise InputError(f"{key} is missing")
    hosts: dict[str, tuple[Identity, ...]] = {}
    addresses: dict[int, str] = {}
    for name, host in check_table("hosts", table["hosts"]).items():
        hosts[name], own = _parse_host(f"hosts.{name}", host)
        addresses |= own
    _check_once(hosts)
    if sorted(addresses) != list(range(len(addresses))):
        raise InputError(f"hosts: edge servers {sorted(addresses)}, their numbers must be 0, 1, 2 …")
    return Inventory(
        folder / check_text("experiment", table["experiment"]),
        tuple(folder / check_text("files", each) for each in check_list("files", table.get("files", []))),
        check_number("hours", table.get("hours", _DEFAULT_HOURS), above=0),
        hosts,
        tuple(addresses[number] for number in sorted(addresses)),
    )


def _parse_host(place: str, given: object) -> tuple[tuple[Identity, ...], dict[int, str]]:
    """The nodes of a host, and the addresses of its edge servers."""
    host = check_table(place, given)
    reject_unknown(place, host, ("address", "nodes"))
    named = check_list(f"{place}.nodes", host.get("nodes", []))
    nodes = tuple(parse_identity(check_text(f"{place}.nodes", each)) for each in named)
    edges = [each.number for each in nodes if each.role == "edge"]
    if len(edges) > 1:
        raise InputError(f"{place}.nodes: {len(edges)} edge servers; list each in a host of its own")
    if edges and "address" not in host:
        raise InputError(f"{place}.address is missing: others must reach edge-{edges[0]}")
    return nodes, {number: add_port(check_text(f"{place}.address", host["address"])) for number in edges}


def _check_once(hosts: Mapping[str, tuple[Identity, ...]]) -> None:
    twice = [
        each for each, times in Counter(n for nodes in hosts.values() for n in nodes).items() if times > 1
    ]
    if twice:
        raise InputError(f"hosts: {twice[0]} is listed twice")


def pack_hosts(inventory: Inventory, out: Path) -> list[Path]:
    """Writes one archive per host, and the operator's directory, into a directory.

    Keys are made here and are in the archives only: a host cannot make its own in advance.

    Returns:
        The archives.

    Raises:
        InputError: nodes of the experiment are missing in the inventory, or not in the experiment.
    """
    federation = prepare_operator(out, inventory.experiment, inventory.addresses, inventory.files)
    wanted = set(federation.list_nodes())
    listed = {node for nodes in inventory.hosts.values() for node in nodes}
    if wanted != listed:
        first = min(wanted ^ listed)
        raise InputError(f"hosts: {first} {'is missing' if first in wanted else 'is not in the experiment'}")
    archives = {out / f"{name}.tar.gz": nodes for name, nodes in inventory.hosts.items()}
    for archive, nodes in archives.items():
        pack([_make_setup(federation, node, inventory.hours) for node in nodes], archive)
    return list(archives)


def _make_setup(federation: OperatorDirectory, node: Identity, hours: float) -> NodeSetup:
    certificates = federation.certificates
    issue(certificates, node, hours, federation.find_hosts(node))
    authority, certificate, key = read_credentials(certificates, node)
    (certificates / f"{node}.key").unlink()
    return NodeSetup(node, authority, certificate, key, federation.make_kit())
