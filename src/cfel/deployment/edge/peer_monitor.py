"""An edge server's view of the others: who was heard of when, and what is wrong with the federation.

It asks the others for a sign of life, finds out that no majority is in touch (so that nobody can coordinate),
and that the experiment ended while its edge server was missing. It commands nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cfel.deployment.edge.device_service import DeviceService
from cfel.deployment.edge.edge_server import EdgeServer
from cfel.deployment.election.member import Member
from cfel.deployment.protocol.calls import Answer, AnyRequest, Calls, Endpoint, Request, serve
from cfel.deployment.protocol.peer_requests import HelloAnswer, HelloRequest
from cfel.deployment.security.identity import Identity
from cfel.errors import DeploymentError, RejectedError, UnreachableError

_LOG = logging.getLogger(__name__)
# All in intervals at which the others are asked: when one counts as suspect, and as lost,
_ALIVE, _LOST = 2.5, 5.0
# how long without a command until an edge server believes that the others have finished,
_IDLE = 4.0
# and how long a federation may be without a coordinator or a device before that is reported.
_VACANT = 5.0
_NO_MAJORITY = "no majority"
_ABSENT = ("away", "lost", "quarantined")


class PeerContacts:
    """When each other edge server was last heard of, in whatever call.

    Args:
        others: their numbers.
        interval_seconds: how often each of them is asked for a sign of life.
        now: a monotonic clock.
    """

    def __init__(self, others: Iterable[int], interval_seconds: float, now: Callable[[], float]) -> None:
        self.interval_seconds, self._now = interval_seconds, now
        self._began = now()
        self._heard: dict[int, float | None] = dict.fromkeys(others)

    def note(self, node: Identity) -> None:
        """Notes a sign of life."""
        if node.role == "edge" and node.number in self._heard:
            self._heard[node.number] = self._now()

    def state(self, number: int) -> str:
        """One of `cfel.status.EDGE_STATES`; suspect, too, until it is heard of for the first time."""
        if number not in self._heard:
            return "alive"
        at = self._heard[number]
        silence = (self._now() - (self._began if at is None else at)) / self.interval_seconds
        if silence > _LOST:
            return "lost"
        return "alive" if at is not None and silence <= _ALIVE else "suspect"

    def lost(self) -> list[int]:
        """Edge servers that have been silent for long."""
        return [number for number in self._heard if self.state(number) == "lost"]

    def watch_endpoint(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint where each call is a sign of life of its caller."""

        async def handle(caller: Identity, request: AnyRequest) -> Any:  # noqa: ANN401 — any answer
            self.note(caller)
            return await endpoint.handle(caller, request)

        return replace(endpoint, handle=handle)


@dataclass(frozen=True, slots=True)
class WatchedCalls:
    """Calls where each answer, a rejection too, is a sign of life."""

    calls: Calls
    contacts: PeerContacts

    async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
        """See `Calls`."""
        try:
            answer = await self.calls.call(to, request, seconds)
        except RejectedError:
            self.contacts.note(to)
            raise
        self.contacts.note(to)
        return answer


class PeerMonitor:
    """Keeps in touch with the other edge servers.

    Args:
        server: its edge server.
        devices: its devices.
        member: its part in the election.
        calls: how others are reached.
        contacts: when they were last heard of.
        now: a monotonic clock.

    Attributes:
        problem: what is wrong, in words; empty when nothing is.
        over: edge servers that know that the experiment is over.
    """

    def __init__(
        self,
        server: EdgeServer,
        devices: DeviceService,
        member: Member,
        calls: Calls,
        contacts: PeerContacts,
        now: Callable[[], float],
    ) -> None:
        self._server, self._own_devices, self._member = server, devices, member
        self._calls, self._contacts, self._now = calls, contacts, now
        self._others = member.state.electorate.others
        self._devices: dict[int, Mapping[int, str]] = {}
        self._rejections: dict[int, str] = {}
        self._led_at = self._staffed_at = now()
        self.problem = ""
        self.over: set[int] = set()

    def endpoints(self) -> list[Endpoint]:
        """What other edge servers may call."""
        return [serve(HelloRequest, self.hello)]

    async def hello(self, caller: Identity, request: HelloRequest) -> HelloAnswer:
        """Answers with a sign of life; both sides say whether they know the experiment to be over."""
        if request.over:
            self.over.add(caller.number)
        return HelloAnswer(self._server.log.finished.is_set(), self._own_devices.states())

    def devices(self) -> dict[int, str]:
        """What the devices of all edge servers are doing, as far as known; "away" where theirs is lost."""
        found: dict[int, str] = {}
        for number, states in self._devices.items():
            lost = self._contacts.state(number) == "lost"
            found |= dict.fromkeys(states, "away") if lost else states
        return found | self._own_devices.states()

    async def run(self) -> None:
        """Looks at the others again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._contacts.interval_seconds)

    async def look(self) -> None:
        """Asks all others once, and updates `problem`."""
        finished = [number for number in await self._greet_all() if number in self.over]
        silence = self._now() - self._server.progress.commanded_at
        idle = silence > _IDLE * self._contacts.interval_seconds
        if finished and idle and not self._server.log.finished.is_set():
            await self._adopt_end(finished[0])
        self._update_problem()

    async def _greet_all(self) -> list[int]:
        """Those that answered."""
        request = HelloRequest(self._server.log.finished.is_set())
        answers = await asyncio.gather(*(self._greet(number, request) for number in self._others))
        return [number for number, there in zip(self._others, answers, strict=True) if there]

    async def _greet(self, number: int, request: HelloRequest) -> bool:
        seconds = self._contacts.interval_seconds
        try:
            answer = await self._calls.call(Identity("edge", number), request, seconds)
        except RejectedError as error:
            self._rejections[number] = str(error)
            return False
        except UnreachableError as error:
            self._rejections.pop(number, None)
            _LOG.debug("edge server %d is silent: %s", number, error)
            return False
        self._rejections.pop(number, None)
        self._devices[number] = answer.devices
        if answer.over:
            self.over.add(number)
        return True

    async def _adopt_end(self, number: int) -> None:
        try:
            await self._server.adopt_end(number)
        except DeploymentError as error:
            _LOG.warning("the experiment is over, but edge server %d could not say how: %s", number, error)
            return
        await self._greet_all()

    def _update_problem(self) -> None:
        problem = "" if self._server.log.finished.is_set() else self._find_problem()
        if problem.startswith(_NO_MAJORITY) and not self.problem.startswith(_NO_MAJORITY):
            self._member.add_no_majority_event()
        if problem != self.problem:
            _LOG.warning("%s", problem or "all is well again")
        self.problem = problem

    def _find_problem(self) -> str:
        lacking = self._find_no_majority() or self._find_no_coordinator() or self._find_no_device()
        rejections = (reason for _, reason in sorted(self._rejections.items()))
        return "; ".join(each for each in (lacking, *rejections) if each)

    def _find_no_majority(self) -> str:
        lost, needed = self._contacts.lost(), self._member.state.electorate.majority
        in_touch = len(self._others) + 1 - len(lost)
        if in_touch < needed:
            silent = ", ".join(f"edge-{number}" for number in lost)
            return (
                f"{_NO_MAJORITY}: {in_touch} of {len(self._others) + 1} edge servers are in touch, "
                f"{needed} are needed; nothing is lost, the run continues when enough of {silent} are back"
            )
        return ""

    def _find_no_coordinator(self) -> str:
        if self._member.state.leader is not None:
            self._led_at = self._now()
        if self._now() - self._led_at > _VACANT * self._contacts.interval_seconds:
            return "no coordinator: a majority is in touch, but nobody has been elected"
        return ""

    def _find_no_device(self) -> str:
        if any(state not in _ABSENT for state in self.devices().values()):
            self._staffed_at = self._now()
        if self._now() - self._staffed_at > _VACANT * self._contacts.interval_seconds:
            return "no device: none is in touch; nothing is lost, the run continues when one is there"
        return ""
