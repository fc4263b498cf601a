"""All parts of an edge server: its devices, its part in the election, the coordinator's role, its monitor."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.coordinator.role import CoordinatorRole
from cfel.deployment.disk_writes import DiskHealth, DiskWrites
from cfel.deployment.edge.device_service import DeviceService
from cfel.deployment.edge.edge_server import EdgeServer
from cfel.deployment.edge.peer_faults import PeerFaults
from cfel.deployment.edge.peer_monitor import PeerContacts, PeerMonitor, WatchedCalls
from cfel.deployment.edge.status import Others, snapshot
from cfel.deployment.election.leadership import Leadership
from cfel.deployment.election.member import Member
from cfel.deployment.measurement.measured_rounds import choose_accounting, describe_limits
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.payloads import EncodedModels
from cfel.deployment.protocol.calls import AnyRequest, Calls, Endpoint, LocalCalls, serve
from cfel.deployment.protocol.peer_requests import StatusAnswer, StatusRequest
from cfel.deployment.security.expiry import Validity
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.rejections import count_rejection, should_log
from cfel.rounds.parameters import SimulationParameters
from cfel.status import Status
from cfel.world import World

_LOG = logging.getLogger(__name__)
_DEVICE_END_SECONDS = 5.0
_LEAST_INTERVAL_SECONDS = 1.0
_LINGER_LOOK_SECONDS = 0.1

Companion = Callable[[Callable[[], Status]], Coroutine[None, None, None]]
"""Runs beside an edge server and may look at its snapshot: the dashboard."""


class EdgeNode:
    """One edge server; how nodes reach each other is left to the caller.

    Args:
        world: what is run.
        simulation: accounts, evaluation, when to stop.
        deployment: deadlines and limits.
        number: its cluster.
        directory: where it keeps what it must not forget.
        calls: how it reaches other edge servers.
        validity: of its certificate, if it has one.

    Attributes:
        endpoints: what it offers to other nodes.
        rejections: how many calls were rejected, by reason.
    """

    def __init__(
        self,
        world: World,
        simulation: SimulationParameters,
        deployment: DeploymentParameters,
        number: int,
        directory: Path,
        calls: Calls,
        validity: Validity | None = None,
    ) -> None:
        self._validity = validity
        self.identity = Identity("edge", number)
        self.endpoints: dict[type[AnyRequest], Endpoint] = {}
        self.rejections: dict[str, int] = {}
        self._world = world
        simulation = choose_accounting(simulation, deployment)
        self._limits = describe_limits(world.setting.scheme, deployment)
        if self._limits:
            _LOG.warning("%s", self._limits)
        self._shown: Status | None = None
        self._release_seconds = 2 * deployment.gossip_seconds
        self._linger_seconds = deployment.linger_seconds
        self._compute = ComputeThread()
        self._disk = DiskHealth(time.monotonic)
        others = [i for i in range(world.setting.fleet.clusters) if i != number]
        interval_seconds = max(_LEAST_INTERVAL_SECONDS, 2 * deployment.election_seconds)
        self._contacts = PeerContacts(others, interval_seconds, time.monotonic)
        calls = WatchedCalls(calls, self._contacts)
        everywhere = LocalCalls(self.identity, calls, self.endpoints)
        models = EncodedModels()

        def is_gone(other: int) -> bool:
            return self._contacts.is_gone(other, deployment.gone_seconds)

        self._faults = PeerFaults(time.monotonic)
        self.devices = DeviceService(
            tuple(np.flatnonzero(world.setting.fleet.cluster == number).tolist()),
            world.start,
            deployment,
            self._compute,
            time.monotonic,
            len(world.training.local.kept_energy_at),
            models,
        )
        self.server = EdgeServer(
            world,
            simulation,
            number,
            directory,
            self.devices,
            everywhere,
            self._compute,
            DiskWrites(self._compute, self._disk),
            models,
            deployment.gossip_seconds,
            self._faults,
            Leadership(self._find_leader, 2 * deployment.election_seconds, self._on_command_fault),
            is_gone,
        )
        self._role = CoordinatorRole(
            self.server,
            everywhere,
            self._compute,
            self._disk,
            world,
            simulation,
            deployment,
            self.on_rejection,
            is_gone,
        )
        self.member = Member(
            number,
            world.setting.fleet.clusters,
            deployment.election_seconds,
            directory / "vote.json",
            calls,
            self._on_leader,
            self._on_vote_fault,
            self._disk,
        )
        self.monitor = PeerMonitor(
            self.server, self.devices, self.member, calls, self._contacts, time.monotonic
        )
        for part in (self.server, self.devices, self.member, self.monitor):
            for endpoint in part.endpoints():
                self._offer(endpoint)
        self._offer(serve(StatusRequest, self._status))

    def _offer(self, endpoint: Endpoint) -> None:
        self.endpoints[endpoint.request] = self._contacts.watch_endpoint(endpoint)

    async def run(self, companion: Companion | None = None) -> None:
        """Takes part until the experiment is over."""
        log = self.server.log
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(self.member.run()), group.create_task(self.monitor.run())]
                if companion is not None:
                    beside.append(group.create_task(companion(self.look)))
                await log.finished.wait()
                await self.devices.finish(_DEVICE_END_SECONDS)
                # The coordinator needs its vote until all edge servers know of the end.
                await self._role.wait_for_end()
                await _wait_at_most(self._release_seconds, "not released", log.released.wait())
                if log.awaited:
                    missing = f"edge servers {list(log.awaited)} do not know of the end"
                    await _wait_at_most(self._linger_seconds, missing, self._wait_for_awaited())
                for task in beside:
                    task.cancel()
        finally:
            self._role.leave()
            self._compute.close()
            log.close()

    async def _wait_for_awaited(self) -> None:
        """Returns when the edge servers that missed the end know of it."""
        while not self.monitor.over.issuperset(self.server.log.awaited):
            await asyncio.sleep(_LINGER_LOOK_SECONDS)

    def look(self) -> Status:
        """What it shows of itself."""
        expiry = "" if self._validity is None else self._validity.describe()
        parts = (
            self._disk.problem,
            self.monitor.problem,
            self._role.problem,
            self._faults.problem,
            expiry,
            self._limits,
        )
        others = Others(
            self.monitor.devices(),
            self._contacts.state,
            "; ".join(each for each in parts if each),
            self.monitor.find_in_touch().has_majority,
            self.monitor.versions,
            self.devices.presence,
            self._validity,
        )
        now = snapshot(self._world, self.server, self.member, others, self.rejections)
        if self._shown is None or replace(self._shown, unix_seconds=0.0) != now:
            self._shown = replace(now, unix_seconds=time.time())
        return self._shown

    def on_rejection(self, caller: Identity | None, method: str, reason: str) -> None:
        """Counts a call that was rejected."""
        times = count_rejection(self.rejections, reason)
        if should_log(times):
            _LOG.warning("rejected %s of %s: %s (%d so far)", method, caller, reason, times)

    def _find_leader(self) -> tuple[int, int | None]:
        return self.member.state.term, self.member.state.leader

    def _on_command_fault(self, number: int, what: str) -> None:
        self._faults.note(number, "command", what)

    def _on_vote_fault(self, number: int, what: str) -> None:
        self._faults.note(number, "vote", what)

    def _on_leader(self, term: int, leader: int | None) -> None:
        self._role.change(term, leader, self.member)

    async def _status(self, caller: Identity, request: StatusRequest) -> StatusAnswer:
        del caller, request
        return StatusAnswer(self.look(), self.server.state.position, self.member.state.role.value)


async def _wait_at_most(seconds: float, otherwise: str, what: Coroutine[None, None, Any]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await what
    except TimeoutError:
        _LOG.warning("ends after %s s: %s", seconds, otherwise)
