"""An edge server's view of the others: who was heard of when, and what is wrong with the federation.

It asks the others for a sign of life, finds out that no majority is in touch (so that nobody can coordinate),
that the experiment ended while its edge server was missing, and that the coordinator here hangs. It commands
nothing.
"""

import asyncio
import logging
from collections.abc import Mapping

from cfel import __version__
from cfel.deployment.edge.devices import DeviceService
from cfel.deployment.edge.server import EdgeServer
from cfel.deployment.election.member import Member
from cfel.deployment.health import (
    NO_MAJORITY,
    Absence,
    InstanceWatch,
    InTouch,
    PeerContacts,
    Stall,
    describe_unreachable,
    list_nodes,
)
from cfel.deployment.protocol.calls import Calls, Endpoint, serve
from cfel.deployment.protocol.edge_requests import HelloAnswer, HelloRequest
from cfel.deployment.protocol.messages import PROTOCOL_VERSION
from cfel.deployment.security.identity import Identity
from cfel.errors import DeploymentError, RejectedError, UnreachableError, VersionError

_LOG = logging.getLogger(__name__)
# In intervals at which the others are asked: how long without a command until an edge server assumes that the
# others have finished,
_IDLE = 4.0
# and how long a federation may be without a coordinator or a device before that is reported.
_ABSENCE = 5.0
# How long a coordinator that hung asks for no votes, in election timeouts.
_RESTS_AFTER_STALL = 8.0
_NO_COORDINATOR = "no coordinator: a majority is in touch, but none has been elected"
_NO_DEVICE = "no device: none is in touch; nothing is lost, the run continues when one is there"
_PAUSED = "paused by an operator; `cfel fleet resume` continues the run"
_ABSENT = ("absent", "lost", "quarantined")


class PeerMonitor:
    """Keeps in touch with the other edge servers.

    Args:
        contacts: when they were last heard of.

    Attributes:
        problem: what is wrong, in words; empty when nothing is.
        over: edge servers that know that the experiment is over.
        versions: of cfel on other edge servers, as far as known.
        instances: which processes speak for other edge servers.
    """

    def __init__(
        self, server: EdgeServer, devices: DeviceService, member: Member, calls: Calls, contacts: PeerContacts
    ) -> None:
        self._server, self._own_devices, self._member = server, devices, member
        self._calls, self._contacts = calls, contacts
        self._now = now = asyncio.get_running_loop().time
        self._devices: dict[int, Mapping[int, str]] = {}
        self._rejections: dict[int, str] = {}
        self._protocols: dict[int, int] = {}  # newest version of the protocol that each speaks
        self._other_versions: set[int] = set()  # edge servers whose version of the protocol is another
        absence_seconds = _ABSENCE * contacts.interval_seconds
        self._no_coordinator = Absence(absence_seconds, _NO_COORDINATOR, now)
        self._no_device = Absence(absence_seconds, _NO_DEVICE, now)
        self._stall = Stall(now, server.host.time_of_day)
        self._led_step: object = None
        self._led_step_at = now()
        self.versions: dict[int, str] = {}
        self.instances, self._instance = InstanceWatch(now), server.host.make_token(16)
        self.problem = ""
        self.over: set[int] = set()

    def endpoints(self) -> list[Endpoint]:
        """What other edge servers may call."""
        return [serve(HelloRequest, self.hello)]

    async def hello(self, caller: Identity, request: HelloRequest) -> HelloAnswer:
        """Answers with a sign of life; both sides say whether they know the experiment to be over."""
        self.instances.note(caller.number, request.instance)
        if request.over:
            self.over.add(caller.number)
        large = self._server.whole.setting.by_clusters
        return HelloAnswer(
            self._server.finished.is_set(),
            # Of a large fleet, every edge server shows its own devices.
            {} if large else self._own_devices.states(),
            __version__,
            self._instance,
            self._member.state.term,
            PROTOCOL_VERSION,
            self._server.members.voter_changes,
        )

    def devices(self) -> dict[int, str]:
        """What the devices of all edge servers are doing, as far as known; "absent" where theirs is lost."""
        found: dict[int, str] = {}
        for number, states in self._devices.items():
            # After the end, the others stop one by one; what they reported last stays true.
            if self._server.finished.is_set() or number in self.over:
                found |= {n: state if state in _ABSENT else "done" for n, state in states.items()}
            elif self._contacts.state(number) == "lost":
                found |= dict.fromkeys(states, "absent")
            else:
                found |= states
        return found | self._own_devices.states()

    def find_in_touch(self) -> InTouch:
        """Which edge servers are in touch."""
        electorate = self._member.state.electorate
        return InTouch(len(electorate.others) + 1, electorate.majority, tuple(self._contacts.find_lost()))

    def find_outdated(self) -> list[int]:
        """Edge servers that do not know yet what this version of the protocol has, such as changes."""
        others = self._member.state.electorate.others
        return [i for i in others if self._protocols.get(i, PROTOCOL_VERSION) < PROTOCOL_VERSION]

    async def run(self) -> None:
        """Checks the others at every interval, until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(self._contacts.interval_seconds)

    async def check(self) -> None:
        """Asks all others once, and updates `problem`."""
        finished = [number for number in await self._check_peers() if number in self.over]
        idle = self._now() - self._server.commanded_at > _IDLE * self._contacts.interval_seconds
        if finished and idle and not self._server.finished.is_set():
            await self._adopt_end(finished[0])
        self._resign_if_hung()
        self._update_problem()

    def _resign_if_hung(self) -> None:
        """Leaves the role to another edge server if the coordinator here makes no progress.

        It may wait for something that never comes, while its heartbeats go on.
        """
        state, server, deployment = self._member.state, self._server, self._server.deployment
        leads = state.leader == state.electorate.member
        begun = server.newest_state is not None
        step = (state.term, server.state.position, server.log.last_round, begun) if leads else None
        idle = server.finished.is_set() or server.members.is_paused or not self._has_device()
        if step is None or step != self._led_step or idle:
            self._led_step, self._led_step_at = step, self._now()
            return
        # Two commands to devices, or up to three to edge servers, may each take their deadline in one step;
        # each has `gossip_seconds` more for what edge servers wait for others.
        most_seconds = 2 * deployment.round_seconds + 6 * deployment.gossip_seconds
        if not begun:
            most_seconds += deployment.join_seconds
        waited = self._now() - self._led_step_at
        if waited > most_seconds:
            _LOG.error("the coordinator here has made no progress for %.0f s, and resigns", waited)
            self._member.resign(state.term, _RESTS_AFTER_STALL * deployment.election_seconds)

    def _has_device(self) -> bool:
        return any(state not in _ABSENT for state in self.devices().values())

    async def _check_peers(self) -> list[int]:
        """Asks all others for a sign of life; returns those that gave one."""
        others = self._member.state.electorate.others
        request = HelloRequest(self._server.finished.is_set(), self._instance)
        self._other_versions.clear()
        answers = await asyncio.gather(*(self._check_peer(number, request) for number in others))
        self._check_versions()
        return [number for number, there in zip(others, answers, strict=True) if there]

    async def _check_peer(self, number: int, request: HelloRequest) -> bool:
        self._rejections.pop(number, None)
        try:
            answer = await self._calls.call(
                Identity("edge", number), request, self._contacts.interval_seconds
            )
        except RejectedError as error:
            self._rejections[number] = str(error)
            if isinstance(error, VersionError):
                self._other_versions.add(number)
            return False
        except UnreachableError as error:
            _LOG.debug("edge server %d is silent: %s", number, error)
            return False
        self._devices[number], self.versions[number] = answer.devices, answer.version
        self._protocols[number] = answer.protocol
        self._member.note_term(number, answer.term)
        self.instances.note(number, answer.instance)
        if answer.over:
            self.over.add(number)
        if answer.voter_changes > self._server.members.voter_changes:
            await self._learn_from(number)
        return True

    async def _learn_from(self, number: int) -> None:
        """Learns who has joined and left while this edge server was missing: it may be no member now."""
        try:
            await self._server.learn_from(Identity("edge", number))
        except DeploymentError as error:
            _LOG.warning("edge servers have joined or left; edge-%d could not say who: %s", number, error)

    def _check_versions(self) -> None:
        """Ends an edge server that speaks another version than those without whom there is no majority."""
        members = len(self._member.state.electorate.others) + 1
        if 2 * (members - len(self._other_versions)) <= members:
            raise VersionError(self._rejections[min(self._other_versions)])

    async def _adopt_end(self, number: int) -> None:
        try:
            await self._server.adopt_end(number)
        except DeploymentError as error:
            _LOG.warning("the experiment is over, but edge server %d could not say how: %s", number, error)
            return
        await self._check_peers()

    def _update_problem(self) -> None:
        problem = "" if self._server.finished.is_set() else self._find_problem()
        if problem.startswith(NO_MAJORITY) and not self.problem.startswith(NO_MAJORITY):
            self._member.add_no_majority_event()
        if problem != self.problem:
            _LOG.warning("%s", problem or "no problem is left")
        self.problem = problem

    def _find_problem(self) -> str:
        in_touch = self.find_in_touch()
        is_led = self._member.state.leader is not None
        # All are asked each time, as they keep track of time.
        no_coordinator = self._no_coordinator.describe(is_there=is_led)
        no_device = self._no_device.describe(is_there=self._has_device())
        stall = self._find_stall()
        causes = [in_touch.describe(), describe_unreachable(self._contacts.find_unreachable())]
        if in_touch.has_majority:
            paused = _PAUSED if self._server.members.is_paused else ""
            causes.append(no_coordinator or no_device or paused or stall)
        rejections = (reason for _, reason in sorted(self._rejections.items()))
        return "; ".join(each for each in (*causes, self._find_doubled(), *rejections) if each)

    def _find_stall(self) -> str:
        position, phase, leader = self._server.state.position, self._server.phase, self._member.state.leader
        coordinator = "a coordinator" if leader is None else f"edge-{leader}, the coordinator"
        doing = f"waits for {coordinator}" if phase == "waiting" else phase
        if leader == self._member.state.electorate.member and phase == "waiting":
            doing = "the coordinator, which is here, waits for other nodes"
        devices = self._own_devices.list_awaited() or [
            n for n, state in self._own_devices.states().items() if state == "lost"
        ]
        # While edge servers gossip, all edge rounds are done.
        edge_round = min(position[1] + 1, self._server.world.setting.rounds.edge_rounds)
        words = f"round {position[0] + 1}.{edge_round}, {doing}"
        return self._stall.describe((position, phase), words, devices)

    def _find_doubled(self) -> str:
        presence = self._own_devices.presence
        devices = [n for n in self._own_devices.devices if presence.is_doubled(n)]
        edges = self.instances.find_doubled()
        parts = (
            f"runs twice: {list_nodes('edge', edges)}; stop one, or its votes count twice" if edges else "",
            f"runs twice, or restarts all the time: {list_nodes('device', devices)}" if devices else "",
        )
        return "; ".join(part for part in parts if part)
