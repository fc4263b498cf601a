"""Serves the dashboard on a port, inside the caller's event loop.

On loopback by default; on other addresses only with a token. `connections` accepts clients. uvicorn does the
HTTP, but may neither handle the process's signals nor log requests.
"""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from cfel.dashboard.access_control import is_address
from cfel.dashboard.app import Dashboard
from cfel.dashboard.connections import Connections, most_connections
from cfel.dashboard.event_stream import DISCONNECT
from cfel.dashboard.tls_files import follow_files
from cfel.errors import DashboardError, InputError

_MOST_HEADER_BYTES = 16 * 1024
_MOST_PORT = 65_535
_UNACKNOWLEDGED_MILLISECONDS = 60_000


@asynccontextmanager
async def serve(
    app: Dashboard,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
) -> AsyncIterator[str]:
    """Serves the dashboard until the block ends.

    Args:
        app: made by `dashboard_app`.
        host: address or name to listen on.
        port: 0 takes any free port.
        certificate: PEM file; with `key`, the dashboard uses TLS. Both are read again when they change.
        key: PEM file.

    Yields:
        Its address, such as "http://127.0.0.1:8470/".

    Raises:
        InputError: `host` is not loopback and the app has no token; there is no such port; or only one of
            certificate and key was given.
        DashboardError: the address or the certificate cannot be used.
    """
    server = _QuietServer(_configuration(app, certificate, key))
    listener = _open_listener(app, host, port)
    connections = Connections(listener, server.make_protocol, server.config.ssl, most_connections())
    try:
        task = asyncio.create_task(server.serve(sockets=[]))
        beside: list[asyncio.Task[None]] = []
        try:
            await _wait_until_started(server, task)
            address = _address(listener, server.config.is_ssl)
            beside.append(asyncio.create_task(connections.run()))
            if server.config.ssl is not None and certificate is not None and key is not None:
                beside.append(asyncio.create_task(follow_files(server.config.ssl, certificate, key)))
            yield address
        finally:
            for each in beside:
                each.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            listener.close()
            # Open event streams would keep uvicorn from stopping.
            app.close()
            server.should_exit = True
            await task
    finally:
        listener.close()


class _Protocol(H11Protocol):
    """uvicorn's protocol; it also reports a closed connection, and lets the app close one at once.

    A request that turns out to be invalid while it is being answered ends its connection; uvicorn would
    answer twice, and log a trace each time.
    """

    on_lost: Callable[[], None] = staticmethod(lambda: None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the event loop."""
        super().connection_made(transport)
        self.app = _offer_disconnect(self.app, transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Called for a request that is invalid, or whose body is."""
        if self.cycle is not None and not self.cycle.response_complete:
            # As if the connection had been lost: what the app still sends is dropped.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        super().connection_lost(exc)
        self.on_lost()


def _offer_disconnect(app: ASGIApp, abort: Callable[[], None]) -> ASGIApp:
    """Adds to every scope a function that closes the connection at once; ASGI itself has none."""

    async def with_disconnect(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"] = {**(scope.get("extensions") or {}), DISCONNECT: abort}
        await app(scope, receive, send)

    return with_disconnect


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers: the caller handles Ctrl-C."""

    def make_protocol(self) -> _Protocol:
        """The protocol of a new connection."""
        return _Protocol(self.config, self.server_state, self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures no signals."""
        yield


def _configuration(app: Dashboard, certificate: Path | None, key: Path | None) -> uvicorn.Config:
    if (certificate is None) != (key is None):
        raise InputError("dashboard: certificate and key go together, but only one was given")
    settings = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        # Any client can send such headers, and would be believed.
        proxy_headers=False,
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        timeout_graceful_shutdown=2,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    try:
        settings.load()
    except (OSError, ssl.SSLError) as error:
        raise DashboardError(f"the dashboard cannot use {certificate} and {key}: {error}") from error
    return settings


def _open_listener(app: Dashboard, host: str, port: int) -> socket.socket:
    if not 0 <= port <= _MOST_PORT:
        raise InputError(f"dashboard: port {port} is not from 0 to {_MOST_PORT}")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise DashboardError(f"dashboard: host {host!r} is unknown: {error}") from error
    if not app.needs_token and not _is_loopback(str(address[0])):
        raise InputError(f"dashboard: host {host!r} can be reached from other machines and needs a token")
    try:
        listener = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise DashboardError(f"the dashboard cannot listen on {host} port {port}: {error}") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # the kernel drops readers that stopped responding
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MILLISECONDS)
    return listener


def _is_loopback(address: str) -> bool:
    return is_address(address) and ipaddress.ip_address(address).is_loopback


async def _wait_until_started(server: uvicorn.Server, task: "asyncio.Task[None]") -> None:
    while not server.started:
        if task.done():
            await task
            raise DashboardError("the dashboard stopped before it was ready")
        await asyncio.sleep(0.01)


def _address(listener: socket.socket, encrypted: bool) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if encrypted else 'http'}://{shown}:{port}/"
