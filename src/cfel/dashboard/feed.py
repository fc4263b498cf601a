"""The feed: one newest snapshot for any number of readers, and the stream of server-sent events made of it.

Readers that are slow miss snapshots, never delay others and never pile any up: there is one encoded document,
shared by all, and a reader that comes back takes the newest. Nothing is encoded while nobody looks.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cfel.status import Status

LEAST_SECONDS = 0.2
"""Between two events to the same reader; whatever happens in between is one event."""
HEARTBEAT_SECONDS = 10.0
PATIENCE_SECONDS = 30.0
"""How long a reader may take for one event before it is dropped."""

_LOG = logging.getLogger("cfel.dashboard")


class Feed:
    """The newest snapshot and who waits for the next one.

    Args:
        snapshot: gives the state now; called on the event loop, so it must not block.
        changes: yields whenever there is something new; or the seconds between two looks.
    """

    def __init__(self, snapshot: Callable[[], Status], changes: AsyncIterator[object] | float) -> None:
        self._snapshot = snapshot
        self._changes = changes
        self._version = 0
        self._encoded: tuple[int, bytes] = (-1, b"")
        self._news = asyncio.Event()
        self.readers = 0
        self.closed = False

    async def run(self) -> None:
        """Counts changes until cancelled, or until there are no more; a failure ends every stream."""
        try:
            async for _ in self._ticks():
                self._version += 1
                self._wake()
        except Exception:
            _LOG.exception("the dashboard's feed failed")
            self.close()
            raise

    async def _ticks(self) -> AsyncIterator[object]:
        if isinstance(self._changes, AsyncIterator):
            async for change in self._changes:
                yield change
            return
        last = None
        while True:
            now = self._snapshot()
            if now != last:
                last = now
                yield now
            await asyncio.sleep(self._changes)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def close(self) -> None:
        """Ends every stream; may be called twice."""
        self.closed = True
        self._wake()

    def now(self) -> Status:
        """The state at this moment."""
        return self._snapshot()

    def document(self) -> bytes:
        """The newest snapshot as JSON, encoded once for all readers."""
        version, encoded = self._encoded
        if version != self._version:
            encoded = self._snapshot().to_json()
            self._encoded = (self._version, encoded)
        return encoded

    async def documents(self) -> AsyncIterator[bytes | None]:
        """The newest document at once, then the newest after every change; None is a sign of life.

        A reader that takes long between two of them finds the newest only.
        """
        seen = -1
        while not self.closed:
            if seen != self._version:
                seen = self._version
                yield self.document()
                await asyncio.sleep(LEAST_SECONDS)
            elif not await self._heard():
                yield None

    async def _heard(self) -> bool:
        """Waits for news, or for the next heartbeat: then it is False."""
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                return await self._news.wait()
        except TimeoutError:
            return False


class EventStream(Response):
    """The feed as server-sent events, to one reader, until either side ends it.

    Args:
        feed: where snapshots come from.
    """

    def __init__(self, feed: Feed) -> None:
        super().__init__(media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams."""
        del scope
        self._feed.readers += 1
        writer = asyncio.create_task(self._write(send))
        watcher = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((writer, watcher), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._feed.readers -= 1
            for task in (writer, watcher):
                task.cancel()
            results = await asyncio.gather(writer, watcher, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, TimeoutError | OSError):
                raise result

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for document in self._feed.documents():
            event = b": alive\n\n" if document is None else b"data: " + document + b"\n\n"
            async with asyncio.timeout(PATIENCE_SECONDS):
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
