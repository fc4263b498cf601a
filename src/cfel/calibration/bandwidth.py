"""How fast this machine sends to another one: a plain TCP stream against a small server of our own.

The server discards what it receives and answers with the number of bytes. It knows no peers: anybody who can
reach it can fill its link for as long as it runs. Nothing else of cfel uses it.
"""

import socket
import struct
import time
from types import TracebackType
from typing import Self

from cfel.errors import UnreachableError, describe_error

GREETING = b"cfel bandwidth 1\n"
MAX_SECONDS = 60.0
"""A server gives one client at most this long."""
_BLOCK = 64 * 1024
# A larger buffer would take long to drain over a slow link.
_SEND_BUFFER = 256 * 1024
_ANSWER = struct.Struct("!Q")


class BandwidthServer:
    """Receives streams, one client at a time, until it is closed.

    Args:
        host: address to listen on.
        port: 0 for any free one.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            self._socket = socket.create_server((host, port), backlog=4)
        except OSError as error:
            raise UnreachableError(f"cannot listen on {host}:{port}: {describe_error(error)}") from error

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    def serve_one(self) -> tuple[str, int]:
        """Serves the next client.

        Returns:
            Its address and the number of bytes it sent; 0 if it was not a client of ours or went away.
        """
        connection, address = self._socket.accept()
        with connection:
            try:
                received = _receive_stream(connection)
            except OSError:
                # It went away or was too slow; the next one may do better.
                received = 0
        return str(address[0]), received

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


def _receive_stream(connection: socket.socket) -> int:
    deadline = time.monotonic() + MAX_SECONDS
    connection.settimeout(MAX_SECONDS)
    if _receive_exactly(connection, len(GREETING)) != GREETING:
        return 0
    received, space = 0, bytearray(_BLOCK)
    while time.monotonic() < deadline:
        size = connection.recv_into(space)
        if size == 0:
            connection.sendall(_ANSWER.pack(received))
            return received
        received += size
    return 0


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    """That many bytes, or fewer if the stream ends before."""
    parts = b""
    while len(parts) < size and (part := connection.recv(size - len(parts))):
        parts += part
    return parts


def measure_bandwidth(host: str, port: int, seconds: float) -> float:
    """Sends for some seconds and returns the bits per second that arrived.

    Args:
        host: where `cfel calibrate --listen` runs.
        port: its port.
        seconds: how long to send; what is in the buffers then still has to arrive.

    Raises:
        UnreachableError: nobody answers there, or not as our server does.
    """
    place = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), timeout=10) as connection:
            connection.settimeout(MAX_SECONDS - seconds / 2)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            connection.sendall(GREETING)
            begin, block = time.monotonic(), bytes(_BLOCK)
            while time.monotonic() - begin < seconds:
                connection.sendall(block)
            connection.shutdown(socket.SHUT_WR)
            answer = _receive_exactly(connection, _ANSWER.size)
            passed = time.monotonic() - begin
    except OSError as error:
        raise UnreachableError(f"{place}: cannot measure the bandwidth: {describe_error(error)}") from error
    if len(answer) != _ANSWER.size or not (received := _ANSWER.unpack(answer)[0]):
        raise UnreachableError(f"{place}: does not answer as `cfel calibrate --listen` does")
    return float(8 * received / passed)
