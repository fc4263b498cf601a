"""Joining over real connections: the right machine gets in, and only to the right federation."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from cryptography import x509

from cfel.deployment.node import Node
from cfel.deployment.protocol.messages import PROTOCOL_VERSION, encode
from cfel.deployment.security.certificates import fingerprint, issue, make_authority, make_request, revoke
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.invitations import Token
from cfel.errors import (
    DeploymentError,
    InputError,
    NotAdmittedError,
    RejectedError,
    UnreachableError,
    VersionError,
)
from cfel.launch import enrolment
from cfel.launch.enrolment import OperatorDirectory, add_port, join, prepare_operator, serve_invitations
from cfel.launch.machine import Place, join_with_token, set_up
from cfel.launch.node import read_node
from cfel.membership import FleetChange
from cfel.status import Status
from tests.launch.test_node import free_port

EXPERIMENT = """
preset = "demo"
[rounds]
global = 1
[fleet]
devices = 2
clusters = 2
"""
ADDRESSES = ("10.0.0.1:7400", "10.0.0.2:7400")
DEVICE = Identity("device", 1)


@pytest.fixture
def federation(tmp_path: Path) -> OperatorDirectory:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    return prepare_operator(tmp_path / "federation", tmp_path / "experiment.toml", ADDRESSES)


def invite(
    federation: OperatorDirectory, address: str, identity: Identity = DEVICE, hours: float = 1.0
) -> Token:
    return federation.invitations.invite(identity, fingerprint(federation.authority), address, hours)


def serving(
    federation: OperatorDirectory, address: str, *steps: Callable[[], object]
) -> tuple[list[object], list[Identity]]:
    """The results of the steps, one after the other beside the server, and who has joined."""
    joined: list[Identity] = []

    async def serve_and_join() -> list[object]:
        listens = asyncio.Event()
        server = asyncio.create_task(serve_invitations(federation, address, 1.0, joined.append, listens.set))
        try:
            waiting = asyncio.ensure_future(listens.wait())
            await asyncio.wait([waiting, server], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if server.done():
                server.result()
            return [await asyncio.to_thread(step) for step in steps]
        finally:
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)

    return asyncio.run(serve_and_join()), joined


def attempt(place: Place, token: Token) -> Callable[[], object]:
    """Joins; returns the setup, or the error."""

    def join_here() -> object:
        try:
            return join_with_token(place, token)
        except DeploymentError as error:
            return error

    return join_here


def reasons(results: Sequence[object]) -> list[str]:
    return [str(each) for each in results if isinstance(each, DeploymentError)]


def test_a_machine_joins_and_its_key_never_leaves(federation: OperatorDirectory, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    token, place = invite(federation, address), Place(tmp_path / "machine")
    (federation.certificates / "revoked.txt").write_text("1f\n")
    (setup,), joined = serving(federation, address, lambda: join_with_token(place, token))
    assert joined == [DEVICE]
    config = set_up(place, setup, {})  # type: ignore[arg-type]
    found = read_node(config)
    assert (found.node.identity, found.node.addresses) == (DEVICE, ADDRESSES)
    assert found.node.directory == config.parent / "state"
    assert found.load_experiment().fleet.devices == 2
    key = (config.parent / "certificates" / "device-1.key").read_bytes()
    theirs = [path.read_bytes() for path in federation.path.rglob("*") if path.is_file()]
    assert theirs
    assert all(key not in each for each in theirs)
    assert not (federation.certificates / "device-1.key").exists()
    # A device checks nobody's certificate against the list.
    assert not (config.parent / "certificates" / "revoked.txt").exists()


def test_an_edge_server_joins_with_its_host_name_and_the_list(
    federation: OperatorDirectory, tmp_path: Path
) -> None:
    address, edge = f"127.0.0.1:{free_port()}", Identity("edge", 1)
    issue(federation.certificates, Identity("device", 0), 1)
    revoke(federation.certificates, Identity("device", 0))
    token, place = invite(federation, address, edge), Place(tmp_path / "machine")
    (setup,), _ = serving(federation, address, lambda: join_with_token(place, token))
    config = set_up(place, setup, {"listen": "0.0.0.0:7400", "dashboard_tls": "true"})  # type: ignore[arg-type]
    assert read_node(config).node.listen == "0.0.0.0:7400"
    assert read_node(config).dashboard_tls
    listed = (federation.certificates / "revoked.txt").read_bytes()
    assert (config.parent / "certificates" / "revoked.txt").read_bytes() == listed
    loaded = x509.load_pem_x509_certificate(setup.certificate)  # type: ignore[attr-defined]
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.2"]


def test_a_token_works_on_one_machine_only(federation: OperatorDirectory, tmp_path: Path) -> None:
    """The same machine may try again, as its first answer may have been lost; another is refused."""
    address = f"127.0.0.1:{free_port()}"
    token, one, two = invite(federation, address), Place(tmp_path / "one"), Place(tmp_path / "two")
    # Another invitation is open, so that the server does not end.
    invite(federation, address, Identity("device", 0))
    results, joined = serving(
        federation, address, attempt(one, token), attempt(one, token), attempt(two, token)
    )
    assert reasons(results) == [
        "the token for device-1 has been used by another machine: if that was none of yours, revoke "
        "device-1; make another token with `cfel invite`"
    ]
    assert isinstance(results[2], NotAdmittedError)
    assert joined == [DEVICE, DEVICE]


def test_expired_forged_and_wrong_role_tokens_are_refused(
    federation: OperatorDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, place = f"127.0.0.1:{free_port()}", Place(tmp_path / "machine")
    good = invite(federation, address)
    expired = invite(federation, address, Identity("device", 0), hours=-1)
    invite(federation, address, Identity("edge", 0))
    with pytest.raises(NotAdmittedError, match="the token for device-0 expired"):
        join(expired, b"")
    # Also for a machine whose clock is wrong, or that does not look.
    monkeypatch.setattr(Token, "check_expiry", lambda *_: None)
    forged = Token(good.fingerprint, bytes(16), good.expires, "device-1", address)
    promoted = Token(good.fingerprint, good.secret, good.expires, "edge-0", address)
    results, joined = serving(
        federation, address, *(attempt(place, token) for token in (expired, forged, promoted))
    )
    first, second, third = reasons(results)
    assert first.startswith("the token for device-0 expired on")
    assert second == "the token for device-1 was not made here, or a newer one has replaced it"
    assert third == "the token is for device-1, not for edge-0"
    assert joined == []


def test_the_server_of_another_authority_hears_no_secret(
    federation: OperatorDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody in between has an authority of his own: its fingerprint is another."""
    address = f"127.0.0.1:{free_port()}"
    token = invite(federation, address)
    other = prepare_operator(tmp_path / "other", tmp_path / "experiment.toml", ADDRESSES)
    invite(other, address)
    asked: list[object] = []

    def note(value: object) -> bytes:
        asked.append(value)
        return encode(value)

    monkeypatch.setattr(enrolment, "encode", note)
    (error,), joined = serving(other, address, attempt(Place(tmp_path / "machine"), token))
    assert isinstance(error, NotAdmittedError)
    assert "shows another authority than the token names" in str(error)
    assert joined == []
    assert not any(isinstance(each, enrolment.JoinRequest) for each in asked)


def test_an_edge_server_cannot_pose_as_the_server(
    federation: OperatorDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the authority's certificate and has one of its own, but not the server's name."""
    issue(federation.certificates, Identity("edge", 0), 1)
    pair = (federation.certificates / "edge-0.pem", federation.certificates / "edge-0.key")
    monkeypatch.setattr(enrolment, "issue_for_server", lambda *_: pair)
    address = f"127.0.0.1:{free_port()}"
    token = invite(federation, address)
    (error,), joined = serving(federation, address, attempt(Place(tmp_path / "machine"), token))
    assert isinstance(error, NotAdmittedError)
    assert "is not `cfel invite`" in str(error)
    assert joined == []


def test_an_address_that_is_in_use_is_named(federation: OperatorDirectory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(DeploymentError, match=f"cannot listen on {address}: .*in use"):
            serving(federation, address)


def test_nobody_there(federation: OperatorDirectory, tmp_path: Path) -> None:
    token = invite(federation, f"127.0.0.1:{free_port()}")
    with pytest.raises(UnreachableError, match=r"refused; is `cfel invite` running there\?"):
        join_with_token(Place(tmp_path / "machine"), token)


def test_another_protocol_version_is_refused(federation: OperatorDirectory, tmp_path: Path) -> None:
    desk = enrolment._Desk(federation, 1.0, lambda _: None)
    token = invite(federation, "127.0.0.1:1")
    request = make_request(tmp_path / "key")
    later = enrolment.JoinRequest(PROTOCOL_VERSION + 1, "9.9", "device-1", token.secret, request)
    with pytest.raises(VersionError, match=f"protocol version {PROTOCOL_VERSION + 1}"):
        desk._admit(later)


@pytest.mark.parametrize("content", [b"", b"\0\0\0\4abcd", b"\xff\xff\xff\xff", b"\0\0\0\x64short"])
def test_garbage_does_not_stop_the_server(
    federation: OperatorDirectory, content: bytes, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    token = invite(federation, address)

    def send() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, port = address.split(":")
        with (
            socket.create_connection((host, int(port)), 10) as plain,
            context.wrap_socket(plain) as connection,
        ):
            connection.sendall(content)

    results, joined = serving(federation, address, send, attempt(Place(tmp_path / "machine"), token))
    assert reasons(results) == []
    assert joined == [DEVICE]


def test_the_directory_of_an_operator(federation: OperatorDirectory, tmp_path: Path) -> None:
    edges = [Identity("edge", 0), Identity("edge", 1)]
    assert federation.list_nodes() == [*edges, Identity("device", 0), DEVICE]
    invite(federation, "10.0.0.9:7399", edges[0])
    issue(federation.certificates, DEVICE, 1)
    assert federation.list_absent() == [edges[1], Identity("device", 0)]
    again = prepare_operator(federation.path, tmp_path / "experiment.toml", ADDRESSES)
    assert again.authority == federation.authority
    with pytest.raises(InputError, match="is of another experiment or other edge servers"):
        prepare_operator(federation.path, tmp_path / "experiment.toml", ("a:1", "b:2"))
    with pytest.raises(InputError, match=r"edges: 1 addresses, the experiment has 2 edge servers"):
        prepare_operator(tmp_path / "new", tmp_path / "experiment.toml", ("a:1",))
    with pytest.raises(InputError, match="name --experiment and --edges once"):
        OperatorDirectory(tmp_path / "nothing").read_operator()


def test_nodes_that_have_joined_are_added_once_they_run(
    federation: OperatorDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices 8 and 9 and edge 2 have joined, device 10 has not; device 9 and edge 2 are not started yet."""
    asked: list[FleetChange] = []
    applicants, edges = [8], [0]

    async def agree(node: Node, change: FleetChange, seconds: float) -> int:
        assert (node.identity, seconds) == (Identity("operator", 0), 600.0)
        if change.edge == 7:
            raise RejectedError("edge 7 is no member")
        asked.append(change)
        return 5

    async def answer(node: Node) -> dict[int, Status | str]:
        assert node.addresses == (*ADDRESSES, "c:1")[: len(node.addresses)]
        status = Status(node="edge-0", applicants=tuple(applicants))
        return {i: status if i in edges else "nobody answers" for i in range(len(node.addresses))}

    monkeypatch.setattr(enrolment, "ask_for_change", agree)
    monkeypatch.setattr(enrolment, "ask_status", answer)
    devices, edge = [Identity("device", n) for n in (8, 9, 10, 11)], Identity("edge", 2)
    assert (federation.is_known(DEVICE), federation.is_known(edge)) == (True, False)
    with pytest.raises(InputError, match="edge-3: the next edge server is edge-2"):
        federation.plan_joining(Identity("edge", 3), None, "c:1")
    homes = dict(zip(devices, (1, 1, 1, 7), strict=True))
    for each in (*devices, edge):
        joining = federation.plan_joining(each, homes.get(each), "c:1")
        token = federation.invitations.invite(each, bytes(32), "10.0.0.9:7399", 1.0, joining)
        if each != devices[2]:
            federation.invitations.use(str(each), token.secret, b"its key")
    assert federation.is_known(edge)
    assert (federation.make_kit().addresses[2], federation.find_hosts(edge)) == ("c:1", ("c",))
    assert asyncio.run(federation.add_arrived()) == {devices[0]: 5}
    # A new token, as for a machine that was set up again, changes nothing about that.
    renewed = federation.invitations.invite(devices[1], bytes(32), "10.0.0.9:7399", 1.0)
    federation.invitations.use("device-9", renewed.secret, b"its key")
    applicants[:], edges[:] = [9, 11], [0, 2]
    found = {devices[1]: 5, devices[3]: "edge 7 is no member", edge: 5}
    assert asyncio.run(federation.add_arrived()) == found
    assert asyncio.run(federation.add_arrived()) == {}
    assert [(each.what, each.device, each.edge, each.address) for each in asked] == [
        ("add device", (8,), 1, ""),
        ("add device", (9,), 1, ""),
        ("add edge", (), 2, "c:1"),
    ]
    assert federation.read_operator().node.addresses == (*ADDRESSES, "c:1")
    assert list(federation.invitations.list_joining()) == [devices[2]]
    # The command that began it may still be repeated.
    prepare_operator(federation.path, tmp_path / "experiment.toml", ADDRESSES)


def test_files_that_the_experiment_names_travel_with_it(tmp_path: Path) -> None:
    """They stand in other folders at the operator, and beside the experiment at a node."""
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "ours.csv").write_text("0,1\n")
    (tmp_path / "module.py").write_text("x = 1\n")
    topology = '[topology]\nkind = "edges"\nfile = "graphs/ours.csv"\n'
    (tmp_path / "experiment.toml").write_text(EXPERIMENT + topology)
    made = prepare_operator(tmp_path / "f", tmp_path / "experiment.toml", ADDRESSES, [tmp_path / "module.py"])
    files = made.make_kit().files
    assert sorted(files) == ["experiment.toml", "module.py", "ours.csv"]
    assert b'file = "ours.csv"' in files["experiment.toml"]
    assert files["ours.csv"] == b"0,1\n"


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("10.0.0.1", "10.0.0.1:7400"),
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("gateway", "gateway:7400"),
        ("::1", "[::1]:7400"),
        ("[::1]", "[::1]:7400"),
        ("[::1]:80", "[::1]:80"),
    ],
)
def test_a_port_is_added_where_there_is_none(given: str, address: str) -> None:
    assert add_port(given) == address


def test_the_authority_must_be_a_certificate(tmp_path: Path) -> None:
    make_authority(tmp_path)
    assert len(fingerprint((tmp_path / "authority.pem").read_bytes())) == 32
    with pytest.raises(RejectedError, match="is none"):
        fingerprint(b"nonsense")
