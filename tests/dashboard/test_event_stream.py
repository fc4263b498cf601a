"""The feed without a network: the newest wins, nothing piles up, failures are seen."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import pytest

from cfel.dashboard import app
from cfel.dashboard.app import EventStream, SnapshotFeed
from cfel.status import Status

Message = MutableMapping[str, Any]


class Counted:
    """A state that counts how often it was asked for."""

    def __init__(self) -> None:
        self.round = 0
        self.asked = 0

    def __call__(self) -> Status:
        """The state now."""
        self.asked += 1
        return Status(node="x", round=self.round)


class Queue:
    """Changes on demand."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[int] = asyncio.Queue()

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        return await self._queue.get()

    async def tell(self) -> None:
        """One change, and time for the feed to notice."""
        self._queue.put_nowait(0)
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "LEAST_SECONDS", 0.0)


def rounds(sent: list[Message]) -> list[int]:
    bodies = [message.get("body", b"") for message in sent]
    return [json.loads(body[6:])["round"] for body in bodies if body.startswith(b"data: ")]


async def forever() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_slow_reader_gets_the_newest_only() -> None:
    """While the first event is stuck, rounds 1 to 50 pass; then comes 50 and nothing in between."""

    async def play() -> tuple[list[int], int]:
        state, changes, sent, free = Counted(), Queue(), list[Message](), asyncio.Event()
        feed = SnapshotFeed(state, changes)

        async def slow(message: Message) -> None:
            sent.append(message)
            if message["type"] == "http.response.body":
                await free.wait()

        tasks = [
            asyncio.create_task(feed.run()),
            asyncio.create_task(EventStream(feed)({}, forever, slow)),
        ]
        await asyncio.sleep(0.05)
        for number in range(1, 51):
            state.round = number
            await changes.tell()
        asked = state.asked
        free.set()
        await asyncio.sleep(0.05)
        feed.close()
        await tasks[1]
        tasks[0].cancel()
        return rounds(sent), asked

    assert asyncio.run(play()) == ([0, 50], 1)


def test_one_document_for_allreaders() -> None:
    async def play() -> tuple[int, list[list[int]]]:
        state, changes = Counted(), Queue()
        feed = SnapshotFeed(state, changes)
        boxes: list[list[Message]] = [[] for _ in range(10)]

        def into(box: list[Message]) -> Any:
            async def send(message: Message) -> None:
                box.append(message)

            return send

        pump = asyncio.create_task(feed.run())
        readers = [asyncio.create_task(EventStream(feed)({}, forever, into(box))) for box in boxes]
        await asyncio.sleep(0.05)
        state.round = 1
        await changes.tell()
        await asyncio.sleep(0.05)
        assert len(feed.readers) == 10
        feed.close()
        await asyncio.gather(*readers)
        pump.cancel()
        assert len(feed.readers) == 0
        return state.asked, [rounds(box) for box in boxes]

    assert asyncio.run(play()) == (2, [[0, 1]] * 10)


def test_a_frozen_reader_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "SEND_TIMEOUT_SECONDS", 0.05)

    async def play() -> int:
        feed = SnapshotFeed(Counted(), Queue())

        async def frozen(message: Message) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        async with asyncio.timeout(20):
            await EventStream(feed)({}, forever, frozen)
        return len(feed.readers)

    assert asyncio.run(play()) == 0


def test_a_reader_that_leaves_ends_its_stream() -> None:
    async def play() -> int:
        feed = SnapshotFeed(Counted(), Queue())

        async def gone() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            del message

        async with asyncio.timeout(20):
            await EventStream(feed)({}, gone, send)
        return len(feed.readers)

    assert asyncio.run(play()) == 0


def test_a_sign_of_life_when_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "HEARTBEAT_SECONDS", 0.01)

    async def play() -> list[bytes | None]:
        documents = SnapshotFeed(Counted(), Queue()).documents()
        return [await anext(documents) for _ in range(3)]

    first, *others = asyncio.run(play())
    assert first is not None
    assert others == [None, None]


def test_polling_reports_only_changes() -> None:
    async def play() -> list[int]:
        state = Counted()
        feed = SnapshotFeed(state, 0.01)
        found = list[int]()

        async def send(message: Message) -> None:
            found.extend(rounds([message]))

        pump = asyncio.create_task(feed.run())
        reader = asyncio.create_task(EventStream(feed)({}, forever, send))
        for number in (0, 1, 1, 2):
            state.round = number
            await asyncio.sleep(0.1)
        feed.close()
        await reader
        pump.cancel()
        return found

    found = asyncio.run(play())
    assert sorted(set(found)) == [0, 1, 2]
    assert len(found) <= 4


def test_a_snapshot_that_fails_is_logged_and_ends_the_streams(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Status:
        raise ZeroDivisionError("the state is broken")

    async def play() -> bool:
        feed = SnapshotFeed(broken, 0.01)
        task = asyncio.create_task(feed.run())
        await asyncio.wait([task])
        assert isinstance(task.exception(), ZeroDivisionError)
        return feed.closed

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(play())
    assert "the state is broken" in caplog.text
