"""Where an edge server is, and whose commands it carries out: those of the leader that it knows.

A state is on the disk before anything is answered about it. What the commands do is in `training` and
`gossip`.
"""

import asyncio
import logging
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np

from cfel.deployment.coordinator.check_state import check_position
from cfel.deployment.disk_writes import DiskWrites
from cfel.deployment.edge.device_service import DeviceService
from cfel.deployment.edge.neighbour_models import NeighbourModels
from cfel.deployment.edge.state import EdgeDisk, EdgeState
from cfel.deployment.election.leadership import Leadership
from cfel.deployment.positions import Position, gossip_is_next
from cfel.deployment.protocol.coordinator_requests import Command
from cfel.deployment.security.identity import Identity
from cfel.errors import DamagedError, RejectedError
from cfel.system import Backhaul
from cfel.world import World

_LOG = logging.getLogger(__name__)
_FROM_OTHERS = (
    "It takes part again with the model of another edge server, in the next round. If all of them have lost "
    "theirs, restore one directory from a backup, or delete them all to begin the experiment anew"
)
_NO_OTHERS = (
    "There is no other edge server to take it from: restore {0} from a backup, or delete it to begin the "
    "experiment anew"
)


class EdgeProgress:
    """One edge server's position and term.

    Args:
        world: what is run.
        number: the edge server.
        directory: where the state is kept.
        devices: where its devices get their orders.
        neighbours: fetches models of other edge servers.
        disk: what it writes.
        leadership: who may command.

    Attributes:
        world: as given.
        state: where it is.
        commanded_at: when the last command came.
        phase: what it is doing, in the words of `cfel.status`.
        known_round: the newest global round whose record it has seen.
        loss: how it lost its state, in words, until it has taken one from another edge server; else empty.
        busy: held by the command that is carried out.
    """

    def __init__(
        self,
        world: World,
        number: int,
        directory: Path,
        devices: DeviceService,
        neighbours: NeighbourModels,
        disk: DiskWrites,
        leadership: Leadership,
    ) -> None:
        self._leadership = leadership
        self.world, self._number, self._devices = world, number, devices
        self._neighbours, self._disk = neighbours, disk
        self._files = EdgeDisk(directory, world.start)
        self.loss = ""
        self.state = self._load(directory)
        self.commanded_at = time.monotonic()
        self.phase = "waiting"
        self.known_round = 0
        self.busy = asyncio.Lock()

    def _load(self, directory: Path) -> EdgeState:
        """The state saved last; one that is damaged is taken from another edge server, if there is one."""
        try:
            return self._files.load()
        except DamagedError as error:
            if self.world.setting.fleet.clusters == 1:
                raise DamagedError(f"{error}. {_NO_OTHERS.format(directory)}") from error
            self.loss = f"{error}. {_FROM_OTHERS}"
            _LOG.error("%s", self.loss)
            return self._files.begin_anew()

    @property
    def is_stuck(self) -> bool:
        """Whether its disk takes no writes."""
        return self._disk.is_stuck

    @property
    def gossip_neighbours(self) -> list[int]:
        """Edge servers that it gossips with."""
        return self._read_neighbours(self.world.setting.backhaul)

    def active_neighbours(self, at: Position) -> list[int]:
        """Those that it gossips with in one step, where the scheme samples links."""
        return self._read_neighbours(self.world.setting.backhaul_at(*at))

    def _read_neighbours(self, backhaul: Backhaul) -> list[int]:
        row = backhaul.weights[self._number]
        return [j for j in np.flatnonzero(row).tolist() if j != self._number]

    async def admit(self, caller: Identity, command: Command[object]) -> None:
        """Returns if the caller may command.

        Raises:
            StaleTermError: it does not lead the term of its command.
            RejectedError: the run has no such position, or the disk takes no writes.
        """
        await self._leadership.admit(caller, command.term)
        # The coordinator would wait for an answer until its deadline, in every round.
        if self.is_stuck:
            raise RejectedError("its disk takes no writes; it takes part again when there is room")
        with self.check(caller):
            check_position(self.world, command.position)
        self.commanded_at = time.monotonic()

    def check(self, caller: Identity) -> AbstractContextManager[None]:
        """Where a command is checked: a caller whose command is not valid is not obeyed for a while."""
        return self._leadership.check(caller)

    def check_position(self, at: Position) -> None:
        """Raises `RejectedError` unless the edge server is at this position."""
        if self.state.position != at:
            raise RejectedError(f"is at {self.state.position}, not at {at}")

    async def catch_up(self, caller: Identity, at: Position) -> None:
        """Moves to a position that the others have reached without this edge server.

        After a gossip step missed it keeps its model, as gossip among the others assumed. After a longer
        absence its model is out of date, and it takes that of a neighbour.

        Raises:
            RejectedError: no other edge server has reached this global round, so the command is not valid; or
                no neighbour can be reached.
        """
        if at[0] > max(self.state.position[0], self.known_round):
            positions = await self._neighbours.find_positions(
                i for i in range(self.world.setting.fleet.clusters) if i not in (self._number, caller.number)
            )
            with self.check(caller):
                if positions and max(positions)[0] < at[0]:
                    raise RejectedError(f"round {at[0] + 1}: no other edge server has reached it")
        async with self.busy:
            if self.state.position >= at:
                return
            # One gossip step behind: the others averaged as if this model had stayed the same.
            if not self.loss and at[0] - self.state.position[0] <= 1:
                await self.save(replace(self.state, position=at))
                return
            model = await self._neighbours.fetch_any_present(self.gossip_neighbours)
            await self.save(replace(self.state, position=at, model=model, previous_model=model))

    async def advance(self, state: EdgeState) -> None:
        """Takes a step: saves the new state, and lets devices fetch its model if training comes next."""
        # Devices may fetch the model while it is being written: they start no round before the command comes.
        await asyncio.gather(self.save(state), self._announce(state))
        self.phase = "waiting"

    async def save(self, state: EdgeState) -> None:
        """Makes a state durable, and the present one."""
        await self._disk.write("state", lambda: self._files.save(state))
        self.state = state
        if self.loss:
            _LOG.warning("has a state again, at %s", state.position)
        self.loss = ""

    async def _announce(self, state: EdgeState) -> None:
        world, at = self.world, state.position
        if at[0] < world.setting.rounds.global_rounds and not gossip_is_next(world, at):
            await self._devices.announce(state.model)
