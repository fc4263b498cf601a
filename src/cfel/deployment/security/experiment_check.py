"""Checks that all nodes of a federation run the same experiment: every request names it, others are rejected.

Each part of the experiment file has its own digest, so that a rejection can name the parts that differ.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cfel.deployment.protocol.calls import AnyRequest, Endpoint
from cfel.deployment.security.identity import Identity
from cfel.errors import NotAdmittedError

# No experiment has more; others are not worth sorting.
_MOST_PARTS = 100


@dataclass(frozen=True, slots=True)
class ExperimentCheck:
    """Which experiment a node runs: it says so in its calls (`RemoteCalls`) and expects the same of callers.

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
