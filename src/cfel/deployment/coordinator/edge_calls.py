"""How a coordinator calls the edge servers: retries, deadlines, and who is missing.

Before every call it checks that the term has not ended. Edge servers that do not answer in time are left out.
What is called, and what the answers mean, is up to `coordinator`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from cfel.deployment.protocol.calls import Answer, Calls, Request, gather_or_cancel, give_up_if
from cfel.deployment.protocol.coordinator_requests import Command
from cfel.deployment.security.identity import Identity
from cfel.errors import DeploymentError, NotAdmittedError, RejectedError, StaleTermError, UnreachableError

_LOG = logging.getLogger(__name__)
TRY_AGAIN_SECONDS = 0.2
QUICK_SECONDS = 2.0


class DeposedError(DeploymentError):
    """This coordinator's term is over."""


class TermCalls:
    """Calls to edge servers in the name of one term.

    Args:
        term: the coordinator's.
        clusters: how many edge servers there are.
        calls: how they are reached.
        is_leading: whether the caller may still act.
        grace_seconds: what an edge server may itself wait for others, beyond any deadline.
        is_gone: whether an edge server has been silent for too long to wait for it.

    Attributes:
        term, clusters: as given.
        missing: edge servers that missed a deadline, or do not admit it, and have not answered since.
    """

    def __init__(
        self,
        term: int,
        clusters: int,
        calls: Calls,
        is_leading: Callable[[], bool],
        grace_seconds: float,
        is_gone: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._is_gone = is_gone
        self.term, self.clusters, self._calls, self._is_leading = term, clusters, calls, is_leading
        self._edges, self._grace_seconds = range(clusters), grace_seconds
        self.missing: set[int] = set()
        # Those whose silence has been logged, which is enough while they are asked again and again.
        self._silent: set[int] = set()

    def list_present(self) -> tuple[int, ...]:
        """Edge servers that are neither missing nor gone."""
        return tuple(i for i in self._edges if i not in self.missing and not self._is_gone(i))

    def find_gone(self) -> list[int]:
        """Edge servers that have been silent for too long to wait for them."""
        return [i for i in self._edges if self._is_gone(i)]

    async def command(
        self, command: Command[Answer], seconds: float, only: Iterable[int] | None = None
    ) -> dict[int, Answer]:
        """Calls edge servers until each has answered or the deadline is over; returns the answers.

        One that missed a deadline is called only once from then on, until it answers again; one that is gone
        is not called until it is heard of again.
        """
        # What an edge server itself waits for others comes on top.
        deadline = time.monotonic() + seconds + self._grace_seconds
        edges = list(self._edges if only is None else only)
        answers = await gather_or_cancel(self._call_until(i, command, deadline) for i in edges)
        return {i: each for i, each in zip(edges, answers, strict=True) if each is not None}

    async def _call_until(self, edge: int, command: Command[Answer], deadline: float) -> Answer | None:
        while True:
            self._check_term()
            # Even past the deadline one short attempt is made: an edge server that has just come back may
            # have the answer.
            left = max(deadline - time.monotonic(), QUICK_SECONDS)
            try:
                call = self._calls.call(Identity("edge", edge), command, left)
                answer = await give_up_if(lambda: self._is_gone(edge), "is gone", call)
            except (UnreachableError, StaleTermError) as error:
                # A stale term counts only if the election says so, too: one edge server may not have heard of
                # this term yet, or lie.
                self._check_term()
                if edge in self.missing or self._is_gone(edge) or time.monotonic() > deadline:
                    level = logging.DEBUG if edge in self.missing else logging.WARNING
                    _LOG.log(level, "%s: edge server %d is left out: %s", command.method, edge, error)
                    self.missing.add(edge)
                    return None
                await asyncio.sleep(TRY_AGAIN_SECONDS)
                continue
            except RejectedError as error:
                _LOG.warning("%s: %s", command.method, error)
                # Asking again does not help: it runs another experiment, or rejects the certificate.
                if isinstance(error, NotAdmittedError):
                    self.missing.add(edge)
                return None
            self.missing.discard(edge)
            return answer

    async def ask_once(
        self, request: Request[Answer], seconds: float, only: Iterable[int] | None = None
    ) -> dict[int, Answer]:
        """Calls edge servers once; returns the answers."""

        async def ask(edge: int) -> Answer | None:
            try:
                answer = await self._calls.call(Identity("edge", edge), request, seconds)
            except (UnreachableError, RejectedError) as error:
                if edge not in self._silent:
                    _LOG.info("%s: %s", request.method, error)
                self._silent.add(edge)
                return None
            self._silent.discard(edge)
            return answer

        self._check_term()
        edges = list(self._edges if only is None else only)
        answers = await gather_or_cancel(ask(i) for i in edges)
        return {i: each for i, each in zip(edges, answers, strict=True) if each is not None}

    def _check_term(self) -> None:
        if not self._is_leading():
            raise DeposedError(f"term {self.term} is over")
