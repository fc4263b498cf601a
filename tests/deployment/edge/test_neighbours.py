"""Models fetched for a gossip step: commands that come late or again do no harm."""

import asyncio
from dataclasses import dataclass, field
from time import monotonic

import pytest
import torch

from cfel.deployment.coordinator.state import Position
from cfel.deployment.edge.neighbours import NeighbourModels
from cfel.deployment.health import PeerFaults
from cfel.deployment.payloads import EncodedModel
from cfel.deployment.protocol.calls import Answer, Request
from cfel.deployment.protocol.edge_requests import PeerModelAnswer, PeerModelRequest
from cfel.deployment.protocol.messages import Body
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError
from cfel.learning.models.flat import FlatModel
from tests.support.inline_compute import InlineCompute

MODEL = FlatModel(torch.arange(3.0), torch.zeros(0))
FIRST, SECOND = (0, 2, 0), (0, 2, 1)


@dataclass
class Neighbours:
    """Edge servers that answer with `MODEL`, number 2 only when it is let."""

    slow: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[tuple[int, Position | None]] = field(default_factory=list)

    async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
        """See `Calls`."""
        del seconds
        assert isinstance(request, PeerModelRequest)
        self.asked.append((to.number, request.position))
        if to.number == 2:
            await self.slow.wait()
        encoded = EncodedModel.encode(MODEL)
        return PeerModelAnswer((0, 0, 0), encoded.sha256, encoded.body)  # type: ignore[return-value]


def test_a_late_copy_of_fetch_leaves_the_step_under_way_alone() -> None:
    """Step (0, 2, 1) has one model and waits for the other when a copy of the step before comes late."""

    async def play() -> None:
        neighbours = Neighbours()
        models = NeighbourModels(neighbours, MODEL, 5.0, PeerFaults(monotonic), InlineCompute())
        under_way = asyncio.create_task(models.fetch(1, SECOND, [1, 2], MODEL))
        await asyncio.sleep(0.01)
        assert await models.fetch(1, FIRST, [1], MODEL) == {}
        neighbours.slow.set()
        assert sorted(await under_way) == [1, 2]
        assert neighbours.asked == [(1, SECOND), (2, SECOND)]

    asyncio.run(play())


def test_the_same_step_is_fetched_once_also_for_a_new_coordinator() -> None:
    async def play() -> None:
        neighbours = Neighbours()
        models = NeighbourModels(neighbours, MODEL, 5.0, PeerFaults(monotonic), InlineCompute())
        await models.fetch(1, FIRST, [1], MODEL)
        assert sorted(await models.fetch(2, FIRST, [1], MODEL)) == [1]
        assert neighbours.asked == [(1, FIRST)]

    asyncio.run(play())


def test_a_new_coordinator_may_go_back_a_step() -> None:
    """It has not heard that the others went on; an older coordinator is rejected by its term before this."""

    async def play() -> None:
        neighbours = Neighbours()
        models = NeighbourModels(neighbours, MODEL, 5.0, PeerFaults(monotonic), InlineCompute())
        await models.fetch(1, SECOND, [1], MODEL)
        assert sorted(await models.fetch(2, FIRST, [1], MODEL)) == [1]

    asyncio.run(play())


def test_a_neighbour_that_drips_is_given_up() -> None:
    """Every part arrives in time, the model never would: another one is asked."""
    large = FlatModel(torch.zeros(1_000_000), torch.zeros(0))
    encoded = EncodedModel.encode(large)

    @dataclass
    class Dripping:
        parts: int = 0

        async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
            """See `Calls`."""
            del seconds
            assert isinstance(request, PeerModelRequest)
            begin, most = request.offset, request.most_bytes
            if to.number == 1:
                self.parts += 1
                await asyncio.sleep(0.4)
            part = Body.hash(encoded.body.join()[begin : begin + most])
            return PeerModelAnswer((0, 0, 0), encoded.sha256, part)  # type: ignore[return-value]

    async def play() -> None:
        calls = Dripping()
        models = NeighbourModels(calls, large, 1.0, PeerFaults(monotonic), InlineCompute())
        found = await models.fetch_any_present([1, 2], 0)
        assert found.parameters.numel() == 1_000_000
        assert calls.parts <= 4

    asyncio.run(play())


def test_without_any_neighbour_there_is_no_catching_up() -> None:
    @dataclass
    class Nobody:
        async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
            """See `Calls`."""
            raise RejectedError(f"{to}, {request.method}: not now ({seconds})")

    models = NeighbourModels(Nobody(), MODEL, 5.0, PeerFaults(monotonic), InlineCompute())
    with pytest.raises(RejectedError, match="no neighbour can be reached"):
        asyncio.run(models.fetch_any_present([1, 2], 0))


@pytest.mark.parametrize("terms", [(1, 1), (1, 2)])
def test_copies_of_a_fetch_under_way_share_one_download(terms: tuple[int, int]) -> None:
    """A command that comes twice, or again from a new coordinator; the neighbour is honest both times."""

    async def play() -> None:
        neighbours, faults = Neighbours(), PeerFaults(monotonic)
        models = NeighbourModels(neighbours, MODEL, 5.0, faults, InlineCompute())
        copies = [asyncio.create_task(models.fetch(term, FIRST, [2], MODEL)) for term in terms]
        await asyncio.sleep(0.01)
        neighbours.slow.set()
        assert [sorted(found) for found in await asyncio.gather(*copies)] == [[2], [2]]
        assert faults.problem == ""
        assert neighbours.asked == [(2, FIRST)]

    asyncio.run(play())


def test_two_may_fetch_the_present_model_at_once() -> None:
    async def play() -> None:
        neighbours, faults = Neighbours(), PeerFaults(monotonic)
        models = NeighbourModels(neighbours, MODEL, 5.0, faults, InlineCompute())
        both = [asyncio.create_task(models.fetch_present(2)) for _ in range(2)]
        await asyncio.sleep(0.01)
        neighbours.slow.set()
        for _, model in await asyncio.gather(*both):
            assert model.parameters.tolist() == MODEL.parameters.tolist()
        assert faults.problem == ""

    asyncio.run(play())
