"""Checks that all nodes of a federation run the same experiment: every call names it, others are rejected.

Each part of the experiment file has its own digest, so that a rejection can name the parts that differ.
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
class ExperimentCheck:
    """Which experiment a node runs: it says so in its calls and expects the same of callers.

    Attributes:
        parts: digest of each part of the experiment that all nodes must share.
    """

    parts: Mapping[str, str]

    def add_to_calls(self, calls: Calls) -> Calls:
        """Makes every call name the experiment."""
        return _CallsWithExperiment(calls, self.parts)

    def check_methods(self, methods: Mapping[str, Method]) -> dict[str, Method]:
        """Makes methods reject callers with another experiment; those open to operators stay as they are."""
        return {
            name: replace(method, handle=self._check_first(method.handle))
            if "operator" not in method.roles
            else method
            for name, method in methods.items()
        }

    def _check_first(self, handle: Handler) -> Handler:
        async def check_and_handle(caller: Identity, message: Message) -> Message:
            header = dict(message.header)
            named = header.pop(_FIELD, None)
            if named != self.parts:
                raise NotAdmittedError(
                    f"{caller} runs another experiment: {self._describe_difference(named)}"
                )
            return await handle(caller, replace(message, header=header))

        return check_and_handle

    def _describe_difference(self, named: object) -> str:
        if not isinstance(named, dict):
            return "it does not say which"
        everything = sorted(map(str, self.parts.keys() | named.keys()))
        names = [name for name in everything if _entry(self.parts, name) != _entry(named, name)]
        return f"{', '.join(names)} differ" if len(names) > 1 else f"{names[0]} differs"


def _entry(parts: Mapping[Any, Any], name: str) -> tuple[bool, Any]:
    """A part's digest; tells a part that is missing from one that is None."""
    return name in parts, parts.get(name)


class _CallsWithExperiment:
    def __init__(self, calls: Calls, parts: Mapping[str, str]) -> None:
        self._calls, self._parts = calls, parts

    async def call(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        """See `Calls`."""
        named = replace(message, header={**message.header, _FIELD: self._parts})
        return await self._calls.call(to, method, named, seconds)
