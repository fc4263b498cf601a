"""Nodes on the machine that they are for: their files, their systemd units, and archives that carry them.

    NODE/
    ├── edge-0.toml                        the node's configuration
    ├── experiment.toml, …                 what all nodes have
    ├── certificates/                      authority.pem, edge-0.pem, edge-0.key, revoked.txt
    ├── state/                             what the node keeps; /var/lib/cfel/NODE as a service
    └── cfel-edge-0.service                /etc/systemd/system/… as a service

As root on a machine with systemd, nodes become services, set up in /etc/cfel. Elsewhere they are set up in a
folder and run in the foreground. An inventory sets up a whole fleet in advance, with one archive per host:

    experiment = "experiment.toml"
    files = ["my_model.py"]                 # optional: what else every node needs
    hours = 720                             # optional: lifetime of the certificates

    [hosts.gateway-1]
    address = "10.0.0.1"                    # of a host with an edge server; port 7400 unless it says another
    nodes = ["edge-0", "device-0", "device-1"]

File names are relative to the inventory.
"""

import io
import os
import pwd
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from cfel.deployment.node import Node
from cfel.deployment.security.certificates import issue, make_request
from cfel.deployment.security.credentials import REVOKED, read_credentials
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.invitations import Token, parse_identity
from cfel.durable import read_bytes, replace_file, translate_os_errors
from cfel.errors import DeploymentError, ExperimentError, InputError, StorageError
from cfel.experiment.sections import check_table, reject_unknown
from cfel.launch.enrolment import NodeKit, OperatorDirectory, add_port, join, prepare_operator, read_revoked
from cfel.launch.node import FINAL, NodeFile, read_node, write_node
from cfel.validation import check_list, check_number, check_text, parse_toml

SYSTEMD = Path("/run/systemd/system")
"""There while systemd runs this machine."""
USER = "cfel"
_COMMAND_SECONDS = 60.0
_MOST_ARCHIVE_BYTES = 1024**3
# Not readable for the user of the service.
_HOMES = ("/root", "/home")
# Files in the node's configuration; on the command line they are relative to the current folder.
_PATH_KEYS = ("data_path", "import_from")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the nodes of a machine are set up."""

    folder: Path  # has a folder for each node
    states: Path | None = None  # has a folder for the state of each; None for beside its configuration
    units: Path | None = None  # None for beside the configuration

    @property
    def is_service(self) -> bool:
        """Whether systemd runs the nodes."""
        return self.units is not None


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """All that a node needs on its machine."""

    identity: Identity
    authority: bytes
    certificate: bytes
    key: bytes
    kit: NodeKit


def choose_place(out: Path | None) -> Place:
    """Where to set nodes up: as services where that is possible and no folder was named."""
    if out is not None or os.geteuid() != 0 or not SYSTEMD.is_dir():
        return Place((out or Path()).absolute())
    if any(Path(sys.prefix).is_relative_to(home) for home in _HOMES):
        raise InputError(
            f"cfel is installed in {sys.prefix}, where the service's user may not look: install it in a "
            "virtual environment such as /opt/cfel, or name a folder with --out to run it in the foreground"
        )
    return Place(Path("/etc/cfel"), Path("/var/lib/cfel"), Path("/etc/systemd/system"))


def join_with_token(place: Place, token: Token) -> NodeSetup:
    """Makes the node's key here, and gets its certificate and files; the key stays."""
    identity, folder = token.identity, place.folder / token.node / "certificates"
    _make_folder(folder)
    # Under another name until it is used; the next attempt takes the same one, as tokens admit one key.
    pending = folder / f".{identity}.key"
    authority, welcome = join(token, make_request(pending))
    setup = NodeSetup(identity, authority, welcome.certificate, read_bytes(pending), welcome.kit)
    _check_federation(folder, setup)
    return setup


def set_up(place: Place, setup: NodeSetup, changes: Mapping[str, str]) -> Path:
    """Writes a node's files; returns its configuration file, with changes as given on the command line."""
    name = str(setup.identity)
    folder = place.folder / name
    certificates = folder / "certificates"
    _make_folder(certificates)
    _check_federation(certificates, setup)
    _write_files(folder, setup)
    read_credentials(certificates, setup.identity)
    (certificates / f".{name}.key").unlink(missing_ok=True)
    state = Path("state") if place.states is None else place.states / name
    node = Node(setup.identity, setup.kit.addresses, state, Path("certificates"))
    config = folder / f"{name}.toml"
    # A node that joins again, for a new certificate, keeps what was set on its machine.
    if not config.exists():
        write_node(config, NodeFile(node, Path("experiment.toml")))
    _change_configuration(config, {"addresses": list(setup.kit.addresses), **changes})
    unit = (place.units or folder) / f"cfel-{name}.service"
    replace_file(unit, write_unit(setup.identity, config).encode())
    if place.is_service:
        _hand_over(folder, name)
    return config


def _make_folder(path: Path) -> None:
    with translate_os_errors("create", path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _check_federation(certificates: Path, setup: NodeSetup) -> None:
    known = certificates / "authority.pem"
    if known.exists() and read_bytes(known) != setup.authority:
        raise InputError(
            f"{certificates.parent} is a node of another federation: name another folder with --out, or "
            "remove it"
        )


def _write_files(folder: Path, setup: NodeSetup) -> None:
    name, certificates = str(setup.identity), folder / "certificates"
    files = {Path(each).name: content for each, content in setup.kit.files.items()}
    reserved = {f"{name}.toml", "certificates", "state", f"cfel-{name}.service", "", ".", ".."}
    if set(files) & reserved or len(files) != len(setup.kit.files) or "experiment.toml" not in files:
        raise InputError(f"files of the experiment: {sorted(setup.kit.files)} cannot be stored here")
    for each, content in files.items():
        replace_file(folder / each, content, private=True)
    # The key first: a node that runs takes both when they match.
    pairs = {"authority.pem": setup.authority, f"{name}.key": setup.key, f"{name}.pem": setup.certificate}
    for each, content in pairs.items():
        replace_file(certificates / each, content, private=True)
    if setup.identity.role == "edge":
        replace_file(certificates / REVOKED, setup.kit.revoked, private=True)


def _change_configuration(config: Path, changes: Mapping[str, Any]) -> None:
    table = tomllib.loads(config.read_text(encoding="utf-8"))
    for key, given in changes.items():
        value: Any = {"true": True, "false": False}.get(given, given) if isinstance(given, str) else given
        if key in _PATH_KEYS:
            value = [str(Path(value).absolute())] if key == "import_from" else str(Path(value).absolute())
        table[key] = value
    replace_file(config, tomli_w.dumps(table).encode(), private=True)
    read_node(config)


def _hand_over(folder: Path, name: str) -> None:
    """Lets the service read its files, and change none of them."""
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        _run("useradd", "--system", "--home-dir", "/var/lib/cfel", "--shell", "/usr/sbin/nologin", USER)
        user = pwd.getpwnam(USER)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 0, user.pw_gid)
        path.chmod(0o750 if path.is_dir() else 0o640)
    key = folder / "certificates" / f"{name}.key"
    os.chown(key, user.pw_uid, user.pw_gid)
    key.chmod(0o600)


def start_services(identities: Sequence[Identity]) -> None:
    """Has systemd start nodes now and whenever the machine starts."""
    _run("systemctl", "daemon-reload")
    _run("systemctl", "enable", "--now", *(f"cfel-{each}.service" for each in identities))


def _run(*command: str) -> None:
    try:
        # Commands of the system, looked up as root's shell would; nothing in them comes from elsewhere.
        subprocess.run(command, check=True, capture_output=True, timeout=_COMMAND_SECONDS)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        words = getattr(error, "stderr", None) or str(error).encode()
        raise DeploymentError(f"{' '.join(command)}: {words.decode(errors='replace').strip()}") from error


_UNIT = """\
[Unit]
Description=cfel {name}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
User={user}
ExecStart={command}
Restart=on-failure
RestartSec=1
SuccessExitStatus=130
# Errors that a restart cannot repair.
RestartPreventExitStatus={final}
LimitNOFILE=65536
MemoryMax=4G
StateDirectory=cfel/{name}
StateDirectoryMode=0700
UMask=0077

# It reads its configuration and its certificates, writes its state, and talks TCP; nothing else.
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
PrivateUsers=yes
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def write_unit(identity: Identity, config: Path) -> str:
    """The systemd unit of a node: it restarts what a restart can repair, and may do little else."""
    words = (sys.executable, "-m", "cfel", identity.role, "--config", str(config))
    # As systemd reads it: % and " have a meaning there.
    command = " ".join('"{}"'.format(word.replace("%", "%%").replace('"', '\\"')) for word in words)
    return _UNIT.format(name=identity, user=USER, command=command, final=" ".join(map(str, FINAL)))


def pack(setups: Sequence[NodeSetup], archive: Path) -> None:
    """Writes an archive with the nodes of one host, their keys included: only this user may read it."""
    content = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=content, mode="w:gz") as tar:
        for setup in setups:
            set_up(Place(Path(folder)), setup, {})
            # It names the interpreter of this machine.
            (Path(folder) / str(setup.identity) / f"cfel-{setup.identity}.service").unlink()
            tar.add(
                Path(folder) / str(setup.identity),
                str(setup.identity),
                filter=lambda entry: entry.replace(uid=0, gid=0, uname="root", gname="root", deep=False),
            )
    replace_file(archive, content.getbuffer(), private=True)


def unpack(archive: Path) -> list[NodeSetup]:
    """The nodes in an archive of `cfel deploy`."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with tarfile.open(archive, mode="r:gz") as tar:
                if sum(entry.size for entry in tar.getmembers()) > _MOST_ARCHIVE_BYTES:
                    raise InputError(f"{archive}: holds more than {_MOST_ARCHIVE_BYTES:,} bytes")
                tar.extractall(folder, filter="data")
        except (OSError, tarfile.TarError, EOFError) as error:
            raise InputError(f"{archive}: is neither a token nor an archive of `cfel deploy`") from error
        return [_read_setup(path) for path in sorted(Path(folder).iterdir())]


def _read_setup(folder: Path) -> NodeSetup:
    identity = parse_identity(folder.name)
    config = read_node(folder / f"{identity}.toml")
    authority, certificate, key = read_credentials(folder / "certificates", identity)
    own = {config.experiment.parent / f"{identity}.toml"}
    files = {path.name: read_bytes(path) for path in folder.iterdir() if path.is_file() and path not in own}
    kit = NodeKit(config.node.addresses, files, read_revoked(folder / "certificates"))
    return NodeSetup(identity, authority, certificate, key, kit)


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
    try:
        table: dict[str, Any] = parse_toml(read_bytes(path, follow_links=True).decode())
        return _parse(path.absolute().parent, table)
    except (StorageError, ValueError) as error:
        raise ExperimentError(f"{path}: cannot be used: {error}") from error


def _parse(folder: Path, table: dict[str, Any]) -> Inventory:
    reject_unknown("", table, ("experiment", "files", "hours", "hosts"))
    for key in ("experiment", "hosts"):
        if key not in table:
            raise InputError(f"{key} is missing")
    hosts: dict[str, tuple[Identity, ...]] = {}
    addresses: dict[int, str] = {}
    for name, host in check_table("hosts", table["hosts"]).items():
        hosts[name], own = _parse_host(f"hosts.{name}", host)
        addresses |= own
    listed = Counter(node for nodes in hosts.values() for node in nodes)
    twice = next((node for node, times in listed.items() if times > 1), None)
    if twice is not None:
        raise InputError(f"hosts: {twice} is listed twice")
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


def pack_hosts(inventory: Inventory, out: Path) -> list[Path]:
    """Writes one archive per host, and the operator's directory, into a directory; returns the archives.

    Keys are made here and are in the archives only: a host cannot make its own in advance.
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
