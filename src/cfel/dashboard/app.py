"""The dashboard as an ASGI application: who may read it, its routes and its page.

    /             the page, one file that loads nothing else
    /status.json  the snapshot
    /events       the snapshot after every change, as server-sent events
    /metrics      Prometheus text format
    /healthz      200 while the process works; never needs the token
    /readyz       200 while the node takes part in a federation with a majority and a coordinator; else 503
                  and the reason; never needs the token
    /login        takes the token from the form and sets the cookie

It only reads snapshots, of which all readers share one encoded document. `server` serves it on a port.

- The Host header must be an IP address, localhost or an allowed name. A page elsewhere that makes its name
  point here (DNS rebinding) sends its own name and is rejected.
- With a token, every other route requires it, as `Authorization: Bearer …` or in the cookie that /login sets.
  It is compared in constant time and never written anywhere; the cookie holds a digest.
- Every response forbids framing, sniffing, caching, and any script or style but the page's own.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import logging
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cfel.dashboard.metrics import CONTENT_TYPE, metrics_text
from cfel.errors import InputError
from cfel.status import Status

COOKIE = "cfel_dashboard"
LEAST_TOKEN_LENGTH = 16
_OPEN_PATHS = ("/healthz", "/readyz", "/login")
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class Token:
    """A secret that readers must send; its `repr` does not show it."""

    def __init__(self, secret: str) -> None:
        if len(secret) < LEAST_TOKEN_LENGTH:
            raise InputError(f"dashboard token: {len(secret)} characters, needs {LEAST_TOKEN_LENGTH} or more")
        if not (secret.isascii() and secret.isprintable()) or " " in secret:
            raise InputError("dashboard token: only printable ASCII characters without spaces")
        self._secret = secret.encode()
        self.cookie = hmac.new(self._secret, b"cfel dashboard cookie", hashlib.sha256).hexdigest()

    def __repr__(self) -> str:
        return "Token(…)"

    def matches(self, offered: str) -> bool:
        """Whether `offered` is the secret; compared in constant time."""
        return hmac.compare_digest(self._secret, offered.encode())

    def is_in(self, headers: Headers) -> bool:
        """Whether a request carries it, as a bearer token or as a cookie."""
        scheme, _, offered = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.matches(offered.strip()):
            return True
        return hmac.compare_digest(self.cookie.encode(), _read_cookie(headers).encode())


class AccessControl:
    """ASGI middleware that does what the module says; a reader without the token gets the login page."""

    def __init__(
        self, app: ASGIApp, token: Token | None, names: Collection[str], policy: str, login_page: Response
    ) -> None:
        self._app, self._token, self._login_page = app, token, login_page
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._headers = {"content-security-policy": policy, **_HEADERS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._choose_app(scope)(scope, receive, self._add_headers(send))
        else:
            raise InputError(f"dashboard: {scope['type']} is not served")

    def _choose_app(self, scope: Scope) -> ASGIApp:
        headers = Headers(scope=scope)
        if not self._is_allowed_host(headers.getlist("host")):
            return PlainTextResponse("this host name is not served here\n", status_code=421)
        if self._token is None or scope["path"] in _OPEN_PATHS or self._token.is_in(headers):
            return self._app
        return self._login_page

    def _is_allowed_host(self, hosts: list[str]) -> bool:
        # With two Host headers, a proxy and this server could disagree on which one counts.
        if len(hosts) != 1:
            return False
        name = host_name(hosts[0])
        return name == "localhost" or name in self._names or is_address(name)

    def _add_headers(self, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        return send_with_headers


def host_name(host: str) -> str:
    """The name in a Host header, without port, brackets and final dot, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def is_address(name: str) -> bool:
    """Whether `name` is an IP address; such a Host header cannot come from DNS rebinding."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _read_cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


LEAST_SECONDS = 0.2
"""Between two events to the same reader; all changes in between become one event."""
HEARTBEAT_SECONDS = 10.0
SEND_TIMEOUT_SECONDS = 10.0
"""A reader that takes longer for one event is disconnected."""
MOST_READERS = 32
"""Event streams at a time."""
DISCONNECT = "cfel.disconnect"
"""Extension of the ASGI scope: a function that closes the connection at once."""
_LOG = logging.getLogger("cfel.dashboard")
_MOST_LOGIN_BYTES = 4096
_LOGIN_SECONDS = 10.0
_SCRIPTS = ("elements.js", "charts.js", "cards.js", "live.js")


class Dashboard:
    """The ASGI application that shows one node.

    Args:
        snapshot: called on the event loop, so it must not block.
        changes: yields whenever something changed, or the seconds between two polls.
        token: what readers must send; None is allowed on loopback only, which `serve` checks.
        names: allowed host names, besides IP addresses and localhost.
    """

    def __init__(
        self,
        snapshot: Callable[[], Status],
        changes: AsyncIterator[object] | float = 1.0,
        token: str | None = None,
        names: Collection[str] = (),
    ) -> None:
        self.needs_token = token is not None
        self._snapshot = snapshot
        self._feed = SnapshotFeed(snapshot, changes)
        self._token = None if token is None else Token(token)
        self._page = HTMLResponse(_build_page("page.html"))
        self._login_page = HTMLResponse(_build_page("login.html"), status_code=401)
        routes = [
            Route("/", self._answer_page),
            Route("/status.json", self._answer_status),
            Route("/events", self._answer_events),
            Route("/metrics", self._answer_metrics),
            Route("/healthz", self._answer_health),
            Route("/readyz", self._answer_ready),
            Route("/login", self._answer_login, methods=["POST"], max_body_size=_MOST_LOGIN_BYTES),
        ]
        starlette = Starlette(routes=routes, lifespan=self._lifespan)
        self._protected = AccessControl(
            starlette, self._token, names, _content_security_policy(), self._login_page
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._protected(scope, receive, send)

    def close(self) -> None:
        """Ends every event stream, or the server could not stop; may be called twice."""
        self._feed.close()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self._feed.run())
        yield
        self.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # a failure was logged when it happened

    async def _answer_page(self, _: Request) -> Response:
        return self._page

    async def _answer_status(self, _: Request) -> Response:
        return Response(self._snapshot().to_json(), media_type="application/json")

    async def _answer_metrics(self, _: Request) -> Response:
        return Response(metrics_text(self._snapshot()), headers={"content-type": CONTENT_TYPE})

    async def _answer_health(self, _: Request) -> Response:
        if self._feed.closed:
            return PlainTextResponse("no more snapshots\n", status_code=503)
        return PlainTextResponse("ok\n")

    async def _answer_ready(self, _: Request) -> Response:
        unready = "no more snapshots" if self._feed.closed else self._snapshot().unready
        return PlainTextResponse(f"{unready or 'ok'}\n", status_code=503 if unready else 200)

    async def _answer_events(self, request: Request) -> Response:
        if self._feed.closed:
            return PlainTextResponse("no more snapshots\n", status_code=503)
        return EventStream(self._feed) if request.method == "GET" else Response()

    async def _answer_login(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(_LOGIN_SECONDS):
                body = await request.body()
        except TimeoutError:
            return PlainTextResponse("the form arrived too slowly\n", status_code=408)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is left to read it
        form = parse_qs(body.decode("ascii", "replace"))
        offered = form.get("token", [""])[0].strip()
        if self._token is None or not self._token.matches(offered):
            return self._login_page
        answer = RedirectResponse("/", status_code=303)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, self._token.cookie, httponly=True, samesite="strict", secure=secure)
        return answer


def _read_asset(name: str) -> str:
    return files("cfel.dashboard").joinpath("assets", name).read_text(encoding="utf-8")


def _join_scripts() -> str:
    return "".join(_read_asset(name) for name in _SCRIPTS)


def _build_page(name: str) -> str:
    page = _read_asset(name).replace("/*STYLE*/", _read_asset("page.css"))
    return page.replace("/*SCRIPT*/", _join_scripts())


def _content_security_policy() -> str:
    """Allows only the page's own script and style, by their digests, and only this server."""
    return (
        "default-src 'none'; "
        f"script-src '{_digest(_join_scripts())}'; style-src '{_digest(_read_asset('page.css'))}'; "
        "connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode()


class SnapshotFeed:
    """The newest snapshot, for any number of readers who wait for the next one.

    A slow reader misses snapshots; it never delays others and never makes any queue up: each takes the newest
    when it is ready. Nothing is encoded while nobody reads.

    The number of readers is limited. One more replaces the oldest reader of the client that has the most:
    whether a client reads what it was sent cannot be seen, and those that do not must not lock others out. A
    browser that was replaced connects again by itself.
    """

    def __init__(self, snapshot: Callable[[], Status], changes: AsyncIterator[object] | float) -> None:
        self._snapshot, self._changes = snapshot, changes
        self._version = 0
        self._encoded: tuple[int, bytes] = (-1, b"")
        self._changed = asyncio.Event()
        self.readers: dict[EventStream, str] = {}
        self.closed = False

    def add_reader(self, stream: "EventStream", client: str) -> None:
        """Registers a stream, at the limit in place of another."""
        if len(self.readers) >= MOST_READERS:
            ((most, _),) = Counter(self.readers.values()).most_common(1)
            oldest = next(each for each, owner in self.readers.items() if owner == most)
            del self.readers[oldest]
            oldest.disconnect()
        self.readers[stream] = client

    def remove_reader(self, stream: "EventStream") -> None:
        """Forgets a stream; may be called twice."""
        self.readers.pop(stream, None)

    async def run(self) -> None:
        """Wakes readers at every change, until cancelled or no more come; a failure ends every stream."""
        try:
            async for _ in self._watch_changes():
                self._version += 1
                self._wake()
        except Exception:
            _LOG.exception("the dashboard's feed failed")
            self.close()
            raise

    async def _watch_changes(self) -> AsyncIterator[object]:
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
        # Each event is used once, so that a reader who waits later waits for the next change.
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """Ends every stream; may be called twice."""
        self.closed = True
        self._wake()

    def encode(self) -> bytes:
        """The newest snapshot as JSON, encoded once for all readers."""
        if self._encoded[0] != self._version:
            self._encoded = (self._version, self._snapshot().to_json())
        return self._encoded[1]

    async def documents(self) -> AsyncIterator[bytes | None]:
        """Yields the newest document at once and after every change; None is a heartbeat."""
        seen = -1
        while not self.closed:
            if seen != self._version:
                seen = self._version
                yield self.encode()
                await asyncio.sleep(LEAST_SECONDS)
            elif not await self._wait_for_change():
                yield None

    async def _wait_for_change(self) -> bool:
        """Waits for a change; returns False when a heartbeat is due first."""
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                return await self._changed.wait()
        except TimeoutError:
            return False


class EventStream(Response):
    """Snapshots as server-sent events to one reader, until either side ends the stream."""

    def __init__(self, feed: SnapshotFeed) -> None:
        # The header asks nginx not to buffer events.
        super().__init__(media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        # Starlette sets it to 0, but a stream has no known length.
        del self.headers["content-length"]
        self._feed = feed
        self.disconnect: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.disconnect = (scope.get("extensions") or {}).get(DISCONNECT, self.disconnect)
        self._feed.add_reader(self, (scope.get("client") or ("",))[0])
        writer = asyncio.create_task(self._write(send))
        watcher = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((writer, watcher), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._feed.remove_reader(self)
            for task in (writer, watcher):
                task.cancel()
            results = await asyncio.gather(writer, watcher, return_exceptions=True)
        for result in results:
            # A reader that left or stopped reading is no failure of the dashboard.
            if isinstance(result, TimeoutError):
                self.disconnect()
            if isinstance(result, Exception) and not isinstance(result, TimeoutError | OSError):
                raise result

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for document in self._feed.documents():
            event = b": alive\n\n" if document is None else b"data: " + document + b"\n\n"
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
