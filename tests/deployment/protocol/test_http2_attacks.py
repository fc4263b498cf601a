"""Frames that no gRPC client sends, from a device with a valid certificate: the server keeps serving."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from cfel.deployment.protocol.grpc_transport import GrpcClient, GrpcServer
from cfel.deployment.protocol.messages import Message
from cfel.deployment.security.certificates import issue, make_authority
from cfel.deployment.security.credentials import Credentials
from cfel.deployment.security.identity import Identity
from tests.support.raw_endpoint import raw_endpoint

pytestmark = pytest.mark.long

EDGE, DEVICE = Identity("edge", 0), Identity("device", 3)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name: str, value: str, *, indexed: bool = False) -> bytes:
    """A header field as HPACK writes it, without Huffman's code; both shorter than 127 bytes."""
    first = b"\x40" if indexed else b"\x00"
    return first + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


CALL = b"".join(
    literal(name, value)
    for name, value in (
        (":method", "POST"),
        (":scheme", "https"),
        (":path", "/cfel.Federation/echo"),
        (":authority", "edge-0.cfel"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
)
STREAMS = range(1, 601, 2)
ATTACKS: dict[str, bytes] = {
    "no preface at all": b"",
    "data without a call": frame(DATA, 0, 1, b"x") + frame(CONTINUATION, END_HEADERS, 1),
    "resets": b"".join(
        frame(HEADERS, END_HEADERS, each, CALL) + frame(RESET, 0, each, b"\0\0\0\x08") for each in STREAMS
    ),
    "resets by the server": b"".join(
        frame(HEADERS, END_HEADERS, each, CALL) + frame(WINDOW, 0, each, bytes(4)) for each in STREAMS
    ),
    "more calls than allowed": b"".join(frame(HEADERS, END_HEADERS, each, CALL) for each in STREAMS),
    "settings": frame(SETTINGS, 0, 0, b"\0\3\0\0\0\x64") * 2000,
    "pings": frame(PING, 0, 0, b"12345678") * 2000,
    "headers without end": frame(HEADERS, 0, 1, CALL)
    + frame(CONTINUATION, 0, 1, literal("a", "b") * 100) * 200,
    "references to one header": b"".join(
        frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            each,
            CALL + literal("a", "b", indexed=True) + b"\xbe" * 2000,
        )
        for each in range(1, 41, 2)
    ),
    "a reference to nothing": frame(HEADERS, END_HEADERS, 1, b"\xff" * 9000),
    "a message of 4 GiB": frame(HEADERS, END_HEADERS, 1, CALL) + frame(DATA, 0, 1, b"\0\xff\xff\xff\xffx"),
    "empty data": frame(HEADERS, END_HEADERS, 1, CALL) + frame(DATA, 0, 1) * 2000,
    "unknown kinds": b"".join(frame(kind, 255, 7, bytes(20)) for kind in range(10, 256)),
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_authority(directory)
    for member in (EDGE, DEVICE):
        issue(directory, member, hours=1)
    return directory


def attack(certificates: Path, port: int, content: bytes) -> None:
    """Sends the frames, and reads what comes back until it ends or nothing has come for a moment."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(certificates / f"{DEVICE}.pem", certificates / f"{DEVICE}.key")
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.settimeout(0.3)
        try:
            connection.sendall(PREFACE + frame(SETTINGS) + content if content else b"GET / HTTP/1.1\r\n\r\n")
            while connection.recv(65536):
                pass
        except OSError:
            return  # closed by the server, or silent


def test_others_are_served_whatever_a_device_sends(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def echo(caller: Identity, message: Message) -> Message:
        return Message(f"{caller}".encode() + message.header)

    async def play() -> list[bytes]:
        server = GrpcServer(
            Credentials.read(certificates, EDGE), [raw_endpoint("echo", ("device",), echo)], lambda *_: None
        )
        port = await server.start("127.0.0.1:0")
        client = GrpcClient(Credentials.read(certificates, DEVICE), {EDGE: f"127.0.0.1:{port}"}, 0)
        answers = []
        for content in ATTACKS.values():
            await asyncio.to_thread(attack, certificates, port, content)
            answers.append((await client.send(EDGE, "echo", Message(b" works"), 60)).header)
        await client.close()
        await server.stop(0)
        return answers

    assert asyncio.run(play()) == [b"device-3 works"] * len(ATTACKS)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
