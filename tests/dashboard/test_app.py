"""The routes over real HTTP, and who may use them."""

import base64
import hashlib
import json
import logging
import re
import socket
from dataclasses import replace
from importlib.resources import files
from urllib.parse import urlsplit

import pytest

from cfel.dashboard import Dashboard
from cfel.dashboard import app as event_stream
from cfel.dashboard.app import Token, host_name, is_address
from cfel.errors import InputError
from cfel.status import Status
from tests.dashboard.conftest import EVIL, Scene, ask, federation, served

TOKEN = "correct-horse-battery-staple"  # noqa: S105 — a made-up one
FORM = {"Content_Type": "application/x-www-form-urlencoded"}


class Events:
    """A reader of /events on a plain socket."""

    def __init__(self, address: str, **headers: str) -> None:
        place = urlsplit(address)
        self._socket = socket.create_connection((place.hostname, place.port), timeout=30)
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._socket.sendall(f"GET /events HTTP/1.1\r\nHost: {place.netloc}\r\n{more}\r\n".encode())
        self._file = self._socket.makefile("rb")
        self.code = int(self._file.readline().split()[1])

    def next(self) -> Status:
        """The next event."""
        for line in self._file:
            if line.startswith(b"data: "):
                return Status.from_json(line[6:])
        raise EOFError

    def close(self) -> None:
        """Hangs up."""
        self._file.close()
        self._socket.close()


def test_routes(address: str, scene: Scene) -> None:
    page = ask(address, "/")
    assert (page.code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    document = ask(address, "/status.json")
    assert document.headers["content-type"] == "application/json"
    assert Status.from_json(document.text) == scene.status
    metrics = ask(address, "/metrics")
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "\ncfel_round 13\n" in metrics.text
    assert ask(address, "/healthz").text == "ok\n"
    assert ask(address, "/readyz").text == "ok\n"
    assert ask(address, "/events", "HEAD").code == 200
    assert ask(address, "/nothing").code == 404
    assert ask(address, "/", "POST", "x").code == 405
    assert ask(address, "/login").code == 405


def test_ready_is_more_than_alive(address: str, scene: Scene) -> None:
    """Without a coordinator or a majority the process lives, but takes part in nothing."""
    for changed, reason in (
        (replace(scene.status, majority=False), "no majority of edge servers is in touch\n"),
        (replace(scene.status, coordinator=None), "no coordinator is elected\n"),
    ):
        scene.status = changed
        answer = ask(address, "/readyz")
        assert (answer.code, answer.text) == (503, reason)
        assert ask(address, "/healthz").code == 200


def test_events_follow_the_state(address: str, scene: Scene) -> None:
    events = Events(address)
    assert events.code == 200
    assert events.next() == scene.status
    scene.status = federation(13)
    assert events.next() == scene.status
    events.close()


def test_a_reader_that_does_not_read_holds_up_nobody(address: str, scene: Scene) -> None:
    """A hundred snapshots of a thousand devices are more than any socket buffer holds."""
    frozen, other = Events(address), Events(address)
    frozen.next()
    for number in range(2, 12):
        scene.status = federation(number, clusters=8, each=128)
        while other.next() != scene.status:
            pass
    assert ask(address, "/healthz").code == 200
    frozen.close()
    other.close()


def read_to_the_end(reader: Events) -> None:
    while True:
        reader.next()


def test_readers_that_do_not_read_lock_nobody_out(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """A further reader replaces the oldest, which is disconnected."""
    monkeypatch.setattr(event_stream, "MOST_READERS", 4)
    readers = [Events(address) for _ in range(4)]
    another = Events(address)
    assert another.code == 200
    assert another.next().node == "edge-0"
    with pytest.raises((EOFError, ConnectionError)):
        read_to_the_end(readers[0])
    for reader in readers[1:]:
        assert reader.next().node == "edge-0"
    for reader in (*readers, another):
        reader.close()


@pytest.mark.parametrize("path", ["/", "/status.json", "/metrics", "/healthz", "/nothing"])
def test_every_answer_is_sealed(address: str, path: str) -> None:
    headers = ask(address, path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_the_policy_admits_exactly_the_page(address: str) -> None:
    answer = ask(address, "/")
    for tag in ("script", "style"):
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        assert len(found) == 1
        digest = base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in answer.headers["content-security-policy"]
    assert not re.search(r"\son[a-z]+=|\sstyle=|<script [^>]*src", answer.text)
    outside = re.sub(r"http://www\.w3\.org/2000/svg", "", answer.text)
    assert re.findall(r"https?://|@import|url\(", outside) == []


def test_the_script_never_makes_markup_of_text() -> None:
    assets = files("cfel.dashboard").joinpath("assets")
    scripts = [entry for entry in assets.iterdir() if entry.name.endswith(".js")]
    assert len(scripts) == 4
    for script in scripts:
        words = script.read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", words
        )


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1", "127.0.0.1:9", "[::1]:9", "10.1.2.3", "Dash.Lab."]
)
def test_hosts_that_are_served(host: str, scene: Scene) -> None:
    with served(lambda: Dashboard(scene.now, 1.0, names=("dash.lab",))) as address:
        assert ask(address, "/status.json", Host=host).code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "a b"]
)
def test_rebound_names_are_rejected(address: str, host: str) -> None:
    for path in ("/", "/status.json", "/events", "/healthz"):
        answer = ask(address, path, Host=host)
        assert (answer.code, "harbour" in answer.text) == (421, False)
        assert answer.headers["x-frame-options"] == "DENY"


def test_host_names() -> None:
    assert [host_name(host) for host in ("A.b:1", "[::1]:2", "x.", "1.2.3.4")] == [
        "a.b",
        "::1",
        "x",
        "1.2.3.4",
    ]
    assert [is_address(name) for name in ("1.2.3.4", "::1", "1.2.3", "0x7f.1", "x")] == [
        True,
        True,
        *[False] * 3,
    ]


def test_the_token_opens(
    scene: Scene, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with served(lambda: Dashboard(scene.now, 0.05, TOKEN)) as address:
        for path in ("/", "/status.json", "/metrics", "/events", "/nothing"):
            for headers in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Cookie": f"cfel_dashboard={TOKEN}"}):
                answer = ask(address, path, **headers)
                assert (answer.code, "harbour" in answer.text) == (401, False)
        assert ask(address, "/healthz").code == 200
        assert "needs a token" in ask(address, "/").text
        assert ask(address, "/status.json", Authorization=f"Bearer {TOKEN}").code == 200
        assert ask(address, "/status.json", Authorization=f"bearer {TOKEN}").code == 200
        events = Events(address, Authorization=f"Bearer {TOKEN}")
        assert events.next() == scene.status
        events.close()
        answer = ask(address, "/login", "POST", f"token={TOKEN}", **FORM)
        cookie = answer.headers["set-cookie"]
        assert (answer.code, answer.headers["location"]) == (303, "/")
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert ask(address, "/status.json", Cookie=cookie.partition(";")[0]).code == 200
        assert ask(address, "/status.json", Cookie='x="; cfel_dashboard=1').code == 401
        for body in ("token=wrong", "", "x", "token=" + "%ff" * 20, "a=1&" * 9):
            assert ask(address, "/login", "POST", body, **FORM).code in (400, 401)
        assert ask(address, "/login", "POST", "token=" + "x" * 10_000, **FORM).code == 413
    written = capfd.readouterr()
    assert TOKEN not in caplog.text + written.out + written.err + cookie
    assert TOKEN not in repr(Token(TOKEN))


def test_the_login_is_closed_without_a_token(address: str) -> None:
    assert ask(address, "/login", "POST", "token=", **FORM).code == 401


@pytest.mark.parametrize(
    "token", ["", "short", "with space in the middle", "übermäßig-lange-token", "a" * 20 + "\n"]
)
def test_tokens_that_are_rejected(scene: Scene, token: str) -> None:
    with pytest.raises(InputError, match="dashboard token: ") as caught:
        Dashboard(scene.now, 1.0, token)
    assert not token or token not in str(caught.value)


def test_names_from_the_network_stay_text(address: str, scene: Scene) -> None:
    """JSON leaves markup as it is, and no page holds it: the script makes text nodes of it."""
    assert EVIL in json.loads(ask(address, "/status.json").text)["clusters"][0]["devices"][3]["name"]
    scene.status = replace(scene.status, name=EVIL)
    assert EVIL not in ask(address, "/").text
