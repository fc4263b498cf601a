"""Starting and stopping: inside somebody else's event loop, on loopback or with a token."""

import asyncio
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from cfel.dashboard import Dashboard, serve
from cfel.errors import DashboardError, InputError
from cfel.status import Status
from tests.dashboard.conftest import ask

TOKEN = "correct-horse-battery-staple"  # noqa: S105 — a made-up one
OPENSSL = shutil.which("openssl")


def now() -> Status:
    return Status(node="x")


async def enter(host: str, port: int = 0, token: str | None = None, **more: Path) -> str:
    async with serve(Dashboard(now, 1.0, token), host, port, **more) as address:
        return address


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])  # noqa: S104 — rejected
def test_beyond_loopback_a_token_is_needed(host: str) -> None:
    with pytest.raises(InputError, match="needs a token"):
        asyncio.run(enter(host))


def test_addresses() -> None:
    assert asyncio.run(enter("127.0.0.1")).startswith("http://127.0.0.1:")
    assert asyncio.run(enter("localhost")).startswith("http://")
    assert asyncio.run(enter("0.0.0.0", token=TOKEN)).startswith("http://0.0.0.0:")  # noqa: S104
    if socket.has_ipv6:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            return
        assert asyncio.run(enter("::1")).startswith("http://[::1]:")


def test_what_cannot_be_listened_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DashboardError, match=f"127.0.0.1 port {port}: .*in use"):
            asyncio.run(enter("127.0.0.1", port))
    with pytest.raises(DashboardError, match=r"'no\.such\.host\.invalid'"):
        asyncio.run(enter("no.such.host.invalid"))
    with pytest.raises(InputError, match="port 70000 is not from 0 to 65535"):
        asyncio.run(enter("127.0.0.1", 70_000))


def test_certificates_go_in_pairs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="certificate and key go together"):
        asyncio.run(enter("127.0.0.1", certificate=tmp_path / "c.pem"))
    with pytest.raises(DashboardError, match=r"cannot use .*c\.pem"):
        asyncio.run(enter("127.0.0.1", certificate=tmp_path / "c.pem", key=tmp_path / "k.pem"))


def test_it_stops_with_a_reader_hanging_on() -> None:
    """The loop continues, signals are nobody's but ours, and the port is free again."""

    async def play() -> tuple[bytes, int]:
        before = signal.getsignal(signal.SIGINT)
        async with serve(Dashboard(now, 0.05)) as address:
            assert signal.getsignal(signal.SIGINT) is before
            port = int(address.rstrip("/").rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"data: ")
        rest = await reader.read()
        writer.close()
        return rest, port

    rest, port = asyncio.run(asyncio.wait_for(play(), 60))
    assert rest.endswith(b"0\r\n\r\n")
    socket.create_server(("127.0.0.1", port)).close()


FORM = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
CHUNKED = b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b"GET /status.json" + CHUNKED + b"-1\r\n", b""),
        (b"POST /login" + CHUNKED + b"-1\r\n", b""),
        (b"GET /events" + CHUNKED, b"-1\r\n"),
        (FORM + b"\r\ntok", b""),
        (FORM + b"Expect: 100-continue\r\n\r\n", b""),
    ],
    ids=["invalid body", "invalid form", "invalid body of a stream", "form cut short", "no form"],
)
def test_a_broken_request_is_no_fault_of_the_dashboard(
    caplog: pytest.LogCaptureFixture, first: bytes, second: bytes
) -> None:
    """A stranger can send any number of them, and each would leave a trace in the log."""

    async def play() -> str:
        async with serve(Dashboard(now, 0.05)) as address:
            port = int(address.rstrip("/").rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(first)
            if second:
                await reader.readuntil(b"data: ")
                writer.write(second)
            if first.endswith(b"-1\r\n") or second:
                await asyncio.wait_for(reader.read(), 30)
            else:
                # A second request shows that the first one was begun.
                await asyncio.to_thread(ask, address, "/healthz")
            writer.transport.abort()
            return (await asyncio.to_thread(ask, address, "/healthz")).text

    assert asyncio.run(play()) == "ok\n"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_an_error_inside_the_block_gets_out() -> None:
    async def play() -> None:
        async with serve(Dashboard(now, 1.0)):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(asyncio.wait_for(play(), 60))


def test_requests_run_in_the_callers_loop() -> None:
    async def play() -> tuple[int, bool]:
        loops = set()

        def here() -> Status:
            loops.add(asyncio.get_running_loop())
            return now()

        async with serve(Dashboard(here, 60.0)) as address:
            answer = await asyncio.to_thread(ask, address, "/status.json")
        return answer.code, loops == {asyncio.get_running_loop()}

    assert asyncio.run(play()) == (200, True)


@pytest.mark.skipif(OPENSSL is None, reason="needs openssl to make a certificate")
def test_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate))
    subprocess.run([str(OPENSSL), *make.split(), *names], check=True, capture_output=True)
    trust = ssl.create_default_context(cafile=str(certificate))

    async def play() -> str:
        app = Dashboard(now, 1.0, TOKEN)
        async with serve(app, certificate=certificate, key=key) as address:
            assert address.startswith("https://127.0.0.1:")
            body = f"token={TOKEN}".encode()
            request = urllib.request.Request(address + "login", body)  # noqa: S310 — its own
            opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trust), NoRedirect())
            answer = await asyncio.to_thread(opener.open, request, timeout=30)
            with answer:
                return str(answer.headers["set-cookie"])

    assert "Secure" in asyncio.run(play())


class NoRedirect(urllib.request.HTTPErrorProcessor):
    """Takes every answer as it is."""

    def http_response(self, request: urllib.request.Request, response: object) -> object:
        """The answer itself."""
        del request
        return response

    https_response = http_response


def test_an_edge_server_does_not_load_what_only_reports_need() -> None:
    """Matplotlib alone would add some 30 MiB to every edge server."""
    code = "import sys, cfel.dashboard; sys.exit(bool({'matplotlib', 'torch'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
