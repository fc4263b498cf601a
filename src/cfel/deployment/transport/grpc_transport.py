"""Messages between nodes over gRPC, with certificates on both sides: the server, and what both sides share.

A node is called by identity and method with a message and answers with one, or the call fails with a reason.
`Client` is what `protocol.calls` builds on; a test may put memory in its place. `grpc_client` is the real
one. Nothing here knows what the messages mean.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio

from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.security.credentials import Credentials, CredentialSource
from cfel.deployment.security.identity import Authenticator, ExpiredError, Identity, Role
from cfel.deployment.security.limits import AdmittedCall, BusyError, RateLimiter, TooSlowError
from cfel.deployment.security.rejections import shorten
from cfel.deployment.security.revocations import Revocations
from cfel.deployment.transport.addresses import check_free
from cfel.deployment.transport.connections import device_connections
from cfel.deployment.transport.messages import MOST_HEADER_BYTES, Message, join_message, split_message
from cfel.errors import DeploymentError, NotAdmittedError, RejectedError, StaleTermError, UnreachableError

_LOG = logging.getLogger(__name__)

Handler = Callable[[Identity, Message], Awaitable[Message]]
"""(caller, message) → answer; raises `RejectedError` to reject."""

OnRejection = Callable[[Identity | None, str, str], None]
"""Called with every rejection: the caller (if known), the method and the reason."""

# From the special to the general: the first that fits an error is its code.
CODES: tuple[tuple[type[RejectedError], grpc.StatusCode], ...] = (
    (BusyError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ExpiredError, grpc.StatusCode.UNAUTHENTICATED),
    (StaleTermError, grpc.StatusCode.FAILED_PRECONDITION),
    (NotAdmittedError, grpc.StatusCode.PERMISSION_DENIED),
    (RejectedError, grpc.StatusCode.INVALID_ARGUMENT),
)
SERVICE = "cfel.Federation"
FINISH_SECONDS = 5.0
_MOMENT_SECONDS = 0.02


class Client(Protocol):
    """How a node sends messages to others."""

    async def send(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        """Sends a message and waits for the answer.

        Raises:
            RejectedError: the other side rejected it and said why.
            UnreachableError: the other side could not be reached, or did not answer in time.
        """
        ...


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a server.

    Attributes:
        roles: who may call it.
        handle: what it does.
        most_bytes: largest body it accepts.
        most_header_bytes: largest header it accepts.
    """

    roles: tuple[Role, ...]
    handle: Handler
    most_bytes: int = 0
    most_header_bytes: int = MOST_HEADER_BYTES


class GrpcServer:
    """Serves methods to nodes with a certificate of the same authority.

    Args:
        credentials: the server's own; new handshakes follow when they change.
        methods: by name.
        on_rejection: called with every rejection.
        parameters: how slowly a request may arrive, and how much one node may ask at once.
    """

    def __init__(
        self,
        credentials: CredentialSource,
        methods: Mapping[str, Method],
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
            name: grpc.stream_stream_rpc_method_handler(self._serve(name, method))
            for name, method in methods.items()
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

    def _serve(self, name: str, method: Method) -> Callable[..., AsyncIterator[bytes]]:
        async def serve(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:  # noqa: ANN401
            caller: Identity | None = None
            # A call counts as open until its answer is taken.
            with ExitStack() as until_the_end:
                try:
                    caller = self._identify(context)
                    admitted = until_the_end.enter_context(self._rate_limiter.admit(caller))
                    # After the quota, so that calls that are not allowed count as well.
                    _admit(caller, name, method)
                    message = await self._receive(requests, method, admitted)
                    answer = await method.handle(caller, message)
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
                for piece in split_message(answer):
                    yield piece

        return serve

    async def _receive(
        self, requests: AsyncIterator[bytes], method: Method, admitted: AdmittedCall
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
                return await join_message(requests, method.most_bytes, extend, method.most_header_bytes)
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


def _admit(caller: Identity, name: str, method: Method) -> None:
    if caller.role not in method.roles:
        raise RejectedError(f"{name!r} is not for a {caller.role}")
