"""The guard in front of the dashboard: who may ask, under which name, and what every answer carries.

- A Host header that is neither an address, nor localhost, nor a name handed in is refused: a page elsewhere
  whose name is made to point here (DNS rebinding) sends its own name.
- With a token, every route but /healthz and /login wants it as `Authorization: Bearer …` or in the cookie
  that /login sets. It is compared in constant time and never written anywhere; the cookie holds a digest.
- Every answer forbids framing, sniffing, caching and any script or style but the page's own.

It does not encrypt: beyond loopback that is TLS's business (`serving`).
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
_OPEN_PATHS = ("/healthz", "/login")


class Token:
    """A secret that readers must show; it has no readable form.

    Args:
        secret: at least `LEAST_TOKEN_LENGTH` printable ASCII characters without spaces.
    """

    def __init__(self, secret: str) -> None:
        if len(secret) < LEAST_TOKEN_LENGTH:
            raise InputError(f"dashboard token: {len(secret)} characters, needs {LEAST_TOKEN_LENGTH} or more")
        if not (secret.isascii() and secret.isprintable()) or " " in secret:
            raise InputError("dashboard token: only printable ASCII characters without spaces")
        self._secret = secret.encode()
        self.cookie = hmac.new(self._secret, b"cfel dashboard cookie", hashlib.sha256).hexdigest()

    def __repr__(self) -> str:
        return "Token(…)"

    def is_secret(self, offered: str) -> bool:
        """Whether it was offered, in constant time."""
        return hmac.compare_digest(self._secret, offered.encode())

    def shown_in(self, headers: Headers) -> bool:
        """Whether a request shows it, as bearer token or as cookie."""
        scheme, _, offered = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_secret(offered.strip()):
            return True
        return hmac.compare_digest(self.cookie.encode(), _cookie(headers).encode())


class Guard:
    """ASGI middleware, as the module says.

    Args:
        app: what is guarded.
        token: what readers must show, or None.
        names: host names under which the dashboard may be asked for, besides addresses and localhost.
        policy: the Content-Security-Policy.
        unknown: the answer to a reader without the token.
    """

    def __init__(
        self, app: ASGIApp, token: Token | None, names: Collection[str], policy: str, unknown: Response
    ) -> None:
        self._app = app
        self._token = token
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._headers = security_headers(policy)
        self._unknown = unknown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request pass, or answers it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._checked(scope)(scope, receive, self._sealed(send))
        else:
            raise InputError(f"dashboard: {scope['type']} is not served")

    def _checked(self, scope: Scope) -> ASGIApp:
        headers = Headers(scope=scope)
        if not self._is_ours(headers.getlist("host")):
            return PlainTextResponse("this host name is not served here\n", status_code=421)
        if self._token is None or scope["path"] in _OPEN_PATHS or self._token.shown_in(headers):
            return self._app
        return self._unknown

    def _is_ours(self, hosts: list[str]) -> bool:
        if len(hosts) != 1:
            return False
        name = host_name(hosts[0])
        return name == "localhost" or name in self._names or is_address(name)

    def _sealed(self, send: Send) -> Send:
        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        return sealed


def security_headers(policy: str) -> dict[str, str]:
    """What every answer carries."""
    return {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
        "cache-control": "no-store",
    }


def host_name(host: str) -> str:
    """The name in a Host header, without port, brackets and final dot, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def is_address(name: str) -> bool:
    """Whether it is an IP address: such a Host header cannot come from a rebound name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
