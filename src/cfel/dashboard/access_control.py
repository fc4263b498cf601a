"""Access control for the dashboard: who may read it, under which host name, and which headers it sends.

- The Host header must be an IP address, localhost or an allowed name. A page elsewhere that makes its name
  point here (DNS rebinding) sends its own name and is rejected.
- With a token, every route but /healthz, /readyz and /login requires it, as `Authorization: Bearer …` or in
  the cookie that /login sets. It is compared in constant time and never written anywhere; the cookie holds a
  digest.
- Every response forbids framing, sniffing, caching, and any script or style but the page's own.

It does not encrypt; `server` does, if it has a certificate.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cfel.errors import InputError

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
