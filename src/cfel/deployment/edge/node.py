"""An edge server as a whole: builds its parts, connects them, and runs them until the experiment is over.

The parts are its devices (`devices`), what it does on commands (`server`), its part in the election
(`election.member`), the coordinator's role while it leads (`coordinator.coordinator`) and its view of the
others (`monitor`). It decides nothing by itself, and knows neither sockets nor certificates:
`deployment.node` connects it to the network.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cfel.deployment.coordinator.coordinator import CoordinatorRole, describe_all_diverged
from cfel.deployment.edge.checks import UploadLimits
from cfel.deployment.edge.devices import DeviceService
from cfel.deployment.edge.monitor import PeerMonitor
from cfel.deployment.edge.neighbours import NeighbourModels
from cfel.deployment.edge.server import EdgeServer
from cfel.deployment.edge.status import KnownNodes, snapshot
from cfel.deployment.election.member import Member, scale_timing
from cfel.deployment.election.rules import Electorate
from cfel.deployment.health import PeerContacts, PeerFaults, list_nodes
from cfel.deployment.host import DiskHealth, Host
from cfel.deployment.measurement.measured_rounds import choose_accounting, describe_limits, limit_waits
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.payloads import EncodedModels
from cfel.deployment.protocol.calls import Answer, AnyRequest, Calls, Endpoint, Request, serve
from cfel.deployment.protocol.device_requests import Moved, NextRequest, NoOrder, Removed
from cfel.deployment.protocol.edge_requests import ChangeAnswer, ChangeRequest, StatusAnswer, StatusRequest
from cfel.deployment.security.credentials import CredentialFiles
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.limits import count_rejection, should_log
from cfel.errors import InvalidAnswerError, RejectedError, UnreachableError
from cfel.membership import FleetChange, has_left
from cfel.status import Status
from cfel.world import World

_LOG = logging.getLogger(__name__)
_DEVICE_END_SECONDS = 5.0
_LEAST_INTERVAL_SECONDS = 1.0
_LINGER_LOOK_SECONDS = 0.1
_CHANGE_SECONDS = 5.0

ServeStatus = Callable[[Callable[[], Status]], Coroutine[None, None, None]]
"""Serves an edge server's snapshots while it runs: the dashboard."""


@dataclass(frozen=True, slots=True)
class EdgeCalls:
    """Calls of an edge server: each answer, a rejection too, is a sign of life, and an invalid one a fault.

    The coordinator calls its own edge server like any other, only without the network.
    """

    own: Identity  # the edge server
    calls: Calls  # how others are reached
    endpoints: dict[type[AnyRequest], Endpoint]  # its own
    contacts: PeerContacts  # when others were last heard of
    # Called with an edge server, the method and what is wrong with its answer.
    on_invalid: Callable[[Identity, str, str], None]

    async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
        """See `Calls`."""
        if to == self.own:
            found: Answer = await self.endpoints[type(request)].handle(self.own, request)
            return found
        try:
            answer = await self.calls.call(to, request, seconds)
        except InvalidAnswerError as error:
            self.contacts.note_answer(to)
            self.on_invalid(to, request.method, str(error))
            raise
        except RejectedError:
            self.contacts.note_answer(to)
            raise
        self.contacts.note_answer(to)
        return answer


class EdgeNode:
    """One edge server; how nodes reach each other is left to the caller.

    Args:
        credentials: its certificate, if it has one.
        reach: called with the address of an edge server that has joined.

    Attributes:
        endpoints: what it offers to other nodes.
        rejections: how many calls were rejected, by reason.
    """

    def __init__(
        self,
        world: World,
        deployment: DeploymentParameters,
        number: int,
        directory: Path,
        calls: Calls,
        host: Host,
        credentials: CredentialFiles | None = None,
        reach: Callable[[Identity, str], None] = lambda _edge, _address: None,
    ) -> None:
        self._reach = reach
        world, deployment = choose_accounting(world, deployment), limit_waits(world, deployment)
        self._world, self._deployment, self._host, self._credentials = world, deployment, host, credentials
        self.identity = Identity("edge", number)
        self.endpoints: dict[type[AnyRequest], Endpoint] = {}
        self.rejections: dict[str, int] = {}
        self._reasons_added: defaultdict[Identity | None, set[str]] = defaultdict(set)
        self._last_status: Status | None = None
        self._limits = describe_limits(world.setting.scheme, deployment)
        if self._limits:
            _LOG.warning("%s", self._limits)
        now = asyncio.get_running_loop().time
        self._health, self._faults = DiskHealth(now), PeerFaults(now)
        models = EncodedModels(host.compute, most=2 if world.downloads is None else 3)
        fleet, start = world.setting.fleet, world.start
        interval_seconds = max(_LEAST_INTERVAL_SECONDS, 2 * deployment.election_seconds)
        others = [i for i in fleet.list_edges() if i != number]
        self._contacts = PeerContacts(others, interval_seconds, now)
        calls = EdgeCalls(self.identity, calls, self.endpoints, self._contacts, self._on_wrong_answer)
        self._calls = calls
        kept_entries = len(world.training.local.kept_energy_at)
        limits = UploadLimits(deployment.clip_norm, kept_entries, world.variances)
        self.devices = DeviceService((), start, deployment, host, models, limits)
        seconds = deployment.gossip_seconds
        neighbours = NeighbourModels(
            calls, start, seconds, self._faults, host.compute, self._is_gone, world.differences
        )
        self.server = EdgeServer(
            world,
            deployment,
            number,
            directory,
            host,
            self.devices,
            neighbours,
            models,
            calls,
            self._health,
            self._admit,
        )
        self.server.on_rejection = self.on_rejection
        self._role = CoordinatorRole(self.server, calls, self._health, self.on_rejection, self._is_gone)
        timing, proposed = scale_timing(deployment.election_seconds), self.server.log.proposals.newest
        self.member = Member(
            Electorate(number, self.server.members.edges, timing, self.server.members.voter_changes),
            directory / "vote.json",
            calls,
            host,
            self._health,
            lambda term, leader: self._role.change(term, leader, self.member),
            lambda member, what: self._faults.note(member, "command", what),
            0 if proposed is None else proposed.term,
        )
        self.monitor = PeerMonitor(self.server, self.devices, self.member, calls, self._contacts)
        for part in (self.server, self.devices, self.member, self.monitor):
            for endpoint in part.endpoints():
                self._offer(endpoint)
        self._offer(serve(StatusRequest, self._status))
        self._offer(serve(ChangeRequest, self._ask_for_change))
        self.devices.find_home = self._find_home
        self._left = asyncio.Event()
        self._moves: dict[int, FleetChange] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self.server.watch_changes(self._on_change)

    def _on_change(self) -> None:
        """Follows the members of the fleet: its own devices, who votes, and where they are reached."""
        server, number = self.server, self.identity.number
        self.devices.change_devices(tuple(server.membership.list_devices(number)))
        self.devices.applicants.forget(server.members.devices)
        for change in server.whole.changes:
            if change.what == "add edge" and change.edge is not None:
                self._reach(Identity("edge", change.edge), change.address)
        members = server.members
        self._contacts.change_others(i for i in members.edges if i != number)
        self.member.change_members(members.edges, members.voter_changes)
        if server.has_left and not self._left.is_set():
            _LOG.warning("this edge server has left the fleet")
            self._left.set()
        self._moves = {
            n: each for n, each in self._moves.items() if members.edge_of[n] not in (number, each.edge)
        }

    def _find_home(self, device: int, request: NextRequest) -> Moved | Removed | NoOrder:
        """Where a device of another edge server belongs; takes it over if that one is gone."""
        members, number = self.server.members, self.identity.number
        if device not in members.devices:
            if has_left(self.server.whole.changes, device):
                return Removed()
            self.devices.applicants.note(device)
            return NoOrder()
        home = members.edge_of[device]
        if home == number:
            return NoOrder()  # from the next round on
        if request.silent == home and self._is_gone(home) and number in members.edges:
            self._take_over(device, home)
            return NoOrder()
        added = (each for each in self.server.whole.changes if each.what == "add edge" and each.edge == home)
        return Moved(home, "".join([each.address for each in added][-1:]))

    def _take_over(self, device: int, home: int) -> None:
        """Asks the coordinator for a device whose edge server is gone."""
        if device not in self._moves:
            ticket, own = self._host.make_token(16), self.identity.number
            change = FleetChange(1, "move device", (device,), own, home=home, ticket=ticket)
            self._moves[device] = change
            _LOG.warning("asks for device %d, as edge-%d is gone", device, home)
        leader = self.member.state.leader
        if self._asking or leader is None:
            return
        task = asyncio.create_task(self._ask_for(list(self._moves.values()), Identity("edge", leader)))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask_for(self, changes: Sequence[FleetChange], leader: Identity) -> None:
        for change in changes:
            try:
                answer = await self._calls.call(leader, ChangeRequest(change), _CHANGE_SECONDS)
            except (RejectedError, UnreachableError) as error:
                _LOG.info("%s: %s", change.describe(), error)
                continue
            if answer.refused:
                _LOG.info("%s: %s", change.describe(), answer.refused)
                for device in change.device:
                    self._moves.pop(device, None)
        await asyncio.sleep(_LEAST_INTERVAL_SECONDS)

    async def _ask_for_change(self, caller: Identity, request: ChangeRequest) -> ChangeAnswer:
        """Adds a change to those that wait for the end of a round, here or at the coordinator."""
        change, server = request.change, self.server
        found = next((each for each in server.whole.changes if each.ticket == change.ticket), None)
        if not change.ticket:
            raise RejectedError("change.ticket: is missing")
        if found is not None:
            return ChangeAnswer(found.round)
        if server.finished.is_set():
            return ChangeAnswer(0, "the experiment is over")
        leader = self.member.state.leader
        if leader == self.identity.number and self.member.is_leading():
            return ChangeAnswer(0, self._submit(change))
        if leader is None or caller.role == "edge" or leader == self.identity.number:
            raise UnreachableError("no coordinator is known here now")
        return await self._calls.call(Identity("edge", leader), request, _CHANGE_SECONDS)

    def _submit(self, change: FleetChange) -> str:
        """Adds a change to those that wait for the end of a round; returns why it cannot, or nothing."""
        # Nodes of an older version would ignore what the record says about the fleet.
        if outdated := self.monitor.find_outdated():
            return f"upgrade {list_nodes('edge', outdated)} first: their version of cfel knows no changes"
        try:
            self._role.pending.submit(self.server.whole, change, self.server.state.position[0])
        except RejectedError as error:
            return str(error)
        return ""

    async def _admit(self, caller: Identity, term: int) -> None:
        # A command may arrive before the first heartbeat of a new leader does.
        await self.member.admit(caller, term, 2 * self._deployment.election_seconds)

    def _is_gone(self, other: int) -> bool:
        return self._contacts.is_gone(other, self._deployment.gone_seconds)

    def _offer(self, endpoint: Endpoint) -> None:
        self.endpoints[endpoint.request] = self._contacts.watch_endpoint(endpoint)

    async def run(self, serve_status: ServeStatus | None = None) -> None:
        """Takes part until the experiment is over."""
        server = self.server
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(self.member.run()), group.create_task(self.monitor.run())]
                beside.append(group.create_task(self._fail_if_stopped()))
                if serve_status is not None:
                    beside.append(group.create_task(serve_status(self.take_snapshot)))
                if await self._wait_for_end():
                    for task in beside:
                        task.cancel()
                    return
                await server.publish()
                await self.devices.finish(_DEVICE_END_SECONDS, server.log.last_round, server.state.model)
                # The coordinator needs its vote until all edge servers know of the end. Afterwards, one that
                # was elected here would wait for those that have ended.
                if not server.released.is_set():
                    await self._role.wait_for_end()
                await _wait_at_most(
                    2 * self._deployment.gossip_seconds, "not released", server.released.wait()
                )
                if unaware := self._list_unaware():
                    missing = f"edge servers {unaware} may not know of the end"
                    await _wait_at_most(self._deployment.linger_seconds, missing, self._wait_for_unaware())
                for task in beside:
                    task.cancel()
        finally:
            self._role.leave()
            self._host.compute.close()
            server.log.close()

    async def _wait_for_end(self) -> bool:
        """Returns when the experiment is over, or this edge server has left; with whether it has left."""
        ends = [asyncio.create_task(each.wait()) for each in (self.server.finished, self._left)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
        if self.server.finished.is_set():
            return False
        # Its devices may still ask here where they belong.
        await asyncio.sleep(_DEVICE_END_SECONDS)
        return True

    async def _fail_if_stopped(self) -> None:
        """Ends this edge server with an error if nobody can train any more."""
        await self.server.stopped.wait()
        # The coordinator, if it runs here, has to reach the others first.
        await self._role.wait_for_end()
        raise describe_all_diverged(self._world, self.server.state.position)

    async def _wait_for_unaware(self) -> None:
        """Returns when the edge servers that missed the end know of it."""
        while self._list_unaware():
            await asyncio.sleep(_LINGER_LOOK_SECONDS)

    def _list_unaware(self) -> list[int]:
        """Edge servers that may not know of the end; where no coordinator has said who, all that have not."""
        server = self.server
        others = server.awaited if server.released.is_set() else server.membership.edges
        return sorted({*others} - {self.identity.number} - self.monitor.over)

    def take_snapshot(self) -> Status:
        """Its present state, for `cfel status` and the dashboard."""
        credentials = self._credentials
        validity = None if credentials is None else credentials.validity
        parts = (
            self._health.problem,
            self.server.loss,
            self.member.problem,
            self.monitor.problem,
            self._role.problem,
            self.devices.problem,
            self._faults.problem,
            "" if validity is None else validity.describe(),
            "" if credentials is None else credentials.problem,
            self._limits,
        )
        others = KnownNodes(
            self.monitor.devices(),
            self._contacts.state,
            "; ".join(each for each in parts if each),
            self.monitor.find_in_touch().has_majority,
            self.monitor.versions,
            self.monitor.instances,
            self.devices.presence,
            validity,
            tuple(self.devices.applicants.list()),
            self._health.problem if self._health.is_stuck else self.server.loss,
        )
        now = snapshot(self.server.world, self.server, self.member, others, self.rejections)
        # Readers compare the time of the last change, so it must not move while nothing changes.
        if self._last_status is None or replace(self._last_status, unix_seconds=0.0) != now:
            self._last_status = replace(now, unix_seconds=self._host.time_of_day())
        return self._last_status

    def on_rejection(self, caller: Identity | None, method: str, reason: str) -> None:
        """Counts a call that was rejected, or a report that is not plausible."""
        times = count_rejection(self.rejections, reason, self._reasons_added[caller])
        if should_log(times):
            _LOG.warning("rejected %s of %s: %s (%d so far)", method, caller, reason, times)

    def _on_wrong_answer(self, sender: Identity, method: str, reason: str) -> None:
        self.on_rejection(sender, method, reason)
        self._faults.note(sender.number, "answer", f"answered {method} with what is not used: {reason}")

    async def _status(self, caller: Identity, request: StatusRequest) -> StatusAnswer:
        del caller, request
        return StatusAnswer(self.take_snapshot(), self.server.state.position, self.member.state.role.value)


async def _wait_at_most(seconds: float, otherwise: str, what: Coroutine[None, None, Any]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await what
    except TimeoutError:
        _LOG.warning("ends after %s s: %s", seconds, otherwise)
