"""Messages between nodes over gRPC, with certificates on both sides: the real network behind `calls.Client`.

A node is called by identity and method with a message and answers with one, or the call fails with a reason.
Misspelt names of gRPC's options are ignored silently, so all of them are here and tested by what they do.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
import grpc.aio

from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.protocol.addresses import check_free
from cfel.deployment.protocol.calls import Endpoint, OnRejection
from cfel.deployment.protocol.messages import (
    OLDEST_VERSION,
    PROTOCOL_VERSION,
    Message,
    join_message,
    split_message,
)
from cfel.deployment.security.credentials import Credentials, CredentialSource, Revocations
from cfel.deployment.security.identity import Authenticator, ExpiredError, Identity
from cfel.deployment.security.limits import (
    MOST_OPEN_CALLS,
    AdmittedCall,
    BusyError,
    RateLimiter,
    TooSlowError,
    shorten,
)
from cfel.errors import (
    DeploymentError,
    InvalidAnswerError,
    NotAdmittedError,
    RejectedError,
    StaleTermError,
    UnreachableError,
    VersionError,
)
from cfel.wording import escape_control

if sys.platform != "win32":
    import resource

Options = tuple[tuple[str, int], ...]

# A TLS handshake over a slow link shares it with a transfer; between edge servers it is quick.
DEVICE_CONNECT_SECONDS = 15.0
EDGE_CONNECT_SECONDS = 5.0
# An edge server whose control connection does not answer for this many election timeouts is not a member
# that could vote in time, so the connection is opened again.
_ELECTION_TIMEOUTS = 1.5
# The dashboard takes up to an eighth, the rest is for files and the node's own calls.
_SHARE_OF_FILES = 0.75
_MOST_CONNECTIONS = 1_000_000
# Nobody here compresses messages; a few bytes would become megabytes before they are looked at.
_UNCOMPRESSED: Options = (("grpc.per_message_decompression", 0),)


@dataclass(frozen=True, slots=True)
class ConnectionParameters:
    """How long a connection may be silent."""

    keepalive_seconds: float  # silence after which the other side is asked for a sign of life
    # Silence after that which ends the connection; it must cover a round trip and what is in flight ahead of
    # the answer.
    keepalive_timeout_seconds: float
    # What a connection may take to be made, TLS handshake included.
    connect_seconds: float = EDGE_CONNECT_SECONDS

    def client_options(self) -> Options:
        """For one channel of a client."""
        return (
            *_UNCOMPRESSED,
            *self._keepalive_options(),
            # The smallest backoff is also what a connection may take; a restarted server is found soon.
            ("grpc.min_reconnect_backoff_ms", _milliseconds(self.connect_seconds)),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            # Channels with the same options would share one connection; see `GrpcClient`.
            ("grpc.use_local_subchannel_pool", 1),
        )

    def server_options(self) -> Options:
        """For a server."""
        return (
            *_UNCOMPRESSED,
            *self._keepalive_options(),
            # Without these a server evicts healthy clients for pinging too often.
            ("grpc.http2.min_ping_interval_without_data_ms", 300),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", _milliseconds(DEVICE_CONNECT_SECONDS)),
            # Connections are renewed every hour, so that callers check the server's certificate again, too.
            ("grpc.max_connection_age_ms", 3_600_000),
            ("grpc.max_concurrent_streams", MOST_OPEN_CALLS),
            ("grpc.max_allowed_incoming_connections", most_connections()),
        )

    def _keepalive_options(self) -> Options:
        # Any bytes that arrive end the wait of `keepalive_timeout_ms`, but only the answer itself ends that
        # of `ping_timeout_ms`; a frozen peer is noticed only with both.
        timeout = _milliseconds(self.keepalive_timeout_seconds)
        return (
            ("grpc.keepalive_time_ms", _milliseconds(self.keepalive_seconds)),
            ("grpc.keepalive_timeout_ms", timeout),
            ("grpc.http2.ping_timeout_ms", timeout),
            ("grpc.keepalive_permit_without_calls", 1),
        )


def most_connections() -> int:
    """How many connections a server accepts: strangers must leave it descriptors for its own files."""
    if sys.platform == "win32":
        return _MOST_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(1, min(_MOST_CONNECTIONS, int(_SHARE_OF_FILES * soft)))


def device_connections(parameters: DeploymentParameters) -> ConnectionParameters:
    """Between a device and its edge server."""
    return ConnectionParameters(
        parameters.keepalive_seconds, parameters.keepalive_timeout_seconds, DEVICE_CONNECT_SECONDS
    )


def transfer_connections(parameters: DeploymentParameters) -> ConnectionParameters:
    """Between edge servers, for models."""
    return ConnectionParameters(parameters.keepalive_seconds, parameters.keepalive_timeout_seconds)


def control_connections(parameters: DeploymentParameters) -> ConnectionParameters:
    """Between edge servers, for everything but models: dead connections must not delay an election."""
    most = max(1.0, _ELECTION_TIMEOUTS * parameters.election_seconds)
    return ConnectionParameters(
        min(parameters.keepalive_seconds, most), min(parameters.keepalive_timeout_seconds, most)
    )


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))


_LOG = logging.getLogger(__name__)

# From the special to the general: the first that fits an error is its code.
CODES: tuple[tuple[type[RejectedError], grpc.StatusCode], ...] = (
    (BusyError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ExpiredError, grpc.StatusCode.UNAUTHENTICATED),
    (StaleTermError, grpc.StatusCode.FAILED_PRECONDITION),
    (VersionError, grpc.StatusCode.OUT_OF_RANGE),
    (NotAdmittedError, grpc.StatusCode.PERMISSION_DENIED),
    (RejectedError, grpc.StatusCode.INVALID_ARGUMENT),
)
SERVICE = "cfel.Federation"
FINISH_SECONDS = 5.0
_MOMENT_SECONDS = 0.02


class GrpcServer:
    """Serves methods to nodes with a certificate of the same authority.

    Args:
        credentials: the server's own; new handshakes follow when they change.
        endpoints: what it offers.
        on_rejection: called with every rejection.
        parameters: how slowly a request may arrive, and how much one node may ask at once.
    """

    def __init__(
        self,
        credentials: CredentialSource,
        endpoints: Iterable[Endpoint],
        on_rejection: OnRejection,
        parameters: DeploymentParameters | None = None,
    ) -> None:
        self._credentials, self._served = credentials, credentials.current()
        revocations = Revocations(
            self._served.revoked, lambda problem: on_rejection(None, "every call", problem)
        )
        self._authenticator = Authenticator(revocations)
        self._on_rejection = on_rejection
        self._parameters = parameters or DeploymentParameters()
        limits = self._parameters
        self._rate_limiter = RateLimiter(limits.calls_per_second, limits.bytes_in_flight)
        self._server = grpc.aio.server(options=device_connections(limits).server_options())
        handlers = {
            each.request.method: grpc.stream_stream_rpc_method_handler(self._serve(each))
            for each in endpoints
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def start(self, address: str) -> int:
        """Listens; returns the port."""
        check_free(address)
        secure = grpc.dynamic_ssl_server_credentials(
            _configure(self._served), self._find_configuration, require_client_authentication=True
        )
        try:
            port: int = self._server.add_secure_port(address, secure)
        except RuntimeError as error:
            raise DeploymentError(f"cannot listen on {address}: {error}") from error
        await self._server.start()
        return port

    def _find_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """What a new handshake uses; None for the same as before. Called by threads of gRPC."""
        found = self._credentials.current()
        if found is self._served:
            return None
        self._served = found
        return _configure(found)

    async def stop(self, grace_seconds: float) -> None:
        """Accepts no new calls, and ends open ones after a while."""
        await self._server.stop(grace_seconds)

    def _serve(self, endpoint: Endpoint) -> Callable[..., AsyncIterator[bytes]]:
        name = endpoint.request.method

        async def serve(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:  # noqa: ANN401
            caller: Identity | None = None
            # A call counts as open until its answer is taken.
            with ExitStack() as until_the_end:
                try:
                    caller = self._identify(context)
                    admitted = until_the_end.enter_context(self._rate_limiter.admit(caller))
                    # After the quota, so that calls that are not allowed count as well.
                    endpoint.check_caller(caller)
                    message = await self._receive(requests, endpoint, admitted)
                    answer = await endpoint.answer(caller, message)
                    # A caller that does not read its answers would keep old models in memory.
                    admitted.add_body(len(answer.body))
                except RejectedError as error:
                    await self._reject(context, requests, (caller, name, error))
                    return
                except UnreachableError as error:
                    # The node has just ended, or needs another one that does not answer.
                    _LOG.info("%s of %s: %s", name, caller, error)
                    await context.abort(grpc.StatusCode.UNAVAILABLE, shorten(str(error)))
                except Exception as error:  # noqa: BLE001 — logged with its trace; the server keeps running
                    _LOG.exception("%s of %s failed", name, caller)
                    await context.abort(grpc.StatusCode.INTERNAL, shorten(f"failed: {error!r}"))
                for piece in split_message(replace(answer, version=message.version)):
                    yield piece

        return serve

    async def _receive(
        self, requests: AsyncIterator[bytes], endpoint: Endpoint, admitted: AdmittedCall
    ) -> Message:
        """Receives a whole request; the larger its body, the longer it may take."""
        parameters = self._parameters
        begin = asyncio.get_running_loop().time()

        def extend(body_bytes: int) -> None:
            admitted.add_body(body_bytes)
            if not limit.expired():
                limit.reschedule(begin + parameters.transfer_seconds(body_bytes))

        try:
            async with asyncio.timeout(parameters.receive_seconds) as limit:
                return await join_message(requests, endpoint.most_bytes, extend, endpoint.most_header_bytes)
        except TimeoutError as error:
            raise TooSlowError("the request came too slowly") from error

    async def _reject(
        self,
        context: Any,  # noqa: ANN401
        requests: AsyncIterator[bytes],
        rejection: tuple[Identity | None, str, RejectedError],
    ) -> None:
        caller, name, error = rejection
        # A caller that dies in the middle shows as half a message first, and as gone a moment later.
        await asyncio.sleep(_MOMENT_SECONDS)
        if context.cancelled():
            return
        reason = shorten(str(error))
        self._on_rejection(caller, name, reason)
        if not isinstance(error, BusyError | TooSlowError):
            await _drain(requests)
        await context.abort(next(code for kind, code in CODES if isinstance(error, kind)), reason)

    def _identify(self, context: Any) -> Identity:  # noqa: ANN401
        (certificate,) = context.auth_context()["x509_pem_cert"]
        return self._authenticator.identify(certificate)


def _configure(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    pair = (credentials.key, credentials.certificate)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=credentials.authority)


async def _drain(requests: AsyncIterator[bytes]) -> None:
    """Reads the rest of a rejected request for a while: its sender reads the reason only after that."""
    try:
        async with asyncio.timeout(FINISH_SECONDS):
            async for _ in requests:
                pass
    except TimeoutError:
        return


# A busy server is worth another try, so its caller sees it as one that did not answer.
_ERRORS: Mapping[grpc.StatusCode, type[DeploymentError]] = {
    **{code: kind for kind, code in CODES},
    grpc.StatusCode.RESOURCE_EXHAUSTED: UnreachableError,
    # It may be renewed at any moment.
    grpc.StatusCode.UNAUTHENTICATED: UnreachableError,
    grpc.StatusCode.UNIMPLEMENTED: RejectedError,
}


def _choose_error(error: grpc.aio.AioRpcError) -> type[DeploymentError]:
    # Version 6 had no code for this. Nothing else that a node says begins so.
    is_version = (error.details() or "").startswith("protocol version ")
    if is_version and error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return VersionError
    return _ERRORS.get(error.code(), UnreachableError)


class _Channels:
    """The connections of a client with the same credentials; a channel connects when it is first used.

    Args:
        credentials: the caller's own.
        addresses: "host:port" of every server.
        control: how connections for small calls are kept.
        transfer: how connections for large bodies are kept.
    """

    def __init__(
        self,
        credentials: Credentials,
        addresses: Mapping[Identity, str],
        control: ConnectionParameters,
        transfer: ConnectionParameters,
    ) -> None:
        self.credentials = credentials
        secure = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)

        def connect(kept: ConnectionParameters) -> dict[Identity, Any]:
            return {
                to: grpc.aio.secure_channel(
                    address,
                    secure,
                    options=(*kept.client_options(), ("grpc.ssl_target_name_override", to.host)),
                )
                for to, address in addresses.items()
            }

        self.control, self.transfer = connect(control), connect(transfer)
        self._calls = 0
        self._idle = asyncio.Event()

    @contextmanager
    def hold_call(self) -> Iterator[None]:
        """Counts a call as open until the context ends."""
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def close_when_idle(self) -> None:
        """Closes all connections after the last call; gRPC would cancel calls under way."""
        if self._calls:
            await self._idle.wait()
        await self.close()

    async def close(self) -> None:
        """Closes all connections."""
        for channel in (*self.control.values(), *self.transfer.values()):
            await channel.close()


class GrpcClient:
    """Sends messages to servers by identity; see `Client`.

    Models and uploads have a connection of their own: on a slow link, small calls would wait behind them in
    the buffers of a shared one. A channel keeps its certificate, so new credentials need new channels.

    Args:
        credentials: the caller's own; new calls follow when they change.
        addresses: "host:port" of every server.
        most_bytes: largest body of an answer.
        control: how connections for small calls are kept; by default as those of a device.
        transfer: how connections for large bodies are kept; by default as those for small calls.
        transfer_methods: methods with large bodies.
    """

    def __init__(
        self,
        credentials: CredentialSource,
        addresses: Mapping[Identity, str],
        most_bytes: int,
        control: ConnectionParameters | None = None,
        transfer: ConnectionParameters | None = None,
        transfer_methods: Collection[str] = (),
    ) -> None:
        self._most_bytes, self._transfer_methods = most_bytes, transfer_methods
        control = control or device_connections(DeploymentParameters())
        self._credentials = credentials
        self._addresses, self._kept = dict(addresses), (control, transfer or control)
        self._stale = False
        self._channels = self._connect(credentials.current())
        # Of servers that speak another than this node's.
        self._versions: dict[Identity, int] = {}
        self._retired: set[asyncio.Task[None]] = set()

    def _connect(self, credentials: Credentials) -> _Channels:
        return _Channels(credentials, self._addresses, *self._kept)

    def reach(self, server: Identity, address: str) -> None:
        """Has calls to a server go to an address, as of one that has joined later."""
        if address and self._addresses.get(server) != address:
            self._addresses[server], self._stale = address, True

    async def send(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        """See `Client`."""
        if to not in self._addresses:
            raise UnreachableError(f"{to}, {method}: its address is not known")
        known = self._versions.get(to, PROTOCOL_VERSION)
        try:
            return await self._send(to, method, replace(message, version=known), seconds)
        except VersionError:
            # The other side was upgraded since, or has not been yet.
            other = OLDEST_VERSION if known == PROTOCOL_VERSION else PROTOCOL_VERSION
            answer = await self._send(to, method, replace(message, version=other), seconds)
            self._versions[to] = other
            return answer

    async def _send(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        channels = self._choose_channels()
        with channels.hold_call():
            try:
                kind = channels.transfer if method in self._transfer_methods else channels.control
                ask = kind[to].stream_stream(f"/{SERVICE}/{method}")
                return await join_message(ask(split_message(message), timeout=seconds), self._most_bytes)
            except grpc.aio.AioRpcError as error:
                kind_of_error = _choose_error(error)
                # The details are the words of another node, and end up in logs and on terminals.
                raise kind_of_error(f"{to}, {method}: {escape_control(error.details() or '')}") from error
            except RejectedError as error:
                raise InvalidAnswerError(str(error)) from error

    def _choose_channels(self) -> _Channels:
        """Those with the present credentials; earlier ones are closed after their last call."""
        found = self._credentials.current()
        if found is not self._channels.credentials or self._stale:
            self._stale = False
            task = asyncio.create_task(self._channels.close_when_idle())
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)
            self._channels = self._connect(found)
        return self._channels

    async def close(self) -> None:
        """Closes all connections."""
        for task in self._retired:
            task.cancel()
        await self._channels.close()
