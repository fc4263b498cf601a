"""All members of a federation run the same experiment: every call says which, and that of another is refused.

Each part of the experiment file has a digest of its own, so that a refusal can name the parts that differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.grpc_transport import Calls, Handler, Method
from cfel.deployment.transport.messages import Message
from cfel.errors import NotAdmittedError

_FIELD = "experiment"


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a member says and expects.

    Attributes:
        parts: digest of each part of the experiment that members have to share.
    """

    parts: Mapping[str, str]

    def said_in(self, calls: Calls) -> Calls:
        """Calls that say which experiment they are about."""
        return _Saying(calls, self.parts)

    def expected_of(self, methods: Mapping[str, Method]) -> dict[str, Method]:
        """Methods that answer only members with the same experiment; an operator needs none."""
        return {
            name: replace(method, handle=self._checked(method.handle)) if _is_members(method) else method
            for name, method in methods.items()
        }

    def _checked(self, handle: Handler) -> Handler:
        async def checked(caller: Identity, message: Message) -> Message:
            header = dict(message.header)
            told = header.pop(_FIELD, None)
            if told != self.parts:
                raise NotAdmittedError(f"{caller} runs another experiment: {self._differing(told)}")
            return await handle(caller, replace(message, header=header))

        return checked

    def _differing(self, told: object) -> str:
        if not isinstance(told, dict):
            return "it does not say which"
        everything = sorted(map(str, self.parts.keys() | told.keys()))
        names = [name for name in everything if _said(self.parts, name) != _said(told, name)]
        return f"{', '.join(names)} differ" if len(names) > 1 else f"{names[0]} differs"


def _said(parts: Mapping[Any, Any], name: str) -> tuple[bool, Any]:
    return name in parts, parts.get(name)


def _is_members(method: Method) -> bool:
    return "operator" not in method.roles


class _Saying:
    def __init__(self, calls: Calls, parts: Mapping[str, str]) -> None:
        self._calls, self._parts = calls, parts

    async def call(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        """See `Calls`."""
        said = replace(message, header={**message.header, _FIELD: self._parts})
        return await self._calls.call(to, method, said, seconds)
