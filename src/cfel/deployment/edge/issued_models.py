"""What the devices of an edge server train from, where they fetch differences (`learning.differences`).

An order names its model, and the steps that lead to it: the differences from the models that were issued
before. A device that trained from one of these fetches the differences since then, as long as they are
smaller than the model. Any other one fetches the whole: after a restart, a long absence, or if it is new.
Either way it then has the model that the order names, so nothing that gets lost can set two ends apart.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from cfel.control.setting import MOST_STEPS
from cfel.deployment.coordinator.state import Position
from cfel.deployment.edge.storage import EdgeState
from cfel.deployment.host import Compute
from cfel.deployment.payloads import EncodedModels, Step, model_size, pack_difference
from cfel.deployment.protocol.messages import Body
from cfel.learning.differences import Differences, Published
from cfel.learning.models.flat import FlatModel


class _Issue(NamedTuple):
    """An issued model: what it was made of, and the steps that lead to it."""

    at: Position
    source: FlatModel
    known: FlatModel | None
    model: FlatModel
    steps: tuple[Step, ...]


class IssuedModels:
    """The issued models of an edge server, edge round by edge round.

    Args:
        differences: how they are made.
        find_key: the key of the rounding, by global round and edge round.
        start: the model before the first round.
        models: where models are kept encoded.
        compute: where they are made.
    """

    def __init__(
        self,
        differences: Differences,
        find_key: Callable[[int, int], int],
        start: FlatModel,
        models: EncodedModels,
        compute: Compute,
    ) -> None:
        self._differences, self._find_key, self._start = differences, find_key, start
        self._models, self._compute, self._busy = models, compute, asyncio.Lock()
        self._last: _Issue | None = None

    async def issue(self, state: EdgeState) -> FlatModel:
        """The model of the edge round that is next; the same as often as it is asked for."""
        async with self._busy:
            last = self._last
            if last is None or last.at != state.position or last.source is not state.model:
                self._last = last = await self._make(state)
            return last.model

    def find_steps(self, model: FlatModel) -> tuple[Step, ...]:
        """The steps that lead to an issued model, if it is the last one."""
        return self._last.steps if self._last is not None and self._last.model is model else ()

    async def _make(self, state: EdgeState) -> _Issue:
        last, known = self._last, state.issued or self._start
        steps: tuple[Step, ...] = ()
        if last is not None and last.model is state.issued:
            steps = last.steps
        elif last is not None and last.known is state.issued:
            # Nobody took part in the edge round of the last issue, so it is void.
            steps = last.steps[:-1]
        name = (await self._models.get(known)).sha256
        published, difference = await self._compute.run_aside(partial(self._publish, state, known))
        steps = (*steps, Step(name, difference))[-MOST_STEPS:]
        # More bytes than the whole model are of no use to anybody.
        while len(steps) > 1 and sum(len(each.difference) for each in steps) >= model_size(known):
            steps = steps[1:]
        return _Issue(state.position, state.model, state.issued, published.model, steps)

    def _publish(self, state: EdgeState, known: FlatModel) -> tuple[Published, Body]:
        published = self._differences.publish(state.model, known, self._find_key(*state.position[:2]))
        return published, Body.hash(pack_difference(published))
