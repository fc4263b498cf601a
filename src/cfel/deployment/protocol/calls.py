"""Typed calls: a request goes to a node, its answer comes back; bytes are left to a `Client`.

`Calls` is what the roles use, `Endpoint` what they offer. Both ends name a method by the type of its request,
so a caller gets the answer type that belongs to it. `Client` is a node's door to the network: gRPC in
`grpc_transport`, memory in tests.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args

import msgspec

from cfel.deployment.protocol.messages import (
    MOST_HEADER_BYTES,
    SMALL_HEADER_BYTES,
    Message,
    from_message,
    to_message,
)
from cfel.deployment.security.identity import Identity, Role
from cfel.errors import InvalidAnswerError, NotAdmittedError, RejectedError, UnreachableError

_LOOK_SECONDS = 0.1
Answer = TypeVar("Answer", covariant=True)
Value = TypeVar("Value")

OnRejection = Callable[[Identity | None, str, str], None]
"""Called with every rejection: the caller (if known), the method and the reason."""


class Request(msgspec.Struct, Generic[Answer], frozen=True, kw_only=True, omit_defaults=True):
    """Asks for an `Answer`; each remote method has a subclass."""

    method: ClassVar[str]  # its name on the wire
    callers: ClassVar[tuple[Role, ...]]  # roles that may call it
    # Whether request or answer may be large, so that it must not delay others.
    is_transfer: ClassVar[bool] = False
    # Digest of each part of the caller's experiment, see `ExperimentCheck`.
    experiment: dict[str, str] = {}


AnyRequest = Request[Any]
Kind = TypeVar("Kind", bound=AnyRequest)


def answer_type(request: type[Request[Answer]]) -> type[Answer]:
    """What a method answers with."""
    (base,) = request.__orig_bases__  # type: ignore[attr-defined]
    (answer,) = get_args(base)
    return answer  # type: ignore[no-any-return]


class Client(Protocol):
    """How a node sends messages to others: its door to the network."""

    async def send(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        """Sends a message and waits for the answer.

        Raises:
            RejectedError: the other side rejected it and said why.
            UnreachableError: the other side could not be reached, or did not answer in time.
        """
        ...


class Calls(Protocol):
    """How a node calls others."""

    async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
        """Sends a request and waits for its answer.

        Raises:
            RejectedError: the other side rejected it and said why.
            InvalidAnswerError: the other side answered with what is no such answer.
            UnreachableError: the other side could not be reached, or did not answer in time.
        """
        ...


@dataclass(frozen=True, slots=True)
class RemoteCalls:
    """Calls over a network; each names the caller's experiment."""

    client: Client
    experiment: Mapping[str, str] = field(default_factory=dict)

    async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
        """See `Calls`."""
        named = msgspec.structs.replace(request, experiment=dict(self.experiment))
        message = await self.client.send(to, request.method, to_message(named), seconds)
        try:
            return from_message(message, answer_type(type(request)))
        except RejectedError as error:
            raise InvalidAnswerError(str(error)) from error


async def give_up_if(is_pointless: Callable[[], bool], why: str, call: Coroutine[Any, Any, Answer]) -> Answer:
    """The answer to a call, unless waiting for it becomes pointless first.

    Raises:
        UnreachableError: it did.
    """
    task = asyncio.ensure_future(call)
    # Should the caller be cancelled just when the call fails, nobody else would look at its exception.
    task.add_done_callback(lambda each: each.cancelled() or each.exception())
    try:
        while not task.done():
            if is_pointless():
                raise UnreachableError(why)
            await asyncio.wait([task], timeout=_LOOK_SECONDS)
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def gather_or_cancel(calls: Iterable[Coroutine[Any, Any, Value]]) -> list[Value]:
    """The results of all calls, in their order; if one fails, the others have ended when it is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


Handler = Callable[[Identity, Any], Awaitable[Any]]
"""(caller, request) → answer; raises `RejectedError` to reject."""

OnInvalid = Callable[[Identity, bytes], Awaitable[None]]
"""Called with the header of a request that could not be decoded, before its caller hears of it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method that a node offers; see `serve`."""

    request: type[AnyRequest]  # what it takes
    handle: Handler  # what it does
    most_bytes: int = 0  # largest body that it accepts
    on_invalid: OnInvalid | None = None  # called when a request cannot be decoded

    @property
    def most_header_bytes(self) -> int:
        """Largest header that it accepts."""
        return MOST_HEADER_BYTES if self.request.callers == ("edge",) else SMALL_HEADER_BYTES

    def check_caller(self, caller: Identity) -> None:
        """Raises `RejectedError` if the method is not for the caller's role."""
        if caller.role not in self.request.callers:
            raise RejectedError(f"{self.request.method!r} is not for a {caller.role}")

    async def answer(self, caller: Identity, message: Message) -> Message:
        """Answers a message."""
        try:
            request = from_message(message, self.request)
        except RejectedError:
            if self.on_invalid is not None:
                await self.on_invalid(caller, message.header)
            raise
        return to_message(await self.handle(caller, request))


def serve(
    request: type[Kind],
    handle: Callable[[Identity, Kind], Awaitable[Any]],
    most_bytes: int = 0,
    on_invalid: OnInvalid | None = None,
) -> Endpoint:
    """An endpoint whose handler takes this type of request."""
    return Endpoint(request, handle, most_bytes, on_invalid)


# Parts of an experiment; none has more, and others are not worth sorting.
_MOST_PARTS = 100


@dataclass(frozen=True, slots=True)
class ExperimentCheck:
    """Which experiment a node runs: it says so in its calls (`RemoteCalls`) and expects the same of callers.

    Each part of the experiment file has its own digest, so that a rejection can name the parts that differ.

    Attributes:
        parts: digest of each part of the experiment that all nodes must share.
    """

    parts: Mapping[str, str]

    def check_endpoints(self, endpoints: Iterable[Endpoint]) -> list[Endpoint]:
        """Makes endpoints reject callers with another experiment, except those open to operators."""
        return [each if "operator" in each.request.callers else self._check_first(each) for each in endpoints]

    def _check_first(self, endpoint: Endpoint) -> Endpoint:
        async def check_and_handle(caller: Identity, request: AnyRequest) -> Any:  # noqa: ANN401 — any answer
            if request.experiment != self.parts:
                difference = self._describe_difference(request.experiment)
                raise NotAdmittedError(f"{caller} runs another experiment: {difference}")
            return await endpoint.handle(caller, request)

        return replace(endpoint, handle=check_and_handle)

    def _describe_difference(self, named: Mapping[str, str]) -> str:
        if not named:
            return "it does not say which"
        if len(named) > _MOST_PARTS:
            return f"it names {len(named)} parts"
        everything = sorted(self.parts.keys() | named.keys())
        names = [name for name in everything if self.parts.get(name) != named.get(name)]
        return f"{', '.join(names)} differ" if len(names) > 1 else f"{names[0]} differs"
