"""The dashboard as an ASGI application: its routes and its page.

    /             the page, one file that loads nothing else
    /status.json  the snapshot
    /events       the snapshot after every change, as server-sent events
    /metrics      Prometheus text format
    /healthz      200 while the process works; never needs the token
    /readyz       200 while the node takes part in a federation with a majority and a coordinator; else 503
                  and the reason; never needs the token
    /login        takes the token from the form and sets the cookie

It only reads snapshots. `server` serves it on a port.
"""

import asyncio
import hashlib
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from importlib.resources import files
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cfel.dashboard.access_control import COOKIE, AccessControl, Token
from cfel.dashboard.event_stream import EventStream, SnapshotFeed
from cfel.dashboard.metrics import CONTENT_TYPE, metrics_text
from cfel.status import Status

_MOST_LOGIN_BYTES = 4096
_LOGIN_SECONDS = 10.0
_SCRIPTS = ("elements.js", "charts.js", "cards.js", "live.js")


def dashboard_app(
    snapshot: Callable[[], Status],
    changes: AsyncIterator[object] | float = 1.0,
    token: str | None = None,
    names: Collection[str] = (),
) -> "Dashboard":
    """Creates the dashboard of one node.

    Args:
        snapshot: returns the current state; called on the event loop, so it must not block.
        changes: an async iterator that yields whenever something changed; or the seconds between two polls.
        token: what readers must send; None is allowed on loopback only, which `serve` checks.
        names: allowed host names, besides IP addresses and localhost.

    Raises:
        InputError: the token is too short, or not printable ASCII.
    """
    return Dashboard(SnapshotFeed(snapshot, changes), None if token is None else Token(token), names)


class Dashboard:
    """The ASGI application; use `dashboard_app` to create it.

    Args:
        feed: where snapshots come from.
        token: what readers must send, or None.
        names: allowed host names, besides IP addresses and localhost.
    """

    def __init__(self, feed: SnapshotFeed, token: Token | None, names: Collection[str]) -> None:
        self.needs_token = token is not None
        self._feed = feed
        self._token = token
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
        self._protected = AccessControl(starlette, token, names, _content_security_policy(), self._login_page)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one ASGI connection."""
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
        return Response(self._feed.take_snapshot().to_json(), media_type="application/json")

    async def _answer_metrics(self, _: Request) -> Response:
        return Response(metrics_text(self._feed.take_snapshot()), headers={"content-type": CONTENT_TYPE})

    async def _answer_health(self, _: Request) -> Response:
        if self._feed.closed:
            return PlainTextResponse("no more snapshots\n", status_code=503)
        return PlainTextResponse("ok\n")

    async def _answer_ready(self, _: Request) -> Response:
        unready = "no more snapshots" if self._feed.closed else self._feed.take_snapshot().unready
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
    return (
        _read_asset(name).replace("/*STYLE*/", _read_asset("page.css")).replace("/*SCRIPT*/", _join_scripts())
    )


def _content_security_policy() -> str:
    """Allows only the page's own script and style, by their digests, and only this server."""
    return (
        "default-src 'none'; "
        f"script-src '{_digest(_join_scripts())}'; style-src '{_digest(_read_asset('page.css'))}'; "
        "connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode()
