"""How a machine joins a federation: the operator's directory, who serves invitations, and who uses them.

    DIR/
    ├── experiment/experiment.toml, …    what every node gets
    ├── certificates/                    the authority, with its key, and the operator's certificate
    ├── invitations/                     who was invited, and who has come
    └── nodes/operator-0.toml            for `cfel status DIR`; has the addresses of all edge servers

`cfel invite` serves on the machine with the authority's key. A machine that joins connects twice: first for
the authority's certificate, which must have the fingerprint in its token; then to the server that this
authority vouches for. Only that one sees the secret of the token.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
import ssl
import tempfile
import time
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli_w

from cfel import __version__
from cfel.deployment.node import Node, ask_for_change, ask_status
from cfel.deployment.protocol.addresses import join_address, split_address
from cfel.deployment.protocol.messages import PROTOCOL_VERSION, Count, Version, check_version, decode, encode
from cfel.deployment.security.certificates import (
    fingerprint,
    is_issued,
    issue,
    issue_for_request,
    issue_for_server,
    make_authority,
    read_request_key,
)
from cfel.deployment.security.credentials import REVOKED
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.invitations import Invitations, Joining, Token
from cfel.durable import read_bytes, replace_file, translate_os_errors
from cfel.errors import (
    DeploymentError,
    InputError,
    NotAdmittedError,
    RejectedError,
    UnreachableError,
    VersionError,
    describe_error,
)
from cfel.experiment import load_experiment
from cfel.experiment.sections import PATHS
from cfel.launch.node import NodeFile, read_node, write_node
from cfel.membership import FleetChange
from cfel.plugins import ANY_CODE, import_from
from cfel.status import Status
from cfel.system.fleet import cluster_sizes
from cfel.wording import escape_control

EDGE_PORT, INVITE_PORT = 7400, 7399
SERVER_NAME = "enrol.cfel"
"""The host name in the certificate of `cfel invite`: no node can pose as it."""
CALL_SECONDS = 30.0
_MOST_REQUEST_BYTES = 64 * 1024
_MOST_ANSWER_BYTES = 256 * 1024**2
_MOST_CONNECTIONS = 64
_LENGTH_BYTES = 4
_LOOK_SECONDS = 1.0
# A change holds from the next global round on, which may take a while.
_CHANGE_SECONDS = 600.0
_SERVER_HOURS = 24.0 * 365
_LOG = logging.getLogger(__name__)
Value = TypeVar("Value")


class NodeKit(msgspec.Struct, frozen=True):
    """What every node of a federation gets, besides its certificate."""

    addresses: tuple[str, ...]  # of all edge servers
    files: dict[str, bytes]  # the experiment and what it needs, by name
    revoked: bytes  # the list of revoked certificates


class AuthorityRequest(msgspec.Struct, frozen=True, tag="authority"):
    """Asks for the authority's certificate; anybody may."""


class JoinRequest(msgspec.Struct, frozen=True, tag="join"):
    """Asks for a certificate."""

    protocol: Count  # version
    version: Version  # of cfel
    node: str  # that the token names
    secret: bytes  # of the token
    request: bytes  # for a certificate, in PEM format


class AuthorityAnswer(msgspec.Struct, frozen=True, tag="authority"):
    """The authority's certificate."""

    authority: bytes


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """Everything a node needs that its machine does not have yet."""

    certificate: bytes
    kit: NodeKit


class Refusal(msgspec.Struct, frozen=True, tag="refused"):
    """Why a machine may not join."""

    reason: str
    is_version: bool = False  # because of its version of the protocol


@dataclass(frozen=True, slots=True)
class OperatorDirectory:
    """What an operator keeps of a federation."""

    path: Path

    @property
    def certificates(self) -> Path:
        return self.path / "certificates"

    @property
    def configuration(self) -> Path:
        """The operator's own."""
        return self.path / "nodes" / "operator-0.toml"

    @property
    def invitations(self) -> Invitations:
        return Invitations(self.path / "invitations", time.time)

    @property
    def authority(self) -> bytes:
        """The authority's certificate."""
        return read_bytes(self.certificates / "authority.pem")

    def read_operator(self) -> NodeFile:
        if not self.configuration.exists():
            raise InputError(
                f"{self.path} is no directory of `cfel invite` yet: name --experiment and --edges once"
            )
        return read_node(self.configuration)

    def list_nodes(self) -> list[Identity]:
        """All nodes of the experiment: edge servers, then devices."""
        fleet = self.read_operator().load_experiment().fleet
        return [
            *(Identity("edge", i) for i in range(len(cluster_sizes(fleet.devices, fleet.clusters)))),
            *(Identity("device", n) for n in range(fleet.devices)),
        ]

    def is_known(self, identity: Identity) -> bool:
        """Whether a node is in the experiment, or was added to the fleet later."""
        return (
            identity in self.list_nodes()
            or is_issued(self.certificates, identity)
            or identity in self.invitations.list_joining()
        )

    def plan_joining(self, identity: Identity, edge: int | None, address: str) -> Joining:
        """How a node that the experiment does not have will be added to the fleet.

        A device needs its edge server, and an edge server the address where others will reach it.
        """
        option = {"edge": "address", "device": "edge"}.get(identity.role, "")
        if not option or (edge is None if option == "edge" else not address):
            hint = f"; --{option} adds it to the running federation" if option else ""
            raise InputError(f"{identity}: is not in the experiment{hint}")
        if identity.role == "device":
            return Joining(edge)
        if identity.number != len(self.list_addresses()):
            raise InputError(f"{identity}: the next edge server is edge-{len(self.list_addresses())}")
        return Joining(None, address)

    def list_addresses(self) -> tuple[str, ...]:
        """Addresses of all edge servers by number, with those that are about to join."""
        addresses = list(self.read_operator().node.addresses)
        for identity, joining in self.invitations.list_joining().items():
            if identity.role == "edge" and identity.number == len(addresses):
                addresses.append(joining.address)
        return tuple(addresses)

    async def add_arrived(self) -> dict[Identity, int | str]:
        """Adds nodes to the fleet of the running federation that have joined, run, and wait to be added.

        Before that they would only keep the others waiting. Returns of each the first round that it belongs
        to, or why it cannot be added.
        """
        arrived = self.invitations.list_joining(arrived=True)
        if not arrived:
            return {}
        node = self.read_operator().node
        answers = await ask_status(replace(node, addresses=self.list_addresses()))
        asking = {n for each in answers.values() if isinstance(each, Status) for n in each.applicants}
        added: dict[Identity, int | str] = {}
        for change in _list_changes(arrived, answers, asking):
            nodes = _find_nodes(change)
            try:
                first: int | str = await ask_for_change(node, change, _CHANGE_SECONDS)
            except UnreachableError as error:
                _LOG.warning("%s", error)
                continue
            except RejectedError as error:
                first = str(error)
            for identity in nodes:
                self.invitations.finish_joining(identity)
                added[identity] = first
            if change.address and isinstance(first, int):
                file = self.read_operator()
                grown = replace(file.node, addresses=(*file.node.addresses, change.address))
                write_node(self.configuration, replace(file, node=grown))
        return added

    def list_absent(self) -> list[Identity]:
        """Nodes that have neither a certificate nor an open invitation."""
        invited = set(self.invitations.list_open())
        nodes = self.list_nodes()
        return [each for each in nodes if each not in invited and not is_issued(self.certificates, each)]

    def make_kit(self) -> NodeKit:
        folder = self.read_operator().experiment.parent
        files = {path.name: read_bytes(path) for path in sorted(folder.iterdir())}
        return NodeKit(self.list_addresses(), files, read_revoked(self.certificates))

    def find_hosts(self, identity: Identity) -> tuple[str, ...]:
        """Names of an edge server's host, for its certificate."""
        addresses = self.list_addresses()
        return (split_address("edges", addresses[identity.number])[0],) if identity.role == "edge" else ()


def read_revoked(certificates: Path) -> bytes:
    """The list of revoked certificates; empty without one."""
    return read_bytes(certificates / REVOKED) if (certificates / REVOKED).exists() else b""


def _list_changes(
    arrived: Mapping[Identity, Joining], answers: Mapping[int, Status | str], asking: Collection[int]
) -> list[FleetChange]:
    """The changes that add those which are there: devices together, and one edge server."""
    by_edge: dict[int, list[int]] = {}
    for identity, joining in arrived.items():
        if identity.role == "device" and identity.number in asking and joining.edge is not None:
            by_edge.setdefault(joining.edge, []).append(identity.number)
    changes = [
        FleetChange(1, "add device", tuple(devices), edge, ticket=secrets.token_hex(8))
        for edge, devices in by_edge.items()
    ]
    edges = (each for each in sorted(arrived) if each.role == "edge")
    ready = [each for each in edges if isinstance(answers.get(each.number), Status)]
    for each in ready[:1]:
        address, ticket = arrived[each].address, secrets.token_hex(8)
        changes.append(FleetChange(1, "add edge", edge=each.number, address=address, ticket=ticket))
    return changes


def _find_nodes(change: FleetChange) -> list[Identity]:
    if change.what == "add edge" and change.edge is not None:
        return [Identity("edge", change.edge)]
    return [Identity("device", n) for n in change.device]


def prepare_operator(
    path: Path, experiment: Path, addresses: Sequence[str], files: Sequence[Path] = ()
) -> OperatorDirectory:
    """Makes the directory of an operator; one that is there already must be of the same federation.

    `addresses` are of all edge servers, "host:port", by number. Every node also needs `files`, such as
    modules that the experiment names.
    """
    import_from(experiment.absolute().parent)
    fleet = load_experiment(experiment, code=ANY_CODE).fleet
    clusters = len(cluster_sizes(fleet.devices, fleet.clusters))
    if len(addresses) != clusters:
        raise InputError(f"edges: {len(addresses)} addresses, the experiment has {clusters} edge servers")
    content = _gather_files(experiment, files)
    found = OperatorDirectory(path)
    if found.configuration.exists():
        # Edge servers may have been added since.
        known = found.read_operator().node.addresses[: len(addresses)]
        if found.make_kit().files != content or known != tuple(addresses):
            raise InputError(f"{path} is of another experiment or other edge servers: name another directory")
        return found
    with translate_os_errors("create", path):
        for folder in ("experiment", "nodes"):
            (path / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    make_authority(found.certificates)
    operator = Identity("operator", 0)
    issue(found.certificates, operator, _SERVER_HOURS)
    for name, each in content.items():
        replace_file(path / "experiment" / name, each)
    node = Node(operator, tuple(addresses), Path("operator-0"), Path("../certificates"))
    write_node(found.configuration, NodeFile(node, Path("../experiment/experiment.toml")))
    return found


def _gather_files(experiment: Path, files: Sequence[Path]) -> dict[str, bytes]:
    """The experiment and the files that it names, all in one folder."""
    document: dict[str, Any] = tomllib.loads(read_bytes(experiment, follow_links=True).decode())
    content: dict[str, bytes] = {}
    for *tables, key in PATHS:
        table = document
        for name in tables:
            table = table.get(name, {})
        # The samples are where each machine has them.
        if key not in table or key == "path":
            continue
        named = table[key] if isinstance(table[key], list) else [table[key]]
        paths = [experiment.parent / name for name in named]
        content |= {path.name: read_bytes(path, follow_links=True) for path in paths}
        table[key] = [path.name for path in paths] if isinstance(table[key], list) else paths[0].name
    content |= {path.name: read_bytes(path, follow_links=True) for path in files}
    return content | {"experiment.toml": tomli_w.dumps(document).encode()}


def add_port(address: str, port: int = EDGE_PORT) -> str:
    """An address as "host:port", with this port if it names none."""
    if address.count(":") > 1 and "[" not in address:
        return join_address(address, port)
    return address if address.rpartition("]")[2].count(":") else f"{address}:{port}"


def find_own_address(towards: str) -> str:
    """The address of this machine that others know it by, seen from where packets to an address leave it."""
    try:
        found = socket.getaddrinfo(*split_address("edges", towards), type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], found[1]) as probe:
            # Of a datagram socket, this sends nothing.
            probe.connect(found[4])
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UnreachableError(
            f"{towards}: {describe_error(error)}; name the address of this machine with --at"
        ) from error


async def serve_invitations(
    federation: OperatorDirectory,
    listen: str,
    hours: float,
    on_join: Callable[[Identity], None],
    on_start: Callable[[], None] = lambda: None,
    on_add: Callable[[Identity, int | str], None] = lambda _identity, _first: None,
) -> None:
    """Serves until no invitation is open any more, and all that the experiment does not have are added.

    Invitations that are made meanwhile count. `hours` is the lifetime of the certificates. `on_add` is called
    with every node that was added to the fleet and the first round that it belongs to, or why it cannot be.
    """
    desk = _Desk(federation, hours, on_join)
    host, port = split_address("listen", listen)
    with tempfile.TemporaryDirectory() as folder:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pair = issue_for_server(federation.certificates, SERVER_NAME, _SERVER_HOURS, Path(folder))
        context.load_cert_chain(*pair)
    try:
        server = await asyncio.start_server(
            desk.answer, host, port, ssl=context, ssl_handshake_timeout=CALL_SECONDS
        )
    except OSError as error:
        raise DeploymentError(
            f"cannot listen on {listen}: {describe_error(error)}; --at or --listen names another address"
        ) from error
    on_start()
    async with server:
        while federation.invitations.list_open() or federation.invitations.list_joining() or desk.is_busy:
            for identity, first in (await federation.add_arrived()).items():
                on_add(identity, first)
            await asyncio.sleep(_LOOK_SECONDS)


class _Desk:
    """Answers machines that want to join."""

    def __init__(
        self, federation: OperatorDirectory, hours: float, on_join: Callable[[Identity], None]
    ) -> None:
        self._federation, self._hours, self._on_join = federation, hours, on_join
        self._open = 0

    @property
    def is_busy(self) -> bool:
        return self._open > 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            # Connections of strangers must leave files to the others.
            if self._open <= _MOST_CONNECTIONS:
                async with asyncio.timeout(CALL_SECONDS):
                    await self._answer(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            _LOG.info("a connection ended early: %s", error)
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        joined: Identity | None = None
        answer: AuthorityAnswer | Welcome | Refusal
        try:
            request = await _read_request(reader)
            if isinstance(request, JoinRequest):
                joined, answer = self._admit(request)
            else:
                answer = AuthorityAnswer(self._federation.authority)
        except RejectedError as error:
            _LOG.warning("refused %s: %s", writer.get_extra_info("peername"), error)
            answer = Refusal(str(error), isinstance(error, VersionError))
        content = encode(answer)
        writer.write(len(content).to_bytes(_LENGTH_BYTES) + content)
        await writer.drain()
        if joined is not None:
            self._on_join(joined)

    def _admit(self, request: JoinRequest) -> tuple[Identity, Welcome]:
        """Between the look at the invitation and its use nobody else is admitted: one token, one key."""
        check_version(request.protocol)
        federation = self._federation
        key = read_request_key(request.request)
        identity = federation.invitations.use(request.node, request.secret, key)
        hosts = federation.find_hosts(identity)
        certificate = issue_for_request(
            federation.certificates, identity, request.request, self._hours, hosts
        )
        return identity, Welcome(certificate, federation.make_kit())


async def _read_request(reader: asyncio.StreamReader) -> AuthorityRequest | JoinRequest:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
    if length > _MOST_REQUEST_BYTES:
        raise RejectedError(f"a request of {length} bytes is too long")
    kind: Any = AuthorityRequest | JoinRequest
    request: AuthorityRequest | JoinRequest = decode(await reader.readexactly(length), kind)
    return request


def join(token: Token, request: bytes) -> tuple[bytes, Welcome]:
    """Joins with a token of `cfel invite` and a request for a certificate, in PEM format.

    Returns the authority's certificate, and what it sent.
    """
    token.check_expiry(time.time())
    unknown = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing secret is sent here, and nothing that comes back is believed without the fingerprint.
    unknown.check_hostname, unknown.verify_mode = False, ssl.CERT_NONE
    authority = _call(token.address, unknown, AuthorityRequest(), AuthorityAnswer).authority
    if fingerprint(authority) != token.fingerprint:
        raise NotAdmittedError(
            f"{token.address} shows another authority than the token names: the token is of another "
            "federation, or somebody is in between; nothing was sent"
        )
    known = ssl.create_default_context(cadata=authority.decode())
    asked = JoinRequest(PROTOCOL_VERSION, __version__, token.node, token.secret, request)
    return authority, _call(token.address, known, asked, Welcome)


def _call(
    address: str, context: ssl.SSLContext, request: AuthorityRequest | JoinRequest, kind: type[Value]
) -> Value:
    try:
        with (
            socket.create_connection(split_address("address", address), CALL_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=SERVER_NAME) as connection,
        ):
            content = encode(request)
            connection.sendall(len(content).to_bytes(_LENGTH_BYTES) + content)
            length = int.from_bytes(_receive(connection, _LENGTH_BYTES))
            if length > _MOST_ANSWER_BYTES:
                raise RejectedError(f"{address}: an answer of {length} bytes is too long")
            expected: Any = kind | Refusal
            answer: Value | Refusal = decode(_receive(connection, length), expected)
    except ssl.SSLCertVerificationError as error:
        raise NotAdmittedError(f"{address} is not `cfel invite`: {error.verify_message}") from error
    except OSError as error:
        raise UnreachableError(
            f"{address}: {describe_error(error)}; is `cfel invite` running there?"
        ) from error
    if isinstance(answer, Refusal):
        kind_of_error = VersionError if answer.is_version else NotAdmittedError
        raise kind_of_error(escape_control(answer.reason))
    return answer


def _receive(connection: ssl.SSLSocket, length: int) -> bytes:
    parts, missing = [], length
    while missing:
        part = connection.recv(min(missing, 1024 * 1024))
        if not part:
            raise ConnectionError("the connection ended early")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
