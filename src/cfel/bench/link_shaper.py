"""A slow link on one machine: a TCP relay with a rate, a delay and stalls. For measurements and tests only.

The kernel's `netem` is not everywhere, and needs root. A relay needs neither: a device that is given the
relay's address reaches its edge server through it, TLS included. Each direction has its own rate, and a
queue as short as a real modem's, so that a sender feels the link as back-pressure.

It shapes bytes of a TCP stream, not packets: a lost packet shows up as what TCP makes of it, a stall.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

_CHUNK_BYTES = 1400
# What a link holds in flight beyond its delay; a real modem buffers about this much.
_QUEUE_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class Link:
    """What a link does to bytes, in each direction.

    Attributes:
        bits_per_second: rate.
        delay_seconds: one way; half of the round-trip time.
        stall_probability: that a chunk of 1,400 bytes is held up, as after a lost packet.
        stall_seconds: for how long, and everything behind it too.
    """

    bits_per_second: float
    delay_seconds: float = 0.0
    stall_probability: float = 0.0
    stall_seconds: float = 0.0


@asynccontextmanager
async def shape(link: Link, target_host: str, target_port: int, seed: int = 0) -> AsyncIterator[int]:
    """Relays connections to a server over the link, until the context ends; yields the relay's port."""
    chance = random.Random(seed)  # noqa: S311 — a link needs repeatable chance, not a secret
    relays: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.current_task()
        if relay is not None:
            relays.add(relay)
            relay.add_done_callback(relays.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection(target_host, target_port)
        except OSError:
            writer.close()
            return
        up = _relay(link, reader, far_writer, chance)
        down = _relay(link, far_reader, writer, chance)
        with suppress(asyncio.CancelledError):
            await asyncio.gather(up, down)
        for each in (writer, far_writer):
            each.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=_CHUNK_BYTES * 2)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for relay in list(relays):
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)


async def _relay(
    link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chance: random.Random
) -> None:
    """One direction: chunks leave in order, each when the link has carried it."""
    loop = asyncio.get_running_loop()
    room = max(2, int(link.bits_per_second * (_QUEUE_SECONDS + link.delay_seconds) / 8 / _CHUNK_BYTES))
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(room)

    async def fill() -> None:
        free_at = loop.time()
        while chunk := await _read(reader):
            stall = link.stall_seconds if chance.random() < link.stall_probability else 0.0
            free_at = max(free_at, loop.time()) + len(chunk) * 8 / link.bits_per_second + stall
            await queue.put((free_at + link.delay_seconds, chunk))
        await queue.put((free_at + link.delay_seconds, b""))

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

    with suppress(ConnectionError):
        await asyncio.gather(fill(), drain())


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_CHUNK_BYTES)
    except ConnectionError:
        return b""
