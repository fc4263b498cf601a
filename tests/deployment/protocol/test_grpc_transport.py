"""gRPC with certificates: who gets in, who does not, and what both sides hear."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cfel.deployment.host import ComputeThread
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.protocol import grpc_transport as connections
from cfel.deployment.protocol.grpc_transport import GrpcClient, GrpcServer
from cfel.deployment.protocol.messages import Body, Message, split_message
from cfel.deployment.security import credentials as credentials_module
from cfel.deployment.security.certificates import issue, make_authority, revoke
from cfel.deployment.security.credentials import CredentialFiles, Credentials
from cfel.deployment.security.identity import Authenticator, ExpiredError, Identity
from cfel.errors import DeploymentError, NotAdmittedError, RejectedError, StaleTermError, UnreachableError
from tests.support.raw_endpoint import raw_endpoint

EDGE, PEER, DEVICE, OTHER = (
    Identity("edge", 0),
    Identity("edge", 1),
    Identity("device", 3),
    Identity("device", 4),
)
LIMIT = 3 * 1024 * 1024


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_authority(directory)
    for member in (EDGE, PEER, DEVICE, OTHER):
        issue(directory, member, hours=1)
    return directory


async def _echo(caller: Identity, message: Message) -> Message:
    if message.header == b"reject":
        raise RejectedError("because")
    if message.header == b"ended":
        compute = ComputeThread()
        compute.close()
        await compute.run(lambda: None)
    if message.header == b"stale":
        raise StaleTermError("stale term 1")
    return Message(f"{caller} {message.header.decode()}".encode(), message.body)


Rejections = list[tuple[Identity | None, str, str]]


@asynccontextmanager
async def serving(certificates: Path) -> AsyncIterator[tuple[str, Rejections]]:
    rejections: Rejections = []
    methods = [
        raw_endpoint("echo", ("device", "edge"), _echo, LIMIT),
        raw_endpoint("plan", ("edge",), _echo, LIMIT),
    ]
    server = GrpcServer(
        Credentials.read(certificates, EDGE), methods, lambda *rejection: rejections.append(rejection)
    )
    port = await server.start("127.0.0.1:0")
    try:
        yield f"127.0.0.1:{port}", rejections
    finally:
        await server.stop(0)


def as_they_are(certificates: Path, who: Identity) -> Credentials:
    """What lies in a directory, without the owner's own look at it."""
    names = ("authority.pem", f"{who}.pem", f"{who}.key")
    authority, certificate, key = ((certificates / name).read_bytes() for name in names)
    return Credentials(authority, certificate, key, certificates / "revoked.txt")


async def ask(
    certificates: Path,
    who: Identity,
    address: str,
    method: str = "echo",
    message: Message | None = None,
    to: Identity = EDGE,
) -> Message:
    calls = GrpcClient(as_they_are(certificates, who), {to: address}, LIMIT)
    try:
        return await calls.send(to, method, message or Message(), 10)
    finally:
        await calls.close()


def test_the_caller_is_who_the_certificate_says(certificates: Path) -> None:
    async def play() -> Message:
        async with serving(certificates) as (address, _):
            body = Body.hash(bytes(LIMIT))
            return await ask(certificates, DEVICE, address, message=Message(b"as device 99", body))

    answer = asyncio.run(play())
    assert answer.header == b"device-3 as device 99"
    assert answer.body.join() == bytes(LIMIT)


@pytest.mark.parametrize(
    ("method", "message", "reason"),
    [
        ("plan", Message(), "'plan' is not for a device"),
        ("echo", Message(b"reject"), "because"),
        ("echo", Message(b"", Body.hash(bytes(LIMIT + 1))), "too large"),
    ],
)
def test_rejected_with_a_reason(certificates: Path, method: str, message: Message, reason: str) -> None:
    async def play() -> Rejections:
        async with serving(certificates) as (address, rejections):
            with pytest.raises(RejectedError, match=f"(?i){reason}"):
                await ask(certificates, DEVICE, address, method, message)
            assert (await ask(certificates, DEVICE, address)).header == b"device-3 "
            return rejections

    rejections = asyncio.run(play())
    assert [who for who, _, _ in rejections] == [DEVICE]


def test_an_unknown_method_is_refused_and_not_counted(certificates: Path) -> None:
    """By gRPC itself; grpcio has other words if the server ends the call while the client still sends."""

    async def play() -> Rejections:
        async with serving(certificates) as (address, rejections):
            with pytest.raises(DeploymentError, match=r"(?i)not found|internal error from core"):
                await ask(certificates, DEVICE, address, "nothing", Message())
            assert (await ask(certificates, DEVICE, address)).header == b"device-3 "
            return rejections

    assert asyncio.run(play()) == []


def test_a_stale_term_has_its_own_status_code(certificates: Path) -> None:
    async def play() -> None:
        async with serving(certificates) as (address, _):
            with pytest.raises(StaleTermError, match="stale term 1"):
                await ask(certificates, DEVICE, address, message=Message(b"stale"))
            with pytest.raises(RejectedError) as rejection:
                await ask(certificates, DEVICE, address, message=Message(b"reject"))
            assert type(rejection.value) is RejectedError

    asyncio.run(play())


def test_a_call_to_a_node_that_has_ended_is_no_fault_of_the_node(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        async with serving(certificates) as (address, _):
            with pytest.raises(UnreachableError, match="has ended"):
                await ask(certificates, DEVICE, address, message=Message(b"ended"))

    asyncio.run(play())
    assert not [record for record in caplog.records if record.exc_info]


def test_raw_bytes_are_rejected(certificates: Path) -> None:
    """The bytes of a stranger's program, or of a later version, with a certificate that is all right."""
    credentials = Credentials.read(certificates, DEVICE)
    (good,) = split_message(Message())
    later = good[:4] + b"\x09\x00" + good[6:]
    (long,) = split_message(Message(b"a" * 3000))
    # A message that is compressed, even a valid one, could be a thousand times as large as what is sent.
    plain, compressed = grpc.Compression.NoCompression, grpc.Compression.Gzip
    sent = ((bytes(100), plain), (later, plain), (b"", plain), (long, compressed))

    async def play() -> list[str]:
        details = []
        async with serving(certificates) as (address, _):
            secure = grpc.ssl_channel_credentials(
                credentials.authority, credentials.key, credentials.certificate
            )
            options = (("grpc.ssl_target_name_override", EDGE.host),)
            async with grpc.aio.secure_channel(address, secure, options=options) as channel:
                for content, how in sent:
                    method = channel.stream_stream("/cfel.Federation/echo")
                    call = method(iter([content]), timeout=10, compression=how)
                    with pytest.raises(grpc.aio.AioRpcError) as rejection:
                        _ = [piece async for piece in call]
                    code = "OUT_OF_RANGE" if content is later else "INVALID_ARGUMENT"
                    assert rejection.value.code().name == code
                    details.append(rejection.value.details())
        return details

    strange, version, nothing, packed = asyncio.run(play())
    assert "not a message of cfel" in strange
    assert "not a message of cfel" in packed
    assert "protocol version 9" in version
    assert "not the start of a message" in nothing


def test_unknown_expired_and_revoked_certificates_are_rejected(certificates: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    make_authority(stranger)
    issue(stranger, DEVICE, hours=1)
    (stranger / "authority.pem").write_bytes((certificates / "authority.pem").read_bytes())
    late = Identity("device", 8)
    issue(certificates, late, hours=1, now=datetime.now(UTC) - timedelta(hours=2))

    async def play() -> None:
        async with serving(certificates) as (address, _):
            with pytest.raises(UnreachableError):
                await ask(stranger, DEVICE, address)
            with pytest.raises(UnreachableError):
                await ask(certificates, late, address)
            assert (await ask(certificates, OTHER, address)).header == b"device-4 "
            revoke(certificates, OTHER)
            with pytest.raises(RejectedError, match="device-4 was revoked"):
                await ask(certificates, OTHER, address)
            assert (await ask(certificates, DEVICE, address)).header == b"device-3 "

    asyncio.run(play())


def test_plain_text_and_another_server_are_not_spoken_to(certificates: Path) -> None:
    async def play() -> None:
        async with serving(certificates) as (address, _):
            host, port = address.split(":")
            with socket.create_connection((host, int(port)), timeout=5) as plain:
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
                await asyncio.sleep(0.1)
            with pytest.raises(UnreachableError):
                await ask(certificates, DEVICE, address, to=Identity("edge", 1))
            assert (await ask(certificates, DEVICE, address)).header == b"device-3 "

    asyncio.run(play())


def test_keys_are_for_their_owner_only_and_missing_ones_named(certificates: Path) -> None:
    assert (certificates / "device-3.key").stat().st_mode & 0o777 == 0o600
    assert (certificates / "authority.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(DeploymentError, match=r"edge-7\.pem does not exist"):
        Credentials.read(certificates, Identity("edge", 7))


def test_a_revocation_reaches_open_connections_and_a_bad_line_rejects_no_other_node(tmp_path: Path) -> None:
    """Both devices keep their connections; the list gets a bad line besides, which is said once."""
    make_authority(tmp_path)
    for member in (EDGE, DEVICE, OTHER):
        issue(tmp_path, member, hours=1)

    async def play() -> Rejections:
        async with serving(tmp_path) as (address, rejections):
            calls = {
                who: GrpcClient(Credentials.read(tmp_path, who), {EDGE: address}, LIMIT)
                for who in (DEVICE, OTHER)
            }
            for each in calls.values():
                await each.send(EDGE, "echo", Message(), 10)
            revoke(tmp_path, OTHER)
            with (tmp_path / "revoked.txt").open("a") as file:
                file.write("zzz\n")
            with pytest.raises(RejectedError, match="device-4 was revoked"):
                await calls[OTHER].send(EDGE, "echo", Message(), 10)
            for _ in range(3):
                await calls[DEVICE].send(EDGE, "echo", Message(), 10)
            for each in calls.values():
                await each.close()
            return rejections

    assert asyncio.run(play()) == [
        (None, "every call", "revoked.txt, line 2: 'zzz' is not a serial number"),
        (None, "echo", "the certificate of device-4 was revoked"),
    ]


def test_a_certificate_that_names_nobody_is_rejected(tmp_path: Path) -> None:
    """Signed by the authority, but for somebody who is no member."""
    make_authority(tmp_path)
    for member in (EDGE, DEVICE):
        issue(tmp_path, member, hours=1)
    authority = x509.load_pem_x509_certificate((tmp_path / "authority.pem").read_bytes())
    signing = serialization.load_pem_private_key((tmp_path / "authority.key").read_bytes(), None)
    key = serialization.load_pem_private_key((tmp_path / "device-3.key").read_bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    begin = datetime.now(UTC) - timedelta(minutes=1)
    nobody = (
        x509.CertificateBuilder(authority.subject, x509.Name([]), key.public_key(), 7)
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(hours=1))
        .sign(signing, hashes.SHA256())
    )
    (tmp_path / "device-3.pem").write_bytes(nobody.public_bytes(serialization.Encoding.PEM))

    async def play() -> Rejections:
        async with serving(tmp_path) as (address, rejections):
            with pytest.raises(NotAdmittedError, match="names no role and number"):
                await ask(tmp_path, DEVICE, address)
            return rejections

    assert asyncio.run(play()) == [(None, "echo", "the certificate names no role and number")]


@pytest.mark.long
def test_a_silent_connection_is_closed(certificates: Path) -> None:
    """No handshake within 10 s; others are served meanwhile."""

    async def play() -> bytes:
        async with serving(certificates) as (address, _):
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            assert (await ask(certificates, DEVICE, address)).header == b"device-3 "
            async with asyncio.timeout(60):
                left = await reader.read()
            writer.close()
            return left

    assert asyncio.run(play()) == b""


def serial_of_server(certificates: Path, address: str) -> int:
    """The serial number of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=certificates / "authority.pem")
    context.load_cert_chain(certificates / f"{OTHER}.pem", certificates / f"{OTHER}.key")
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=EDGE.host) as secure,
    ):
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def test_renewed_certificates_are_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides; a call that is under way when the client changes its connection is not lost."""
    monkeypatch.setattr(credentials_module, "LOOK_SECONDS", 0.0)
    make_authority(tmp_path)
    for member in (EDGE, DEVICE, OTHER):
        issue(tmp_path, member, hours=1)
    begun, finish = asyncio.Event(), asyncio.Event()

    async def wait(caller: Identity, message: Message) -> Message:
        del caller
        begun.set()
        await finish.wait()
        return message

    async def play() -> None:
        server = GrpcServer(
            CredentialFiles(tmp_path, EDGE),
            [raw_endpoint("echo", ("device",), _echo), raw_endpoint("wait", ("device",), wait)],
            lambda *_: None,
        )
        address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
        client = GrpcClient(CredentialFiles(tmp_path, DEVICE), {EDGE: address}, LIMIT)
        hello = Message(b"hello")
        try:
            await client.send(EDGE, "echo", hello, 10)
            first = await asyncio.to_thread(serial_of_server, tmp_path, address)
            under_way = asyncio.create_task(client.send(EDGE, "wait", hello, 30))
            await begun.wait()
            revoke(tmp_path, DEVICE)
            renewed = issue(tmp_path, EDGE, hours=1)
            issue(tmp_path, DEVICE, hours=1)
            answer = await client.send(EDGE, "echo", hello, 10)
            assert answer.header == f"{DEVICE} hello".encode()
            assert await asyncio.to_thread(serial_of_server, tmp_path, address) == renewed != first
            finish.set()
            assert (await under_way).header == b"hello"
        finally:
            await client.close()
            await server.stop(0)

    asyncio.run(play())


def test_an_expired_caller_may_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its certificate may be renewed at any moment, so expiry ends no device."""
    make_authority(tmp_path)
    for member in (EDGE, DEVICE):
        issue(tmp_path, member, hours=1)

    def find_nobody(_self: object, _certificate: bytes) -> Identity:
        raise ExpiredError("the certificate of device-3 expired")

    monkeypatch.setattr(Authenticator, "identify", find_nobody)

    async def play() -> None:
        async with serving(tmp_path) as (address, rejections):
            with pytest.raises(UnreachableError, match="device-3 expired"):
                await ask(tmp_path, DEVICE, address)
            assert [reason for _, _, reason in rejections] == ["the certificate of device-3 expired"]

    asyncio.run(play())


def test_answers_that_nobody_reads_count_as_in_flight(certificates: Path) -> None:
    """A device that asks for every model and reads none kept all of them in the edge server's memory."""
    megabyte = 1024 * 1024
    model = Message(b"", Body.hash(bytes(16 * megabyte)))

    async def give(caller: Identity, message: Message) -> Message:
        del caller, message
        return model

    async def play() -> None:
        rejections: Rejections = []
        parameters = DeploymentParameters(bytes_in_flight=24 * megabyte)
        methods = [raw_endpoint("model", ("device", "edge"), give)]
        served = Credentials.read(certificates, EDGE)
        server = GrpcServer(served, methods, lambda *each: rejections.append(each), parameters)
        address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
        own = as_they_are(certificates, DEVICE)
        secure = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
        name = (("grpc.ssl_target_name_override", EDGE.host),)
        try:
            async with grpc.aio.secure_channel(address, secure, options=name) as channel:
                ask_model = channel.stream_stream("/cfel.Federation/model")
                unread = ask_model(iter(split_message(Message())))
                await unread.read()  # the first piece: the rest is on its way
                with pytest.raises(grpc.aio.AioRpcError, match="bytes in flight"):
                    [piece async for piece in ask_model(iter(split_message(Message())))]
                others = GrpcClient(as_they_are(certificates, PEER), {EDGE: address}, 16 * megabyte)
                assert len((await others.send(EDGE, "model", Message(), 30)).body) == 16 * megabyte
                await others.close()
                unread.cancel()
        finally:
            await server.stop(0)

    asyncio.run(play())


def test_strangers_leave_descriptors_for_files(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without a handshake used them all up: the edge server could not write its state."""
    monkeypatch.setattr(connections, "most_connections", lambda: 8)

    async def is_closed(stranger: socket.socket) -> bool:
        try:
            # Well below the time that a handshake may take.
            received = asyncio.get_running_loop().sock_recv(stranger, 1)
            return await asyncio.wait_for(received, 4.0) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    async def play() -> None:
        async with serving(certificates) as (address, _):
            calls = GrpcClient(as_they_are(certificates, DEVICE), {EDGE: address}, LIMIT)
            await calls.send(EDGE, "echo", Message(b"first"), 10)
            host, port = address.split(":")
            strangers = [socket.create_connection((host, int(port))) for _ in range(20)]
            for stranger in strangers:
                stranger.setblocking(False)
            assert sum(await asyncio.gather(*map(is_closed, strangers))) >= 12
            assert (await calls.send(EDGE, "echo", Message(b"second"), 10)).header == b"device-3 second"
            await calls.close()
            for stranger in strangers:
                stranger.close()

    asyncio.run(play())
