"""An endpoint that answers messages as they are, for tests of transports: what they mean does not matter."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from cfel.deployment.protocol.calls import Endpoint
from cfel.deployment.protocol.messages import Message
from cfel.deployment.security.identity import Identity, Role


class _RawEndpoint(Endpoint):
    async def answer(self, caller: Identity, message: Message) -> Message:
        answer: Message = await self.handle(caller, message)
        return answer


def raw_endpoint(
    name: str,
    callers: tuple[Role, ...],
    handle: Callable[[Identity, Message], Awaitable[Message]],
    most_bytes: int = 0,
) -> Endpoint:
    """An endpoint of this name for these roles."""
    return _RawEndpoint(cast(Any, SimpleNamespace(method=name, callers=callers)), handle, most_bytes)
