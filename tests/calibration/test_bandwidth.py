"""The bandwidth between two hosts, over loopback, and peers that are not what they should be."""

import socket
import threading
from collections.abc import Iterator

import pytest

from cfel.calibration import GREETING, BandwidthServer, measure_bandwidth
from cfel.errors import UnreachableError


@pytest.fixture
def server() -> Iterator[BandwidthServer]:
    with BandwidthServer("127.0.0.1", 0) as opened:
        yield opened


def serve(server: BandwidthServer) -> tuple[threading.Thread, list[tuple[str, int]]]:
    served: list[tuple[str, int]] = []
    thread = threading.Thread(target=lambda: served.append(server.serve_one()), daemon=True)
    thread.start()
    return thread, served


def test_both_sides_count_the_same_bytes(server: BandwidthServer) -> None:
    thread, served = serve(server)
    rate = measure_bandwidth("127.0.0.1", server.port, 0.05)
    thread.join(30)
    ((peer, received),) = served
    assert peer == "127.0.0.1"
    # At least the 0.05 s were needed for these bytes.
    assert 0 < rate <= 8 * received / 0.05


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n", GREETING[:5]])
def test_strangers_get_no_answer(server: BandwidthServer, sent: bytes) -> None:
    thread, served = serve(server)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as stranger:
        stranger.sendall(sent)
        try:
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
        except OSError:
            # Bytes that the server did not read make the system reset the connection, perhaps at once.
            assert sent
    thread.join(30)
    assert served == [("127.0.0.1", 0)]


def test_another_server_is_recognised() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                while connection.recv(1 << 20):
                    pass
                connection.sendall(b"220 ")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(UnreachableError, match="cfel calibrate --listen"):
            measure_bandwidth("127.0.0.1", other.getsockname()[1], 0.01)
        thread.join(30)


def test_nobody_there(server: BandwidthServer) -> None:
    port = server.port
    with pytest.raises(UnreachableError, match=f"cannot listen on 127.0.0.1:{port}"):
        BandwidthServer("127.0.0.1", port)
    server.__exit__(None, None, None)
    with pytest.raises(UnreachableError, match=f"^127.0.0.1:{port}: "):
        measure_bandwidth("127.0.0.1", port, 0.01)
