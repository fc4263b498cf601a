"""Gossip by differences on the wire: a neighbour that knows the last public model gets the difference."""

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic

import pytest
import torch

from cfel.deployment.coordinator.state import Position
from cfel.deployment.edge.neighbours import NeighbourModels
from cfel.deployment.edge.public_models import PublicModel
from cfel.deployment.edge.storage import EdgeState
from cfel.deployment.health import PeerFaults
from cfel.deployment.payloads import count_difference_bytes, model_size, read_difference
from cfel.deployment.protocol.calls import Answer, Request
from cfel.deployment.protocol.edge_requests import MixAnswer, PeerModelAnswer, PeerModelRequest
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError
from cfel.learning.differences import Differences, find_key
from cfel.learning.models.flat import FlatModel
from tests.support.inline_compute import InlineCompute

DIFFERENCES = Differences(0.01, 8, 0.1)
START = FlatModel(torch.linspace(-1, 1, 2000), torch.ones(3), torch.zeros(2))
FIRST, SECOND = (0, 1, 0), (0, 2, 0)


def train(model: FlatModel) -> FlatModel:
    """Another model."""
    return FlatModel(model.parameters * 1.1 + 0.01, model.buffers + 1, model.memory - 1)


def make_public() -> PublicModel:
    return PublicModel(DIFFERENCES, partial(find_key, 0, edge_server=1), START, InlineCompute())


@dataclass
class Sender:
    """Edge server 1, which answers with its public models; `sent` are the bytes of each answer."""

    state: EdgeState = field(default_factory=lambda: EdgeState(FIRST, train(START), START))
    public: PublicModel = field(default_factory=make_public)
    sent: list[int] = field(default_factory=list)

    async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
        """See `Calls`."""
        del to, seconds
        assert isinstance(request, PeerModelRequest)
        assert request.position is not None
        encoded = await self.public.encode(self.state, request.position, request.known)
        self.sent.append(len(encoded.body))
        return PeerModelAnswer(self.state.position, encoded.sha256, encoded.body)  # type: ignore[return-value]

    async def mix(self, at: Position, after: Position) -> FlatModel:
        """Takes a gossip step and trains; returns its public model."""
        public = await self.public.publish(self.state, at)
        answer = MixAnswer(at, (), "0" * 64, None)
        self.state = replace(
            self.state,
            position=after,
            model=train(self.state.model),
            previous_model=self.state.model,
            gossip=answer,
            public=public,
        )
        return public


def neighbour_of(sender: Sender) -> NeighbourModels:
    faults = PeerFaults(monotonic)
    return NeighbourModels(sender, START, 5.0, faults, InlineCompute(), differences=DIFFERENCES)


async def fetch(neighbour: NeighbourModels, at: Position) -> FlatModel:
    return (await neighbour.fetch(1, at, [1], START, public=True))[1]


def equal(one: FlatModel, other: FlatModel) -> bool:
    return one.sha256() == other.sha256()


def test_differences_follow_each_other() -> None:
    """The first is from the model that everybody begins with. All have the size that the receiver expects."""

    async def play() -> None:
        sender = Sender()
        neighbour = neighbour_of(sender)
        first = await fetch(neighbour, FIRST)
        assert equal(first, await sender.mix(FIRST, SECOND))
        assert equal(await fetch(neighbour, SECOND), await sender.public.publish(sender.state, SECOND))
        assert sender.sent == [count_difference_bytes(DIFFERENCES, START)] * 2
        assert sender.sent[0] < model_size(START) / 50

    asyncio.run(play())


def test_a_neighbour_that_missed_a_step_or_has_forgotten_gets_the_whole() -> None:
    """And the same bits as one that did not; then it gets differences again."""

    async def play() -> None:
        sender = Sender()
        there, away = neighbour_of(sender), neighbour_of(sender)
        await fetch(there, FIRST)
        await sender.mix(FIRST, SECOND)
        known, sender.sent = await fetch(there, SECOND), []
        assert equal(await fetch(away, SECOND), known)
        assert sender.sent == [model_size(START)]
        await sender.mix(SECOND, (1, 1, 0))
        both = [await fetch(each, (1, 1, 0)) for each in (there, away)]
        assert equal(*both)
        assert sender.sent[1:] == [count_difference_bytes(DIFFERENCES, START)] * 2

    asyncio.run(play())


def test_a_sender_that_was_started_again_after_its_step_has_the_whole() -> None:
    """A neighbour asks late: the public model of that step is in the sender's state."""

    async def play() -> None:
        sender = Sender()
        public = await sender.mix(FIRST, SECOND)
        sender.public = make_public()
        assert equal(await fetch(neighbour_of(sender), FIRST), public)
        assert sender.sent == [model_size(START)]
        with pytest.raises(RejectedError, match="has no model of"):
            await sender.public.encode(sender.state, (5, 1, 0), None)

    asyncio.run(play())


def test_a_difference_that_is_none_is_rejected() -> None:
    with pytest.raises(RejectedError, match="too short"):
        read_difference(b"1234", START)
    with pytest.raises(RejectedError):
        read_difference(b"\0" * 400, START)
