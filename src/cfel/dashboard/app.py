"""The dashboard as an ASGI application: routes, the page's text, and what they may do.

    /             the page, one file without any outside address
    /status.json  the snapshot
    /events       the snapshot after every change, as server-sent events
    /metrics      Prometheus text format
    /healthz      200 while the feed is alive; never needs the token
    /login        takes the token from the page's form and sets the cookie

It reads snapshots and changes nothing. `serving` puts it on a port.
"""

import asyncio
import hashlib
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from importlib.resources import files
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cfel.dashboard.feed import EventStream, Feed
from cfel.dashboard.guard import COOKIE, Guard, Token
from cfel.dashboard.metrics import CONTENT_TYPE, metrics_text
from cfel.status import Status

MOST_READERS = 32
"""Event streams at a time; one more is answered 503."""
_MOST_LOGIN_BYTES = 4096
_SCRIPTS = ("elements.js", "charts.js", "cards.js", "live.js")


def dashboard_app(
    snapshot: Callable[[], Status],
    changes: AsyncIterator[object] | float = 1.0,
    token: str | None = None,
    names: Collection[str] = (),
) -> "Dashboard":
    """The dashboard of one node.

    Args:
        snapshot: gives the state now; called on the event loop, so it must not block.
        changes: an async iterator that yields anything, as often as it likes, when there is something new;
            or the seconds between two looks.
        token: what readers must show; None is for loopback only, and `serve` sees to that.
        names: host names to answer to, besides addresses and localhost.

    Raises:
        InputError: the token is too short, or not printable ASCII.
    """
    return Dashboard(Feed(snapshot, changes), None if token is None else Token(token), names)


class Dashboard:
    """The ASGI application; made by `dashboard_app`.

    Args:
        feed: where snapshots come from.
        token: what readers must show, or None.
        names: host names to answer to, besides addresses and localhost.
    """

    def __init__(self, feed: Feed, token: Token | None, names: Collection[str]) -> None:
        self.needs_token = token is not None
        self._feed = feed
        self._token = token
        self._page = HTMLResponse(_page("page.html"))
        self._unknown = HTMLResponse(_page("login.html"), status_code=401)
        routes = [
            Route("/", self._answer_page),
            Route("/status.json", self._answer_status),
            Route("/events", self._answer_events),
            Route("/metrics", self._answer_metrics),
            Route("/healthz", self._answer_health),
            Route("/login", self._answer_login, methods=["POST"], max_body_size=_MOST_LOGIN_BYTES),
        ]
        starlette = Starlette(routes=routes, lifespan=self._lifespan)
        self._guarded = Guard(starlette, token, names, _policy(), self._unknown)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        await self._guarded(scope, receive, send)

    def close(self) -> None:
        """Ends every event stream, without which a server cannot stop; may be called twice."""
        self._feed.close()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self._feed.run())
        yield
        self.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # a failure has been logged when it happened

    async def _answer_page(self, _: Request) -> Response:
        return self._page

    async def _answer_status(self, _: Request) -> Response:
        return Response(self._feed.now().to_json(), media_type="application/json")

    async def _answer_metrics(self, _: Request) -> Response:
        return Response(metrics_text(self._feed.now()), headers={"content-type": CONTENT_TYPE})

    async def _answer_health(self, _: Request) -> Response:
        if self._feed.closed:
            return PlainTextResponse("the feed has ended\n", status_code=503)
        return PlainTextResponse("ok\n")

    async def _answer_events(self, request: Request) -> Response:
        if self._feed.readers >= MOST_READERS or self._feed.closed:
            return PlainTextResponse("no more readers\n", status_code=503, headers={"retry-after": "10"})
        return EventStream(self._feed) if request.method == "GET" else Response()

    async def _answer_login(self, request: Request) -> Response:
        form = parse_qs((await request.body()).decode("ascii", "replace"))
        offered = form.get("token", [""])[0].strip()
        if self._token is None or not self._token.is_secret(offered):
            return self._unknown
        answer = RedirectResponse("/", status_code=303)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, self._token.cookie, httponly=True, samesite="strict", secure=secure)
        return answer


def _asset(name: str) -> str:
    return files("cfel.dashboard").joinpath("assets", name).read_text(encoding="utf-8")


def _script() -> str:
    return "".join(_asset(name) for name in _SCRIPTS)


def _page(name: str) -> str:
    return _asset(name).replace("/*STYLE*/", _asset("page.css")).replace("/*SCRIPT*/", _script())


def _policy() -> str:
    """Only the page's own script and style, by their digests, and only this server."""
    return (
        "default-src 'none'; "
        f"script-src '{_digest(_script())}'; style-src '{_digest(_asset('page.css'))}'; "
        "connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode()
