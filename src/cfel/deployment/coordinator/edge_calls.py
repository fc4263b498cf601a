"""What a coordinator asks of the edge servers, for as long as its term lasts."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cfel.deployment.positions import Position
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.grpc_transport import Calls
from cfel.deployment.transport.messages import Message
from cfel.errors import DeploymentError, NotAdmittedError, RejectedError, UnreachableError

_LOG = logging.getLogger(__name__)
TRY_AGAIN_SECONDS = 0.2
QUICK_SECONDS = 2.0

Header = Mapping[str, Any]
"""What an edge server answered; no answer has a body."""


class DeposedError(DeploymentError):
    """This coordinator's term is over."""


class TermCalls:
    """Calls to edge servers in the name of one term.

    Args:
        term: of office.
        clusters: how many edge servers there are.
        calls: how they are reached.
        still_leads: whether the caller still may act.
        grace_seconds: what an edge server may itself wait for others, beyond any deadline.

    Attributes:
        missing: edge servers that missed a deadline, or turn it away, and have not answered since.
    """

    def __init__(
        self, term: int, clusters: int, calls: Calls, still_leads: Callable[[], bool], grace_seconds: float
    ) -> None:
        self._term, self._calls, self._in_office = term, calls, still_leads
        self._edges, self._grace_seconds = range(clusters), grace_seconds
        self.missing: set[int] = set()
        # Those of whom it has been said, which is enough while they are asked again and again.
        self._silent: set[int] = set()

    def present(self) -> list[int]:
        """Edge servers that are not missing."""
        return [i for i in self._edges if i not in self.missing]

    async def ask_all(
        self,
        method: str,
        at: Position,
        seconds: float,
        fields: Mapping[str, Any],
        only: Iterable[int] | None = None,
    ) -> dict[int, Header]:
        """Asks edge servers until each has answered or the deadline is over; those that did.

        One that missed a deadline is asked only once from then on, until it answers again.
        """
        # What an edge server itself waits for others comes on top.
        deadline = time.monotonic() + seconds + self._grace_seconds
        message = Message({"term": self._term, "at": at, **fields})
        edges = list(self._edges if only is None else only)
        answers = await asyncio.gather(*(self._ask(i, method, message, deadline) for i in edges))
        return {i: each for i, each in zip(edges, answers, strict=True) if each is not None}

    async def _ask(self, edge: int, method: str, message: Message, deadline: float) -> Header | None:
        while True:
            if not self._in_office():
                raise DeposedError(f"term {self._term} is over")
            left = max(deadline - time.monotonic(), QUICK_SECONDS)
            try:
                answer = await self._calls.call(Identity("edge", edge), method, message, left)
            except RejectedError as error:
                if "stale term" in str(error):
                    raise DeposedError(str(error)) from error
                _LOG.warning("%s: %s", method, error)
                if isinstance(error, NotAdmittedError):
                    self.missing.add(edge)
                return None
            except UnreachableError as error:
                if edge in self.missing or time.monotonic() > deadline:
                    _LOG.warning("%s: edge server %d is left out: %s", method, edge, error)
                    self.missing.add(edge)
                    return None
                await asyncio.sleep(TRY_AGAIN_SECONDS)
                continue
            self.missing.discard(edge)
            return answer.header

    async def ask_once(
        self, method: str, fields: Mapping[str, Any], seconds: float, only: Iterable[int] | None = None
    ) -> dict[int, Header]:
        """Asks edge servers without patience; those that answered."""

        async def ask(edge: int) -> Header | None:
            try:
                answer = await self._calls.call(Identity("edge", edge), method, Message(fields), seconds)
            except (UnreachableError, RejectedError) as error:
                if edge not in self._silent:
                    _LOG.info("%s: %s", method, error)
                self._silent.add(edge)
                return None
            self._silent.discard(edge)
            return answer.header

        if not self._in_office():
            raise DeposedError(f"term {self._term} is over")
        edges = list(self._edges if only is None else only)
        answers = await asyncio.gather(*(ask(i) for i in edges))
        return {i: each for i, each in zip(edges, answers, strict=True) if each is not None}
