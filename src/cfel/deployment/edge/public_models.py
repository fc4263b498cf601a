"""Public models on the wire: both ends of gossip by differences (`learning.differences`).

A neighbour that has the public model before this gossip step gets the difference from it. Any other one gets
the whole public model: after a step that it missed, a restart, or if it is new. Either way it then has the
same bits, so nothing that gets lost can make two ends disagree for longer than a step.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cfel.deployment.coordinator.state import Position
from cfel.deployment.edge.storage import EdgeState
from cfel.deployment.host import Compute
from cfel.deployment.payloads import EncodedModel, pack_difference
from cfel.deployment.protocol.messages import Body
from cfel.errors import RejectedError
from cfel.learning.differences import Differences
from cfel.learning.models.flat import FlatModel


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """What an edge server sends in a gossip step."""

    at: Position
    source: FlatModel  # its model
    whole: EncodedModel  # its public model
    known: str  # SHA-256 of the public model before
    difference: EncodedModel | None  # from that; None after a restart


class PublicModel:
    """The public model of an edge server, step by step.

    Args:
        differences: how they are made.
        find_key: the key of the rounding in a gossip step.
        start: the model before the first round, which everybody knows.
        compute: where they are made.
    """

    def __init__(
        self,
        differences: Differences,
        find_key: Callable[[Position], int],
        start: FlatModel,
        compute: Compute,
    ) -> None:
        self.differences, self._find_key, self._start = differences, find_key, start
        self._compute, self._busy = compute, asyncio.Lock()
        self._last: _Step | None = None

    async def publish(self, state: EdgeState, at: Position) -> FlatModel:
        """The public model of a gossip step, before it or just after."""
        return (await self._find(state, at)).whole.model

    async def encode(self, state: EdgeState, at: Position, known: str | None) -> EncodedModel:
        """The same as bytes: the difference from a public model named by its SHA-256, or the whole.

        Raises:
            RejectedError: it has no public model of this step, or no difference from that one.
        """
        step = await self._find(state, at)
        if known is None:
            return step.whole
        if step.difference is None or step.known != known:
            raise RejectedError("has no difference from that public model")
        return step.difference

    async def _find(self, state: EdgeState, at: Position) -> _Step:
        async with self._busy:
            last = self._last
            source = state.previous_model if state.has_mixed(at) else state.model
            if last is not None and last.at == at and last.source is source:
                return last
            if state.has_mixed(at) and state.public is not None:
                whole = await self._compute.run_aside(partial(EncodedModel.encode, state.public))
                return _Step(at, source, whole, "", None)
            if state.position != at:
                raise RejectedError(f"is at {state.position}, has no model of {at}")
            self._last = await self._compute.run_aside(partial(self._make, state, at))
            return self._last

    def _make(self, state: EdgeState, at: Position) -> _Step:
        known = state.public or self._start
        published = self.differences.publish(state.model, known, self._find_key(at))
        body = Body.hash(pack_difference(published))
        difference = EncodedModel(published.model, body)
        return _Step(at, state.model, EncodedModel.encode(published.model), known.sha256().hex(), difference)
