"""How the coordinator of a term speaks to edge servers: commands with deadlines, taking over, proposals.

Before every call it checks that the term has not ended. Edge servers that do not answer in time are left out.
A record is logged once a majority has it on the disk. A coordinator that died may have had its record logged
somewhere; a majority keeps that record, so a successor that asks a majority finds it, and proposes it again
instead of its own, as in Paxos with the term as ballot.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cfel.deployment.coordinator.state import CoordinatorState, Position, initial_coordinator_state
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.protocol.calls import Answer, Calls, Request, gather_or_cancel, give_up_if
from cfel.deployment.protocol.edge_requests import (
    Command,
    NewestAnswer,
    NewestRequest,
    ProposeCommand,
    ProposedRecord,
)
from cfel.deployment.security.identity import Identity
from cfel.errors import DeploymentError, NotAdmittedError, RejectedError, StaleTermError, UnreachableError
from cfel.runlog import RoundRecord
from cfel.world import World

_LOG = logging.getLogger(__name__)
TRY_AGAIN_SECONDS = 0.2
QUICK_SECONDS = 2.0


class DeposedError(DeploymentError):
    """This coordinator's term is over."""


class TermCalls:
    """Calls to edge servers in the name of one term.

    Args:
        members: numbers of the edge servers that belong to the fleet; `enter_round` changes them.
        is_leading: whether the caller may still act.
        grace_seconds: what an edge server may itself wait for others, beyond any deadline.
        is_gone: whether an edge server has been silent for too long to wait for it.

    Attributes:
        missing: edge servers that missed a deadline, or do not admit it, and have not answered since.
        leaving: members that leave with a record that may be logged: they may have ended, nobody waits for
            them.
        behind: edge servers that have not carried out the last command they got, so that the others need not
            wait for their models.
    """

    def __init__(
        self,
        term: int,
        members: Sequence[int],
        calls: Calls,
        is_leading: Callable[[], bool],
        grace_seconds: float,
        is_gone: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._is_gone = is_gone
        self.term, self._calls, self._is_leading = term, calls, is_leading
        self.members, self._grace_seconds = tuple(members), grace_seconds
        self.missing: set[int] = set()
        self.leaving: frozenset[int] = frozenset()
        self.behind: set[int] = set()
        # Those whose silence has been logged, which is enough while they are asked again and again.
        self._silent: set[int] = set()

    def is_majority(self, edges: Iterable[int]) -> bool:
        """Whether these are more than half of the members."""
        return 2 * len(set(edges).intersection(self.members)) > len(self.members)

    def list_present(self) -> tuple[int, ...]:
        """Edge servers that are neither missing nor behind nor gone, and do not leave."""
        left_out = self.missing | self.behind | self.leaving
        return tuple(i for i in self.members if i not in left_out and not self._is_gone(i))

    def find_gone(self) -> list[int]:
        """Edge servers that have been silent for too long to wait for them."""
        return [i for i in self.members if self._is_gone(i)]

    async def command(
        self, command: Command[Answer], seconds: float, only: Iterable[int] | None = None
    ) -> dict[int, Answer]:
        """Calls edge servers until each has answered or the deadline is over; returns the answers.

        One that missed a deadline is called only once from then on, until it answers again; one that is gone
        is not called until it is heard of again.
        """
        # What an edge server itself waits for others comes on top.
        deadline = _now() + seconds + self._grace_seconds
        edges = [i for i in (self.members if only is None else only) if i not in self.leaving]
        answers = await gather_or_cancel(self._call_until(i, command, deadline) for i in edges)
        return {i: each for i, each in zip(edges, answers, strict=True) if each is not None}

    async def _call_until(self, edge: int, command: Command[Answer], deadline: float) -> Answer | None:
        while True:
            self.check_term()
            # Even past the deadline one short attempt is made: an edge server that has just come back may
            # have the answer.
            left = max(deadline - _now(), QUICK_SECONDS)
            try:
                call = self._calls.call(Identity("edge", edge), command, left)
                answer = await give_up_if(lambda: self._is_gone(edge), "is gone", call)
            except (UnreachableError, StaleTermError) as error:
                # A stale term counts only if the election says so, too: one edge server may not have heard of
                # this term yet.
                self.check_term()
                if edge in self.missing or self._is_gone(edge) or _now() > deadline:
                    level = logging.DEBUG if edge in self.missing else logging.WARNING
                    _LOG.log(level, "%s: edge server %d is left out: %s", command.method, edge, error)
                    self.missing.add(edge)
                    return None
                await asyncio.sleep(TRY_AGAIN_SECONDS)
                continue
            except RejectedError as error:
                _LOG.warning("%s: %s", command.method, error)
                self.behind.add(edge)
                # Asking again does not help: it runs another experiment, or rejects the certificate.
                if isinstance(error, NotAdmittedError):
                    self.missing.add(edge)
                return None
            self.missing.discard(edge)
            self.behind.discard(edge)
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

        self.check_term()
        edges = list(self.members if only is None else only)
        answers = await gather_or_cancel(ask(i) for i in edges)
        return {i: each for i, each in zip(edges, answers, strict=True) if each is not None}

    async def propose(self, position: Position, record: RoundRecord, seconds: float) -> None:
        """Returns when a majority has the record on the disk."""
        command = ProposeCommand(self.term, position, record)
        while not self.is_majority(await self.command(command, seconds)):
            _LOG.warning("round %d cannot be logged yet: no majority has its record", record.round)
            await asyncio.sleep(TRY_AGAIN_SECONDS)

    def check_term(self) -> None:
        """Raises a `DeposedError` if the term is over."""
        if not self._is_leading():
            raise DeposedError(f"term {self.term} is over")


@dataclass(frozen=True, slots=True)
class Handover:
    """What a new coordinator takes over from edge servers."""

    state: CoordinatorState  # to continue from
    records: tuple[ProposedRecord, ...] = ()  # the newest that each edge server has stored

    def find_record(self, number: int) -> RoundRecord | None:
        """The record of a global round in the newest earlier term, which may be logged, if there is one."""
        earlier = [each for each in self.records if each.record.round == number]
        return max(earlier, key=lambda each: each.term).record if earlier else None

    def choose_record(self, own: RoundRecord) -> RoundRecord:
        """The record to propose: that of an earlier term, or else its own."""
        found = self.find_record(own.round)
        if found is not None:
            _LOG.info("closes round %d with the record of an earlier coordinator", own.round)
        return found or own

    def find_leaving(self) -> frozenset[int]:
        """Edge servers that leave with the record of the round that is under way, if it may be logged."""
        found = self.find_record(self.state.control.rounds_done + 1)
        changes = () if found is None else found.changes
        gone = [each.edge for each in changes if each.what == "remove edge"]
        return frozenset(edge for edge in gone if edge is not None)


async def take_over(edges: TermCalls, world: World, deployment: DeploymentParameters, now: float) -> Handover:
    """The newest state that edge servers know; before the first round, waits for all to join.

    `now` is the time of day.
    """
    deadline = _now() + deployment.join_seconds
    while True:
        answers = await edges.ask_once(NewestRequest(edges.term), QUICK_SECONDS)
        states = [each.state for each in answers.values() if each.state is not None]
        if states and _is_enough(edges, answers):
            newest = max(states, key=lambda each: each.recency)
            edges.behind = {i for i, each in answers.items() if each.position < newest.position}
            found = (each.proposal for each in answers.values())
            return Handover(newest, tuple(each for each in found if each is not None))
        if not states and not may_have_begun(answers, len(edges.members)):
            joined = sum(len(each.connected) + each.joined for each in answers.values())
            devices = len(world.at(0).setting.fleet.list_members())
            complete = len(answers) == len(edges.members) and joined == devices
            # The first round need not wait for stragglers forever, but needs somebody to work.
            overdue = _now() > deadline and edges.is_majority(answers) and joined > 0
            if complete or overdue:
                return Handover(initial_coordinator_state(world, now, measures=deployment.measures))
        await asyncio.sleep(TRY_AGAIN_SECONDS)


def may_have_begun(answers: Mapping[int, NewestAnswer], clusters: int) -> bool:
    """Whether rounds may have been logged, where no edge server that answered knows a state."""
    lost = sum(each.is_lost for each in answers.values())
    # Where a majority has lost nothing and knows no state, no round can have been logged.
    return lost > 0 and 2 * (len(answers) - lost) <= clusters


def _is_enough(edges: TermCalls, answers: Mapping[int, NewestAnswer]) -> bool:
    """Whether no newer state or record can be known elsewhere: a minority may not have heard of it.

    Edge servers that lost what they knew count only if those that may know it are gone.
    """
    sound = [edge for edge, each in answers.items() if not each.is_lost]
    silent = set(edges.members) - answers.keys()
    waits = not edges.is_majority(sound) and not silent <= set(edges.find_gone())
    return edges.is_majority(answers) and not waits


def _now() -> float:
    return asyncio.get_running_loop().time()
