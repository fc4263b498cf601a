"""Clients that hold connections: they neither lock others out nor use up the node's descriptors."""

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cfel.dashboard import Dashboard, serve, server
from cfel.dashboard.server import MOST_CONNECTIONS, Connections, find_network, most_connections
from cfel.deployment.security.certificates import issue, make_authority
from cfel.deployment.security.identity import Identity
from cfel.status import Status
from tests.dashboard.conftest import ask, served


def now() -> Status:
    return Status(node="x")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 8)


@pytest.fixture
def place(few: None) -> Iterator[str]:
    del few
    with served(lambda: Dashboard(now, 0.05)) as found:
        yield found


def connect(address: str) -> socket.socket:
    place = urlsplit(address)
    return socket.create_connection((place.hostname, place.port), timeout=30)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_closed(held: socket.socket, seconds: float = 10.0) -> bool:
    """Whether the other end closes it within the time."""
    held.settimeout(seconds)
    try:
        return held.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts the entries of /proc/self/fd")
def test_silent_connections_use_few_descriptors_and_lock_nobody_out(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 200 silent connections at most 4 stay open at the server: half of its 8, as all have one client."""
    before = open_descriptors()
    with caplog.at_level(logging.INFO):
        held = [connect(place) for _ in range(200)]
        assert ask(place, "/healthz").code == 200
        deadline = time.monotonic() + 20
        while open_descriptors() - before - len(held) > 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert open_descriptors() - before - len(held) <= 4
        assert ask(place, "/status.json").code == 200
    assert len(caplog.records) < 10
    for each in held:
        each.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: loc", b"POST /login HTTP/1.1\r\n"])
def test_a_connection_without_a_request_is_closed(
    monkeypatch: pytest.MonkeyPatch, place: str, sent: bytes
) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(server, "SWEEP_SECONDS", 0.05)
    held = connect(place)
    held.sendall(sent)
    assert is_closed(held)
    held.close()


def test_dripping_headers_do_not_keep_a_connection_open(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.5)
    held = connect(place)
    held.sendall(b"GET / HTTP/1.1\r\n")
    for _ in range(100):
        try:
            held.sendall(b"x: y\r\n")
        except OSError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the connection is still open")
    held.close()


def test_a_request_in_progress_is_not_replaced(place: str) -> None:
    """Event streams are in use: with as many as allowed for one client, a further connection is closed."""
    streams = [connect(place) for _ in range(4)]
    for each in streams:
        each.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert each.recv(15) == b"HTTP/1.1 200 OK"
    further = connect(place)
    assert is_closed(further)
    further.close()
    for each in streams:
        each.close()


def test_handshakes_that_never_end(monkeypatch: pytest.MonkeyPatch, few: None, tmp_path: Path) -> None:
    """A connection counts before its TLS handshake, too."""
    del few
    make_authority(tmp_path)
    issue(tmp_path, Identity("edge", 0), 1, ("127.0.0.1",))
    trust = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))

    async def play() -> bytes:
        certificate, key = tmp_path / "edge-0.pem", tmp_path / "edge-0.key"
        async with serve(Dashboard(now, 1.0), certificate=certificate, key=key) as address:
            port = urlsplit(address).port
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            assert await asyncio.wait_for(held[0][0].read(), 10) == b""
            for _, each in held:
                each.close()
            writer.close()
            return answer

    monkeypatch.setattr(server, "IDLE_SECONDS", 5.0)
    assert asyncio.run(asyncio.wait_for(play(), 60)).startswith(b"HTTP/1.1 200")


def test_without_descriptors_it_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failed attempt is followed by a pause, where asyncio's own server makes thousands at once."""
    monkeypatch.setattr(server, "EXHAUSTED_SECONDS", 0.05)

    async def play() -> int:
        calls = 0

        async def reject(_: socket.socket) -> tuple[socket.socket, object]:
            nonlocal calls
            calls += 1
            raise OSError(errno.EMFILE, "Too many open files")

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "sock_accept", reject)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            task = asyncio.create_task(Connections(listener, asyncio.Protocol, None, 8).run())
            await asyncio.sleep(0.3)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return calls

    with caplog.at_level(logging.WARNING):
        calls = asyncio.run(play())
    assert 1 < calls < 10
    assert "accepts no connection: Too many open files" in caplog.text


def test_the_limit_follows_the_descriptors_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    for soft, expected in ((1024, MOST_CONNECTIONS), (256, 32), (8, 2), (resource.RLIM_INFINITY, 128)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert most_connections() == expected


def test_clients() -> None:
    assert find_network("192.0.2.7") == "192.0.2.7"
    assert find_network("2001:db8::1") == find_network("2001:db8::ffff:1") == "2001:db8::/64"
    assert find_network("2001:db8:0:1::1") != find_network("2001:db8::1")
    assert find_network("fe80::1%eth0") == "fe80::/64"
    assert find_network("pipe") == "pipe"
