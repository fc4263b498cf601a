"""An edge server as a whole: builds its parts, connects them, and runs them until the experiment is over.

The parts are its devices (`device_service`), what it does on commands (`edge_server`), its part in the
election (`election.member`), the coordinator's role while it leads (`coordinator.role`) and its view of the
others (`peer_monitor`). It decides nothing by itself, and knows neither sockets nor certificates:
`deployment.node` connects it to the network.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.coordinator.checked_calls import CheckedCalls
from cfel.deployment.coordinator.divergence import describe_all_diverged
from cfel.deployment.coordinator.role import CoordinatorRole
from cfel.deployment.disk_writes import DiskHealth, DiskWrites
from cfel.deployment.edge.device_service import DeviceService
from cfel.deployment.edge.edge_server import EdgeServer
from cfel.deployment.edge.peer_faults import Fault, PeerFaults
from cfel.deployment.edge.peer_monitor import PeerMonitor
from cfel.deployment.edge.status import KnownNodes, snapshot
from cfel.deployment.edge.verify_upload import UploadLimits
from cfel.deployment.election.leadership import Leadership, OnFault
from cfel.deployment.election.member import Member
from cfel.deployment.health.contacts import PeerContacts, WatchedCalls
from cfel.deployment.measurement.measured_rounds import choose_accounting, describe_limits, limit_waits
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.payloads import EncodedModels
from cfel.deployment.protocol.calls import AnyRequest, Calls, Endpoint, LocalCalls, serve
from cfel.deployment.protocol.peer_requests import StatusAnswer, StatusRequest
from cfel.deployment.security.credentials import CredentialFiles
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.rejections import count_rejection, should_log
from cfel.status import Status
from cfel.world import World

_LOG = logging.getLogger(__name__)
_DEVICE_END_SECONDS = 5.0
_LEAST_INTERVAL_SECONDS = 1.0
_LINGER_LOOK_SECONDS = 0.1
# How long a coordinator that sends an invalid command is not followed, in election timeouts.
_DISTRUST_TIMEOUTS = 8.0
# How many times as long one is not followed that keeps the others waiting again and again.
_MOST_DISTRUST = 64.0

ServeStatus = Callable[[Callable[[], Status]], Coroutine[None, None, None]]
"""Serves an edge server's snapshots while it runs: the dashboard."""


class EdgeNode:
    """One edge server; how nodes reach each other is left to the caller.

    Args:
        world: what is run.
        deployment: deadlines and limits.
        number: its cluster.
        directory: where it keeps what it must not forget.
        calls: how it reaches other edge servers.
        credentials: its certificate, if it has one.

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
        credentials: CredentialFiles | None = None,
    ) -> None:
        world, deployment = choose_accounting(world, deployment), limit_waits(world, deployment)
        self._world, self._deployment, self._credentials = world, deployment, credentials
        self.identity = Identity("edge", number)
        self.endpoints: dict[type[AnyRequest], Endpoint] = {}
        self.rejections: dict[str, int] = {}
        self._reasons_added: defaultdict[Identity | None, set[str]] = defaultdict(set)
        self._last_status: Status | None = None
        self._waits: defaultdict[int, int] = defaultdict(int)
        self._limits = describe_limits(world.setting.scheme, deployment)
        if self._limits:
            _LOG.warning("%s", self._limits)
        models = EncodedModels()
        self._compute, self._disk = ComputeThread(), DiskHealth(time.monotonic)
        self._faults = PeerFaults(time.monotonic)
        self._contacts = self._make_contacts()
        calls = CheckedCalls(WatchedCalls(calls, self._contacts), world, self._on_wrong_answer)
        # The coordinator calls its own edge server like any other, only without the network.
        everywhere = LocalCalls(self.identity, calls, self.endpoints)
        self.devices = self._make_device_service(models)
        self.server = self._make_server(directory, everywhere, models)
        self._role = CoordinatorRole(
            self.server,
            everywhere,
            self._compute,
            self._disk,
            world,
            deployment,
            self._on_implausible,
            self._is_gone,
        )
        self.member = self._make_member(directory, calls)
        self.monitor = PeerMonitor(
            self.server,
            self.devices,
            self.member,
            calls,
            self._contacts,
            time.monotonic,
            deployment,
            self._on_waiting,
        )
        for part in (self.server, self.devices, self.member, self.monitor):
            for endpoint in part.endpoints():
                self._offer(endpoint)
        self._offer(serve(StatusRequest, self._status))

    def _make_contacts(self) -> PeerContacts:
        others = [i for i in range(self._world.setting.fleet.clusters) if i != self.identity.number]
        interval_seconds = max(_LEAST_INTERVAL_SECONDS, 2 * self._deployment.election_seconds)
        return PeerContacts(others, interval_seconds, time.monotonic)

    def _make_device_service(self, models: EncodedModels) -> DeviceService:
        own = np.flatnonzero(self._world.setting.fleet.cluster == self.identity.number)
        kept_entries = len(self._world.training.local.kept_energy_at)
        return DeviceService(
            tuple(own.tolist()),
            self._world.start,
            self._deployment,
            self._compute,
            time.monotonic,
            UploadLimits(self._deployment.clip_norm, kept_entries, self._world.variances),
            models,
        )

    def _make_server(self, directory: Path, calls: Calls, models: EncodedModels) -> EdgeServer:
        # A command may arrive before the first heartbeat of a new leader does.
        wait_seconds = 2 * self._deployment.election_seconds
        return EdgeServer(
            self._world,
            self.identity.number,
            directory,
            self.devices,
            calls,
            self._compute,
            DiskWrites(self._compute, self._disk),
            models,
            self._deployment.gossip_seconds,
            self._faults,
            Leadership(
                self._find_leader,
                wait_seconds,
                self._note("command"),
                _DISTRUST_TIMEOUTS * self._deployment.election_seconds,
                self._on_invalid_command,
            ),
            self._is_gone,
        )

    def _make_member(self, directory: Path, calls: Calls) -> Member:
        return Member(
            self.identity.number,
            self._world.setting.fleet.clusters,
            self._deployment.election_seconds,
            directory / "vote.json",
            calls,
            self._on_leader,
            self._note("vote"),
            self._disk,
        )

    def _is_gone(self, other: int) -> bool:
        return self._contacts.is_gone(other, self._deployment.gone_seconds)

    def _offer(self, endpoint: Endpoint) -> None:
        self.endpoints[endpoint.request] = self._contacts.watch_endpoint(endpoint)

    async def run(self, serve_status: ServeStatus | None = None) -> None:
        """Takes part until the experiment is over."""
        log = self.server.log
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(self.member.run()), group.create_task(self.monitor.run())]
                beside.append(group.create_task(self._fail_if_stopped()))
                if serve_status is not None:
                    beside.append(group.create_task(serve_status(self.take_snapshot)))
                await log.finished.wait()
                await self.devices.finish(_DEVICE_END_SECONDS)
                # The coordinator needs its vote until all edge servers know of the end.
                await self._role.wait_for_end()
                await _wait_at_most(2 * self._deployment.gossip_seconds, "not released", log.released.wait())
                if log.awaited:
                    missing = f"edge servers {list(log.awaited)} do not know of the end"
                    await _wait_at_most(self._deployment.linger_seconds, missing, self._wait_for_awaited())
                for task in beside:
                    task.cancel()
        finally:
            self._role.leave()
            self._compute.close()
            log.close()

    async def _fail_if_stopped(self) -> None:
        """Ends this edge server with an error if nobody can train any more."""
        await self.server.stopped.wait()
        # The coordinator, if it runs here, has to reach the others first.
        await self._role.wait_for_end()
        raise describe_all_diverged(self._world, self.server.state.position)

    async def _wait_for_awaited(self) -> None:
        """Returns when the edge servers that missed the end know of it."""
        while not self.monitor.over.issuperset(self.server.log.awaited):
            await asyncio.sleep(_LINGER_LOOK_SECONDS)

    def take_snapshot(self) -> Status:
        """Its present state, for `cfel status` and the dashboard."""
        credentials = self._credentials
        validity = None if credentials is None else credentials.validity
        parts = (
            self._disk.problem,
            self.server.progress.loss,
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
        )
        now = snapshot(self._world, self.server, self.member, others, self.rejections)
        # Readers compare the time of the last change, so it must not move while nothing changes.
        if self._last_status is None or replace(self._last_status, unix_seconds=0.0) != now:
            self._last_status = replace(now, unix_seconds=time.time())
        return self._last_status

    def on_rejection(self, caller: Identity | None, method: str, reason: str) -> None:
        """Counts a call that was rejected."""
        times = count_rejection(self.rejections, reason, self._reasons_added[caller])
        if should_log(times):
            _LOG.warning("rejected %s of %s: %s (%d so far)", method, caller, reason, times)

    def _find_leader(self) -> tuple[int, int | None]:
        return self.member.state.term, self.member.state.leader

    def _note(self, fault: Fault) -> OnFault:
        return lambda number, what: self._faults.note(number, fault, what)

    def _on_invalid_command(self, number: int, what: str) -> None:
        self._faults.note(number, "command", what)
        if number != self.identity.number:
            self.member.distrust(number, _DISTRUST_TIMEOUTS * self._deployment.election_seconds)

    def _on_waiting(self, number: int, what: str) -> None:
        self._faults.note(number, "command", what)
        self._waits[number] += 1
        # Twice as long each time, so that it leads ever less often.
        times = min(2.0 ** self._waits[number], _MOST_DISTRUST)
        self.member.distrust(number, times * _DISTRUST_TIMEOUTS * self._deployment.election_seconds)

    def _on_implausible(self, sender: Identity | None, method: str, reason: str) -> None:
        if sender is not None and sender.role == "edge":
            self._on_wrong_answer(sender, method, reason)
        else:
            self.on_rejection(sender, method, reason)

    def _on_wrong_answer(self, sender: Identity, method: str, reason: str) -> None:
        self.on_rejection(sender, method, reason)
        self._faults.note(sender.number, "answer", f"answered {method} with what is not used: {reason}")

    def _on_leader(self, term: int, leader: int | None) -> None:
        self._role.change(term, leader, self.member)

    async def _status(self, caller: Identity, request: StatusRequest) -> StatusAnswer:
        del caller, request
        return StatusAnswer(self.take_snapshot(), self.server.state.position, self.member.state.role.value)


async def _wait_at_most(seconds: float, otherwise: str, what: Coroutine[None, None, Any]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await what
    except TimeoutError:
        _LOG.warning("ends after %s s: %s", seconds, otherwise)
