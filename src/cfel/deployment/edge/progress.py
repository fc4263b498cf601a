"""Where an edge server is, and whose commands it obeys: those of the highest term it has heard of.

A state is on the disk before anything is answered about it. What the commands do is in `training` and
`gossip`.
"""

import asyncio
import time
from pathlib import Path

from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.edge.device_service import DeviceService
from cfel.deployment.edge.state import EdgeDisk, EdgeState
from cfel.deployment.positions import Position, gossip_is_next
from cfel.deployment.protocol.coordinator_requests import Command
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError, StaleTermError
from cfel.world import World


class EdgeProgress:
    """One edge server's position and term.

    Args:
        world: what is run.
        directory: where the state is kept.
        devices: where its devices get their orders.
        compute: where files are written.

    Attributes:
        state: where it is.
        term: the highest it has heard of.
        commanded_at: when the last command came.
        phase: what it is doing, in the words of `cfel.status`.
        busy: held by the command that is carried out.
    """

    def __init__(self, world: World, directory: Path, devices: DeviceService, compute: ComputeThread) -> None:
        self._world, self._devices, self._compute = world, devices, compute
        self._disk = EdgeDisk(directory, world.start)
        self.state = self._disk.load()
        self.term = 0
        self.commanded_at = time.monotonic()
        self.phase = "waiting"
        self.busy = asyncio.Lock()

    def obey(self, term: int) -> None:
        """Notes a term; commands of earlier ones are rejected from now on."""
        self.term = max(self.term, term)

    def check_term(self, caller: Identity, command: Command[object]) -> None:
        """Notes the term of a command.

        Raises:
            StaleTermError: a later one has begun.
        """
        if command.term < self.term:
            raise StaleTermError(f"stale term {command.term} of {caller}: term {self.term} has begun")
        self.obey(command.term)
        self.commanded_at = time.monotonic()

    def check_position(self, at: Position) -> None:
        """Raises `RejectedError` unless the edge server is at this position."""
        if self.state.position != at:
            raise RejectedError(f"is at {self.state.position}, not at {at}")

    async def advance(self, state: EdgeState) -> None:
        """Takes a step: saves the new state, and lets devices fetch its model if training comes next."""
        await asyncio.gather(self.save(state), self._announce(state))
        self.phase = "waiting"

    async def save(self, state: EdgeState) -> None:
        """Makes a state durable, and the present one."""
        await self._compute.run(lambda: self._disk.save(state))
        self.state = state

    async def _announce(self, state: EdgeState) -> None:
        world, at = self._world, state.position
        if at[0] < world.setting.rounds.global_rounds and not gossip_is_next(world, at):
            await self._devices.announce(state.model)
