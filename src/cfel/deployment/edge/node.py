"""An edge server put together: its devices, its part in the election, the office, the lookout."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.coordinator.role import CoordinatorRole, WithOwn
from cfel.deployment.edge.contacts import Contacts, NotedCalls
from cfel.deployment.edge.device_service import DeviceService
from cfel.deployment.edge.edge_server import EdgeServer
from cfel.deployment.edge.peer_monitor import Lookout
from cfel.deployment.edge.status import Others, snapshot
from cfel.deployment.election.member import Member
from cfel.deployment.measurement.measured_rounds import choose_accounting
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.rejections import count_rejection, should_log
from cfel.deployment.transport.grpc_transport import Calls, Method
from cfel.deployment.transport.messages import Message
from cfel.rounds.parameters import SimulationParameters
from cfel.status import Status
from cfel.world import World

_LOG = logging.getLogger(__name__)
_FAREWELL_SECONDS = 5.0
_LEAST_LOOK_SECONDS = 1.0
_LINGER_LOOK_SECONDS = 0.1

Companion = Callable[[Callable[[], Status]], Coroutine[None, None, None]]
"""Runs beside an edge server and may look at its snapshot: the dashboard."""


class EdgeNode:
    """All parts of an edge server put together; how they are reached is the caller's business.

    Args:
        world: what is run.
        simulation: accounts, evaluation, when to stop.
        deployment: deadlines and limits.
        number: its cluster.
        directory: where it keeps what it must not forget.
        calls: how it reaches other edge servers.

    Attributes:
        methods: what it offers to others.
    """

    def __init__(
        self,
        world: World,
        simulation: SimulationParameters,
        deployment: DeploymentParameters,
        number: int,
        directory: Path,
        calls: Calls,
    ) -> None:
        self.identity = Identity("edge", number)
        self.methods: dict[str, Method] = {}
        self.refused: dict[str, int] = {}
        self._world = world
        simulation = choose_accounting(simulation, deployment)
        self._shown: Status | None = None
        self._patience_seconds = 2 * deployment.gossip_seconds
        self._linger_seconds = deployment.linger_seconds
        self._compute = ComputeThread()
        others = [i for i in range(world.setting.fleet.clusters) if i != number]
        interval_seconds = max(_LEAST_LOOK_SECONDS, 2 * deployment.election_seconds)
        self._contacts = Contacts(others, interval_seconds, time.monotonic)
        calls = NotedCalls(calls, self._contacts)
        reach = WithOwn(self.identity, calls, self.methods)
        devices = tuple(np.flatnonzero(world.setting.fleet.cluster == number).tolist())
        self.device_service = DeviceService(
            devices,
            world.start,
            deployment,
            self._compute,
            time.monotonic,
            len(world.local.kept_energy_at),
        )
        self.server = EdgeServer(
            world,
            simulation,
            number,
            directory,
            self.device_service,
            reach,
            self._compute,
            deployment.gossip_seconds,
        )
        self._role = CoordinatorRole(
            self.server, reach, self._compute, world, simulation, deployment, self.on_refusal
        )
        self.member = Member(
            number,
            world.setting.fleet.clusters,
            deployment.election_seconds,
            directory / "ballot.json",
            calls,
            self._on_leader,
        )
        self.server.obey(self.member.state.term)
        self.lookout = Lookout(
            self.server, self.device_service, self.member, calls, self._contacts, time.monotonic
        )
        parts = (self.server, self.device_service, self.member, self.lookout)
        methods = {name: method for part in parts for name, method in part.methods().items()}
        methods["status"] = Method(("edge", "operator"), self._status)
        self.methods |= self._contacts.noting(methods)

    async def run(self, companion: Companion | None = None) -> None:
        """Takes part until the experiment is over."""
        chronicle = self.server.chronicle
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(self.member.run()), group.create_task(self.lookout.run())]
                if companion is not None:
                    beside.append(group.create_task(companion(self.look)))
                await chronicle.finished.wait()
                await self.device_service.finish(_FAREWELL_SECONDS)
                # Its vote is needed until the coordinator has told everybody.
                await self._role.closing()
                await _at_most(self._patience_seconds, "not dismissed", chronicle.dismissed.wait())
                if chronicle.awaited:
                    missing = f"edge servers {list(chronicle.awaited)} have not come for the end"
                    await _at_most(self._linger_seconds, missing, self._all_know())
                for task in beside:
                    task.cancel()
        finally:
            self._role.leave()
            self._compute.close()
            chronicle.log.close()

    async def _all_know(self) -> None:
        """Returns when those who missed the end have come and learned of it."""
        while not self.lookout.over.issuperset(self.server.chronicle.awaited):
            await asyncio.sleep(_LINGER_LOOK_SECONDS)

    def look(self) -> Status:
        """What it shows of itself."""
        problem = " ".join(each for each in (self.lookout.problem, self._role.problem) if each)
        others = Others(self.lookout.devices(), self._contacts.state, problem)
        now = snapshot(self._world, self.server, self.member, others, self.refused)
        if self._shown is None or replace(self._shown, unix_seconds=0.0) != now:
            self._shown = replace(now, unix_seconds=time.time())
        return self._shown

    def on_refusal(self, caller: Identity | None, method: str, reason: str) -> None:
        """Counts a call that was refused."""
        times = count_rejection(self.refused, reason)
        if should_log(times):
            _LOG.warning("refused %s of %s: %s (%d so far)", method, caller, reason, times)

    def _on_leader(self, term: int, leader: int | None) -> None:
        self._role.change(term, leader, self.member)

    async def _status(self, caller: Identity, message: Message) -> Message:
        del caller, message
        here = {
            "role": self.member.state.role.value,
            "global_round": self.server.state.position[0],
            "connected": self.device_service.connected(),
        }
        return Message({**json.loads(self.look().to_json()), **here})


async def _at_most(seconds: float, otherwise: str, what: Coroutine[None, None, Any]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await what
    except TimeoutError:
        _LOG.warning("goes after %s s: %s", seconds, otherwise)
