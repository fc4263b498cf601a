"""A shaped link carries every byte in order, no faster than it should, and with its delay."""

import asyncio
import time

from tests.support.link_shaper import Link, shape


async def carry(link: Link, content: bytes) -> tuple[bytes, float]:
    """Sends content over the link to a server that echoes it when all of it is there; and the seconds."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(content)))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, shape(link, "127.0.0.1", server.sockets[0].getsockname()[1]) as relay:
        begin = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(content)
        await writer.drain()
        answer = await reader.read(-1)
        writer.close()
        return answer, time.monotonic() - begin


def test_every_byte_arrives_at_the_rate_of_the_link() -> None:
    """20,000 bytes each way at 800 kbit/s take 0.2 s each way, and 0.1 s of delay each way."""
    content = bytes(range(250)) * 80
    answer, seconds = asyncio.run(carry(Link(800_000, delay_seconds=0.1), content))
    assert answer == content
    assert seconds >= 0.6


def test_a_stall_holds_up_everything_behind_it() -> None:
    content = b"x" * 3000
    answer, seconds = asyncio.run(carry(Link(1e8, stall_probability=1.0, stall_seconds=0.1), content))
    assert answer == content
    assert seconds >= 0.6  # three chunks each way


def test_all_connections_share_the_rate() -> None:
    """Two connections of 10,000 bytes each way at 800 kbit/s take as long as one of 20,000."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(10_000))
        await writer.drain()
        writer.close()

    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * 10_000)
        answer = await reader.read(-1)
        writer.close()
        return answer

    async def play() -> float:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, shape(Link(800_000), "127.0.0.1", port) as relay:
            begin = time.monotonic()
            answers = await asyncio.gather(ask(relay.port), ask(relay.port))
            assert [len(answer) for answer in answers] == [10_000, 10_000]
            assert relay.carried_bytes == 40_000
            return time.monotonic() - begin

    assert asyncio.run(play()) >= 0.3
