"""Serves the dashboard on a port, inside the caller's event loop.

On loopback by default; on other addresses only with a token. uvicorn does the HTTP, but may neither handle
the process's signals nor log requests. `Connections` accepts clients in its place, within limits. A
certificate is read again when its files change.
"""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from cfel.dashboard.app import DISCONNECT, Dashboard
from cfel.errors import DashboardError, InputError

if sys.platform != "win32":
    import resource

MOST_CONNECTIONS = 128
"""In total; fewer where the process may open only few files."""
SHARE_OF_DESCRIPTORS = 8
"""At most one in so many of the process's descriptors is a connection to the dashboard."""
IDLE_SECONDS = 10.0
"""Without a complete request, TLS handshake included, a connection is closed after this time."""
FLUSH_SECONDS = 60.0
"""A response must have been read after this time."""
PACE_SECONDS = 0.005
"""Between two connections: a flood of them leaves the event loop to the node."""
SWEEP_SECONDS = 1.0
EXHAUSTED_SECONDS = 1.0
"""Pause after the process has run out of descriptors or memory."""

_SEND_BUFFER_BYTES = 128 * 1024
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOG = logging.getLogger("cfel.dashboard")
_MOST_HEADER_BYTES = 16 * 1024
_MOST_PORT = 65_535
_UNACKNOWLEDGED_MILLISECONDS = 60_000
LOOK_SECONDS = 5.0
"""How often the files of the certificate are looked at."""


@asynccontextmanager
async def serve(
    app: Dashboard,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
) -> AsyncIterator[str]:
    """Serves the dashboard until the block ends; gives its address, such as "http://127.0.0.1:8470/".

    Port 0 takes any free one. With `certificate` and `key`, PEM files that are read again when they change,
    it uses TLS.

    Raises:
        InputError: `host` is not loopback and the app has no token; there is no such port; or only one of
            certificate and key was given.
        DashboardError: the address or the certificate cannot be used.
    """
    server = _QuietServer(_configure(app, certificate, key))
    listener = _open_listener(app, host, port)
    connections = Connections(listener, server.make_protocol, server.config.ssl, most_connections())
    task = asyncio.create_task(server.serve(sockets=[]))
    beside: list[asyncio.Task[None]] = []
    try:
        await _wait_until_started(server, task)
        beside.append(asyncio.create_task(connections.run()))
        if server.config.ssl is not None and certificate is not None and key is not None:
            beside.append(asyncio.create_task(follow_files(server.config.ssl, certificate, key)))
        yield _format_address(listener, server.config.is_ssl)
    finally:
        for each in beside:
            each.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        listener.close()
        # Open event streams would keep uvicorn from stopping.
        app.close()
        server.should_exit = True
        await task


class _Protocol(H11Protocol):
    """uvicorn's protocol; it also reports a closed connection, and lets the app close one at once.

    A request that turns out to be invalid while it is being answered ends its connection; uvicorn would
    answer twice, and log a trace each time.
    """

    on_lost: Callable[[], None] = staticmethod(lambda: None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
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
        return _Protocol(self.config, self.server_state, self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _configure(app: Dashboard, certificate: Path | None, key: Path | None) -> uvicorn.Config:
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
    if not app.needs_token and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise InputError(f"dashboard: host {host!r} can be reached from other machines and needs a token")
    try:
        listener = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise DashboardError(f"the dashboard cannot listen on {host} port {port}: {error}") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # the kernel drops readers that stopped responding
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MILLISECONDS)
    return listener


async def _wait_until_started(server: uvicorn.Server, task: "asyncio.Task[None]") -> None:
    while not server.started:
        if task.done():
            await task
            raise DashboardError("the dashboard stopped before it was ready")
        await asyncio.sleep(0.01)


def _format_address(listener: socket.socket, encrypted: bool) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if encrypted else 'http'}://{shown}:{port}/"


Client = tuple[str, int]
"""Address and port of the other end."""
Protocol = Any
"""uvicorn's protocol of one connection."""


@dataclass(slots=True, eq=False)
class Connection:
    """One accepted connection."""

    client: Client
    network: str  # what counts as one client, see `find_network`
    idle_since: float | None  # since when no request has been in progress; None during one
    task: "asyncio.Task[None] | None" = None  # sets the connection up; done after the TLS handshake
    # transport and protocol: None before that.
    transport: asyncio.Transport | None = None
    protocol: Protocol = None

    def is_idle(self) -> bool:
        cycle = None if self.protocol is None else self.protocol.cycle
        return cycle is None or bool(cycle.response_complete)

    def is_overdue(self, now: float) -> bool:
        """Whether it has been idle for too long, or takes too long to read the response."""
        if self.idle_since is None:
            return False
        unread = self.transport is not None and self.transport.get_write_buffer_size() > 0
        return now - self.idle_since > (FLUSH_SECONDS if unread else IDLE_SECONDS)

    def abort(self) -> None:
        """Closes it at once, without waiting for the client to read what was sent."""
        if self.transport is not None:
            self.transport.abort()
        elif self.task is not None:
            self.task.cancel()


class Connections:
    """Accepts the connections of one listener, within limits that keep the dashboard from starving its node.

    asyncio's own server accepts everything. A thousand silent connections would then use up the process's
    descriptors, and the node could open neither a file nor a connection. Here the number of connections is
    limited, in total and per client. At the limit, a new one replaces the one that has been idle longest, so
    that silent clients cannot lock others out. What is said over a connection is up to the protocol.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], Protocol],
        tls: ssl.SSLContext | None,
        most: int,
    ) -> None:
        self._listener, self._make_protocol, self._tls = listener, make_protocol, tls
        self._most, self._most_per_client = most, max(1, most // 2)
        self._open: dict[Client, Connection] = {}
        listener.setblocking(False)

    def __len__(self) -> int:
        return len(self._open)

    async def run(self) -> None:
        """Accepts connections and closes idle ones, until cancelled."""
        sweep = asyncio.create_task(self._sweep_forever())
        try:
            while True:
                await self._accept_next()
        finally:
            sweep.cancel()
            await asyncio.gather(sweep, return_exceptions=True)

    async def _accept_next(self) -> None:
        try:
            accepted, address = await asyncio.get_running_loop().sock_accept(self._listener)
        except OSError as error:
            # The node needs descriptors more than the dashboard does, so this waits instead of insisting.
            if error.errno in _EXHAUSTED:
                _LOG.warning("the dashboard accepts no connection: %s", error.strerror)
                await asyncio.sleep(EXHAUSTED_SECONDS)
            return
        client = (str(address[0]), int(address[1]))
        network = find_network(client[0])
        if self._make_room(network):
            self._set_up(accepted, client, network)
        else:
            accepted.close()
        # `sock_accept` does not yield while connections are waiting; a flood of them would block the loop.
        await asyncio.sleep(PACE_SECONDS)

    def _make_room(self, network: str) -> bool:
        """Closes an idle connection if there are too many; returns whether there is room for one more."""
        same = [each for each in self._open.values() if each.network == network]
        if len(same) >= self._most_per_client:
            return self._evict(same)
        if len(self._open) >= self._most:
            return self._evict(list(self._open.values()))
        return True

    def _evict(self, candidates: list[Connection]) -> bool:
        idle = [each for each in candidates if each.is_idle()]
        if not idle:
            return False
        oldest = min(idle, key=lambda each: each.idle_since or 0.0)
        oldest.abort()
        self._open.pop(oldest.client, None)
        return True

    def _set_up(self, accepted: socket.socket, client: Client, network: str) -> None:
        accepted.setblocking(False)
        with contextlib.suppress(OSError):  # a small buffer shows soon that a client does not read
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        connection = Connection(client, network, asyncio.get_running_loop().time())
        self._open[client] = connection
        connection.task = asyncio.create_task(self._connect(accepted, connection))
        # A callback, as a task that is cancelled before its first step runs none of its own clean-up.
        connection.task.add_done_callback(lambda task: self._finish_setup(task, accepted, connection))

    async def _connect(self, accepted: socket.socket, connection: Connection) -> None:
        """Hands the socket to the protocol, after the TLS handshake if there is one."""

        def make_protocol() -> Protocol:
            protocol = self._make_protocol()
            protocol.on_lost = lambda: self._forget(connection)
            return protocol

        timeouts = {} if self._tls is None else {"ssl_handshake_timeout": IDLE_SECONDS}
        loop = asyncio.get_running_loop()
        connection.transport, connection.protocol = await loop.connect_accepted_socket(
            make_protocol, accepted, ssl=self._tls, **timeouts
        )

    def _finish_setup(
        self, task: "asyncio.Task[None]", accepted: socket.socket, connection: Connection
    ) -> None:
        """Closes the socket of a connection that was not set up."""
        if not task.cancelled() and task.exception() is None:
            return
        accepted.close()
        self._forget(connection)
        if not task.cancelled() and not isinstance(task.exception(), OSError):
            # A failed handshake, an OSError, is the client's affair; anything else is a defect.
            _LOG.error("a connection to the dashboard failed", exc_info=task.exception())

    def _forget(self, connection: Connection) -> None:
        if self._open.get(connection.client) is connection:
            del self._open[connection.client]

    async def _sweep_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep(loop.time())

    def sweep(self, now: float) -> None:
        """Notes which connections are idle, and closes those that have been for too long."""
        for connection in list(self._open.values()):
            if not connection.is_idle():
                connection.idle_since = None
            elif connection.idle_since is None:
                connection.idle_since = now
            elif connection.is_overdue(now):
                connection.abort()


def most_connections() -> int:
    """How many connections the dashboard of this process may hold."""
    if sys.platform == "win32":
        return MOST_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(2, min(MOST_CONNECTIONS, soft // SHARE_OF_DESCRIPTORS))


def find_network(host: str) -> str:
    """What counts as one client: an IPv4 address, or the /64 of an IPv6 address, which one host can fill."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False))


async def follow_files(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Loads the files into the context whenever they change, until cancelled: new connections use them."""
    seen = _look(certificate, key)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        found = _look(certificate, key)
        if found == seen:
            continue
        try:
            # A pair that does not match would leave the context with half of it.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            # Perhaps only one of the two is there yet, so it looks again.
            _LOG.warning("the dashboard keeps its certificate; %s and %s: %s", certificate, key, error)
            continue
        seen = found
        _LOG.info("the dashboard uses the new %s", certificate)


def _look(*paths: Path) -> tuple[tuple[int, int, int], ...]:
    """Changes when a file does."""
    found = (path.stat() for path in paths if path.exists())
    return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)
