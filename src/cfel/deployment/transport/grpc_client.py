"""How a node calls others over gRPC; see `grpc_transport.Client`."""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio

from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.security.credentials import Credentials, CredentialSource
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.connections import ConnectionParameters, device_connections
from cfel.deployment.transport.grpc_transport import CODES, SERVICE
from cfel.deployment.transport.messages import Message, join_message, split_message
from cfel.errors import DeploymentError, InvalidAnswerError, RejectedError, UnreachableError
from cfel.wording import escape_control

# A busy server is worth another try, so its caller sees it as one that did not answer.
_ERRORS: Mapping[grpc.StatusCode, type[DeploymentError]] = {
    **{code: kind for kind, code in CODES},
    grpc.StatusCode.RESOURCE_EXHAUSTED: UnreachableError,
    # It may be renewed at any moment.
    grpc.StatusCode.UNAUTHENTICATED: UnreachableError,
    grpc.StatusCode.UNIMPLEMENTED: RejectedError,
}


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
        self._addresses, self._kept = addresses, (control, transfer or control)
        self._channels = self._connect(credentials.current())
        self._retired: set[asyncio.Task[None]] = set()

    def _connect(self, credentials: Credentials) -> _Channels:
        return _Channels(credentials, self._addresses, *self._kept)

    async def send(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        """See `Client`."""
        channels = self._choose_channels()
        with channels.hold_call():
            try:
                kind = channels.transfer if method in self._transfer_methods else channels.control
                ask = kind[to].stream_stream(f"/{SERVICE}/{method}")
                return await join_message(ask(split_message(message), timeout=seconds), self._most_bytes)
            except grpc.aio.AioRpcError as error:
                kind_of_error = _ERRORS.get(error.code(), UnreachableError)
                # The details are the words of another node, and end up in logs and on terminals.
                raise kind_of_error(f"{to}, {method}: {escape_control(error.details() or '')}") from error
            except RejectedError as error:
                raise InvalidAnswerError(str(error)) from error

    def _choose_channels(self) -> _Channels:
        """Those with the present credentials; earlier ones are closed after their last call."""
        found = self._credentials.current()
        if found is not self._channels.credentials:
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
