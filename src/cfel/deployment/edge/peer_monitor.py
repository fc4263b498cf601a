"""An edge server's lookout: asks the others for a sign of life, and says what is wrong with the federation.

It finds out that no majority is in touch, so that nobody can coordinate, and that the experiment ended while
its edge server was away. It commands nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from cfel.deployment.edge.contacts import Contacts
from cfel.deployment.edge.device_service import DeviceService
from cfel.deployment.edge.edge_server import EdgeServer
from cfel.deployment.election.member import Member
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.grpc_transport import Calls, Method
from cfel.deployment.transport.messages import Message
from cfel.errors import DeploymentError, RejectedError, UnreachableError
from cfel.status import DEVICE_STATES

_LOG = logging.getLogger(__name__)
# How many intervals without a command make an edge server believe that the others are through.
_IDLE = 4.0
# How many intervals a federation may be without a coordinator or a device before that is worth a word.
_VACANT = 5.0
_NO_MAJORITY = "no majority"
_AWAY = ("away", "lost", "quarantined")


class Lookout:
    """Keeps in touch.

    Args:
        server: its edge server.
        device_service: its devices.
        member: its part in the election.
        calls: how others are reached.
        contacts: when they were last heard of.
        now: a clock that only runs forward.

    Attributes:
        problem: what is wrong, in words; empty when nothing is.
        over: edge servers that know that the experiment is over.
    """

    def __init__(
        self,
        server: EdgeServer,
        device_service: DeviceService,
        member: Member,
        calls: Calls,
        contacts: Contacts,
        now: Callable[[], float],
    ) -> None:
        self._server, self._device_service, self._member = server, device_service, member
        self._calls, self._contacts, self._now = calls, contacts, now
        self._others = member.state.electorate.others
        self._devices: dict[int, Mapping[int, str]] = {}
        self._refusals: dict[int, str] = {}
        self._led_at = self._peopled_at = now()
        self.problem = ""
        self.over: set[int] = set()

    def methods(self) -> dict[str, Method]:
        """What other edge servers may call."""
        return {"hello": Method(("edge",), self.hello)}

    async def hello(self, caller: Identity, message: Message) -> Message:
        """A sign of life; both sides say whether they know the experiment to be over."""
        if message.header.get("over") is True:
            self.over.add(caller.number)
        states = {str(device): state for device, state in self._device_service.states().items()}
        return Message({"over": self._server.chronicle.finished.is_set(), "devices": states})

    def devices(self) -> dict[int, str]:
        """What the devices of all edge servers are doing, as far as known; "away" where theirs is lost."""
        found: dict[int, str] = {}
        for number, states in self._devices.items():
            lost = self._contacts.state(number) == "lost"
            found |= dict.fromkeys(states, "away") if lost else states
        return found | self._device_service.states()

    async def run(self) -> None:
        """Keeps looking until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._contacts.interval_seconds)

    async def look(self) -> None:
        """Asks everybody once, and draws its conclusions."""
        through = [number for number in await self._greet() if number in self.over]
        idle = self._now() - self._server.commanded_at > _IDLE * self._contacts.interval_seconds
        if through and idle and not self._server.chronicle.finished.is_set():
            await self._catch_up(through[0])
        self._judge()

    async def _greet(self) -> list[int]:
        """Those who answered."""
        asked = Message({"over": self._server.chronicle.finished.is_set()})
        answers = await asyncio.gather(*(self._ask(number, asked) for number in self._others))
        return [number for number, there in zip(self._others, answers, strict=True) if there]

    async def _ask(self, number: int, asked: Message) -> bool:
        seconds = self._contacts.interval_seconds
        try:
            answer = await self._calls.call(Identity("edge", number), "hello", asked, seconds)
        except RejectedError as error:
            self._refusals[number] = str(error)
            return False
        except UnreachableError as error:
            self._refusals.pop(number, None)
            _LOG.debug("edge server %d is silent: %s", number, error)
            return False
        self._refusals.pop(number, None)
        self._devices[number] = _states(answer.header.get("devices"))
        if answer.header.get("over") is True:
            self.over.add(number)
        return True

    async def _catch_up(self, number: int) -> None:
        try:
            await self._server.adopt_end(number)
        except DeploymentError as error:
            _LOG.warning("the experiment is over, but not to be had from edge server %d: %s", number, error)
            return
        await self._greet()

    def _judge(self) -> None:
        problem = "" if self._server.chronicle.finished.is_set() else self._found()
        if problem.startswith(_NO_MAJORITY) and not self.problem.startswith(_NO_MAJORITY):
            self._member.add_no_majority_event()
        if problem != self.problem:
            _LOG.warning("%s", problem or "all is well again")
        self.problem = problem

    def _found(self) -> str:
        lacking = self._no_majority() or self._no_coordinator() or self._no_device()
        refused = (reason for _, reason in sorted(self._refusals.items()))
        return "; ".join(each for each in (lacking, *refused) if each)

    def _no_majority(self) -> str:
        lost, needed = self._contacts.lost(), self._member.state.electorate.majority
        in_touch = len(self._others) + 1 - len(lost)
        if in_touch < needed:
            silent = ", ".join(f"edge-{number}" for number in lost)
            return (
                f"{_NO_MAJORITY}: {in_touch} of {len(self._others) + 1} edge servers are in touch, "
                f"{needed} are needed; nothing is lost, the run goes on when enough of {silent} are back"
            )
        return ""

    def _no_coordinator(self) -> str:
        if self._member.state.leader is not None:
            self._led_at = self._now()
        if self._now() - self._led_at > _VACANT * self._contacts.interval_seconds:
            return "no coordinator: a majority is in touch, but nobody has been elected"
        return ""

    def _no_device(self) -> str:
        if any(state not in _AWAY for state in self.devices().values()):
            self._peopled_at = self._now()
        if self._now() - self._peopled_at > _VACANT * self._contacts.interval_seconds:
            return "no device: none is in touch; nothing is lost, the run goes on when one is there"
        return ""


def _states(told: Any) -> dict[int, str]:  # noqa: ANN401 — whatever came in
    """What another edge server says of its devices, as far as it makes sense."""
    if not isinstance(told, dict):
        return {}
    return {int(n): state for n, state in told.items() if n.isdecimal() and state in DEVICE_STATES}
