"""Snapshots of an invented federation, and the dashboard on a port of its own."""

import asyncio
import http.client
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from cfel.dashboard import Dashboard, serve
from cfel.status import ClusterStatus, DeviceStatus, ElectionEvent, LinkStatus, RoundPoint, Status

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
STATES = ("done", "training", "done", "uploading", "done", "done", "late", "absent")


def device(number: int, done: int) -> DeviceStatus:
    """Slower with its number; what it is asked for moves with the round."""
    state = STATES[(number + done) % len(STATES)]
    name = EVIL if number == 3 else f"cam-{number:02d}"
    if state == "absent":
        return DeviceStatus(device=number, name=name, state="absent")
    wave = 0.5 + 0.45 * math.sin(number + 0.3 * done)
    slow = 1 + number % 7
    return DeviceStatus(
        device=number,
        name=name,
        state=state,
        rho=wave,
        theta=1 - 0.8 * wave,
        mu=0.4 * slow,
        nu=6.0 * slow,
        seconds=11.0 * slow * wave,
        joules=4.0 * slow * wave,
    )


def federation(done: int = 12, clusters: int = 8, each: int = 8, rounds: int = 40) -> Status:
    """`done` rounds of a ring of edge servers whose coordinator was lost and replaced."""
    return Status(
        node="edge-0",
        name="harbour cameras",
        scheme="hcef",
        unix_seconds=1_790_000_000.0 + 30 * done,
        phase="training" if done < rounds else "finished",
        round=min(done + 1, rounds),
        rounds=rounds,
        edge_round=1 + done % 5,
        edge_rounds=5,
        term=4,
        coordinator=f"edge-{3 % clusters}",
        conditions="measured",
        seconds=610.0 * done,
        seconds_budget=27_000.0,
        joules=790.0 * done,
        joules_budget=28_000.0,
        target=0.7,
        straggler=6,
        slowest_cluster=0,
        clusters=tuple(
            ClusterStatus(
                cluster=number,
                node=f"edge-{number}",
                state="lost" if number == 5 else "alive",
                size=each,
                devices=tuple(device(number * each + place, done) for place in range(each)),
                rho_mean=0.5,
                theta_mean=0.6,
            )
            for number in range(clusters)
        ),
        links=tuple(
            LinkStatus(a=number, b=(number + 1) % clusters, weight=1 / 3, up=5 not in (number, number + 1))
            for number in range(clusters)
        ),
        history=tuple(
            RoundPoint(
                round=number,
                seconds=610.0 * number,
                joules=790.0 * number,
                accuracy=0.82 - 0.7 * math.exp(-number / 8),
                loss=2.3 * math.exp(-number / 10),
                straggler=6 if number % 3 else 13,
            )
            for number in range(1, done + 1)
        ),
        rejected=(("not finite", 3), ("wrong round", 11), (EVIL, 1)),
        elections=(
            ElectionEvent(unix_seconds=1_790_000_000.0, term=1, kind="elected", node="edge-5"),
            ElectionEvent(unix_seconds=1_790_000_100.0, term=3, kind="no-majority", node="edge-1"),
            ElectionEvent(unix_seconds=1_790_000_101.0, term=4, kind="elected", node="edge-3"),
        ),
    )


@dataclass
class Scene:
    """A state that a test may change while the dashboard shows it."""

    status: Status

    def now(self) -> Status:
        """What the dashboard is shown."""
        return self.status


@dataclass(frozen=True)
class Answer:
    """What the dashboard answered."""

    code: int
    headers: dict[str, str]
    text: str


def ask(address: str, path: str, method: str = "GET", body: str = "", **headers: str) -> Answer:
    """One request; keyword arguments are headers, with _ for -."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, body=body or None, headers=named)
        answer = connection.getresponse()
        text = answer.read().decode()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)
    finally:
        connection.close()


@contextmanager
def served(app: Callable[[], Dashboard], host: str = "127.0.0.1") -> Iterator[str]:
    """The app on a port, in a thread and event loop of its own."""
    ready, done = threading.Event(), threading.Event()
    found: list[str] = []

    async def run() -> None:
        async with serve(app(), host) as address:
            found.append(address)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield found[0]
    finally:
        done.set()
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def scene() -> Scene:
    """Twelve rounds done."""
    return Scene(federation())


@pytest.fixture
def address(scene: Scene) -> Iterator[str]:
    """The dashboard of `scene`, looking twenty times a second."""
    with served(lambda: Dashboard(scene.now, 0.05)) as found:
        yield found
