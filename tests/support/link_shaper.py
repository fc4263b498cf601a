"""A slow link on one machine: a TCP relay with a rate, a delay and stalls.

The kernel's `netem` is not everywhere, and needs root. A relay needs neither: a device that is given the
relay's address reaches its edge server through it, TLS included. Each direction has its own rate, which all
connections share, and a queue as short as a real modem's, so that a sender feels the link as back-pressure.

It shapes bytes of a TCP stream, not packets: a lost packet shows up as what TCP makes of it, a stall.
"""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

_CHUNK_BYTES = 1400
# What a link holds in flight beyond its delay; a real modem buffers about this much.
_QUEUE_SECONDS = 0.4
# The kernel would otherwise buffer megabytes in front of the link, which no sender could feel.
_SOCKET_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Link:
    """What a link does to bytes, in each direction.

    Attributes:
        bits_per_second: rate, for all connections together.
        delay_seconds: one way; half of the round-trip time.
        stall_probability: that a chunk of 1,400 bytes is held up, as after a lost packet.
        stall_seconds: for how long, and everything behind it too.
    """

    bits_per_second: float
    delay_seconds: float = 0.0
    stall_probability: float = 0.0
    stall_seconds: float = 0.0


class Relay:
    """A link under way.

    Attributes:
        port: where it accepts connections.
        carried_bytes: what it has carried, in both directions together.
    """

    def __init__(self, link: Link, target: tuple[str, int], seed: int) -> None:
        self._target = target
        chance = random.Random(seed)  # noqa: S311 — a link needs repeatable chance, not a secret
        self._up, self._down = _Direction(link, chance), _Direction(link, chance)
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def carried_bytes(self) -> int:
        """What the link has carried, in both directions together."""
        return self._up.carried_bytes + self._down.carried_bytes

    def break_connections(self) -> None:
        """Ends all connections at once; new ones may be made."""
        for connection in list(self._connections):
            connection.cancel()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relays one connection until either side ends it."""
        connection = asyncio.current_task()
        if connection is not None:
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=2 * _CHUNK_BYTES)
        except OSError:
            writer.close()
            return
        for each in (writer, far_writer):
            _keep_buffers_small(each)
        up, down = self._up.carry(reader, far_writer), self._down.carry(far_reader, writer)
        with suppress(asyncio.CancelledError):
            await asyncio.gather(up, down)
        for each in (writer, far_writer):
            each.transport.abort()

    async def close(self) -> None:
        """Ends all connections, and waits for them."""
        self.break_connections()
        await asyncio.gather(*self._connections, return_exceptions=True)


@asynccontextmanager
async def shape(
    link: Link, target_host: str, target_port: int, seed: int = 0, host: str = "127.0.0.1"
) -> AsyncIterator[Relay]:
    """Relays connections to a server over the link, until the context ends.

    Args:
        link: what happens to the bytes.
        target_host: the server's.
        target_port: the server's.
        seed: of chance.
        host: where the relay listens.
    """
    relay = Relay(link, (target_host, target_port), seed)
    server = await asyncio.start_server(relay.accept, host, 0, limit=2 * _CHUNK_BYTES)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await relay.close()


class _Direction:
    """One direction of a link: chunks leave in order, each when the link has carried it."""

    def __init__(self, link: Link, chance: random.Random) -> None:
        self._link, self._chance = link, chance
        self._free_at = 0.0
        self.carried_bytes = 0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries one connection's bytes."""
        link, loop = self._link, asyncio.get_running_loop()
        room = max(2, int(link.bits_per_second * (_QUEUE_SECONDS + link.delay_seconds) / 8 / _CHUNK_BYTES))
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(room)

        async def fill() -> None:
            while chunk := await _read(reader):
                await queue.put((self._reserve(len(chunk)), chunk))
            await queue.put((max(self._free_at, loop.time()) + link.delay_seconds, b""))

        async def drain() -> None:
            while True:
                due, chunk = await queue.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not chunk:
                    break
                writer.write(chunk)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()

        # Either side may close at any time; that includes a socket that is not connected any more.
        with suppress(OSError):
            await asyncio.gather(fill(), drain())

    def _reserve(self, size: int) -> float:
        """Reserves the link for a chunk; returns when the chunk is out of it."""
        link, now = self._link, asyncio.get_running_loop().time()
        stall = link.stall_seconds if self._chance.random() < link.stall_probability else 0.0
        self._free_at = max(self._free_at, now) + size * 8 / link.bits_per_second + stall
        self.carried_bytes += size
        return self._free_at + link.delay_seconds


def _keep_buffers_small(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_CHUNK_BYTES)
    except ConnectionError:
        return b""
