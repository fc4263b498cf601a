"""Accepts the dashboard's connections, within limits that keep it from starving its node.

asyncio's own server accepts everything. A thousand silent connections would then use up the process's
descriptors, and the node could open neither a file nor a connection. Here the number of connections is
limited, in total and per client. At the limit, a new connection replaces the one that has been idle longest,
so that silent clients cannot lock others out. What is said over a connection is up to the protocol.
"""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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

Client = tuple[str, int]
"""Address and port of the other end."""
Protocol = Any
"""uvicorn's protocol of one connection."""


@dataclass(slots=True, eq=False)
class Connection:
    """One accepted connection.

    Attributes:
        client: its other end.
        network: what counts as one client, see `find_network`.
        idle_since: since when no request has been in progress; None during one.
        task: sets the connection up; done after the TLS handshake.
        transport: None before that.
        protocol: None before that.
    """

    client: Client
    network: str
    idle_since: float | None
    task: "asyncio.Task[None] | None" = None
    transport: asyncio.Transport | None = None
    protocol: Protocol = None

    def is_idle(self) -> bool:
        """Whether no request is in progress."""
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
    """The connections of one listener.

    Args:
        listener: a listening socket, owned by the caller.
        make_protocol: returns the protocol of a new connection.
        tls: context for TLS, or None.
        most: connections in total.
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
