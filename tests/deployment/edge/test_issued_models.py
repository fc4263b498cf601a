"""Models for devices that fetch differences: the steps that lead to them, come what may."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest
import torch

from cfel.control.setting import MOST_STEPS
from cfel.deployment.edge.checks import MOST_VALUE, is_usable
from cfel.deployment.edge.issued_models import IssuedModels
from cfel.deployment.edge.storage import EdgeState
from cfel.deployment.payloads import EncodedModels, Step, read_difference
from cfel.learning.differences import Differences, find_issue_key
from cfel.learning.models.flat import FlatModel
from tests.support.inline_compute import InlineCompute

START = FlatModel(torch.linspace(-1, 1, 2000), torch.ones(3))


def make(theta: float = 0.01, bits: int = 8) -> IssuedModels:
    compute, key = InlineCompute(), partial(find_issue_key, 0, edge_server=1)
    return IssuedModels(Differences(theta, bits), key, START, EncodedModels(compute, most=3), compute)


def train(state: EdgeState) -> EdgeState:
    """The state before the next edge round, with another model."""
    at, model = state.position, state.model
    other = FlatModel(model.parameters * 1.1 + 0.01, model.buffers + 1)
    return replace(state, position=(at[0], at[1] + 1, 0), model=other)


def follow(known: FlatModel, steps: tuple[Step, ...]) -> FlatModel:
    """The model that a device gets to."""
    for step in steps:
        assert step.known == known.sha256().hex()
        known = read_difference(bytes(step.difference.join()), known)
    return known


def equal(one: FlatModel, other: FlatModel) -> bool:
    return one.sha256() == other.sha256()


def test_steps_lead_from_every_model_to_the_newest() -> None:
    async def play() -> None:
        issued, state, known = make(), train(EdgeState((0, 0, 0), START, START)), [START]
        for number in range(1, 4):
            model = await issued.issue(state)
            assert await issued.issue(state) is model
            steps = issued.find_steps(model)
            assert len(steps) == number
            for place, each in enumerate(known):
                assert equal(follow(each, steps[place:]), model)
            assert not issued.find_steps(START)
            known.append(model)
            state = train(replace(state, issued=model))

    asyncio.run(play())


def test_an_issue_that_nobody_trained_from_is_no_step() -> None:
    async def play() -> None:
        issued, state = make(), train(EdgeState((0, 0, 0), START, START))
        first = await issued.issue(state)
        await issued.issue(train(replace(state, issued=first)))
        later = replace(state, issued=first, position=(0, 7, 0), model=train(state).model)
        model = await issued.issue(later)
        steps = issued.find_steps(model)
        assert len(steps) == 2
        assert equal(follow(START, steps), model)
        assert equal(follow(first, steps[1:]), model)

    asyncio.run(play())


def test_after_a_restart_the_same_model_is_issued() -> None:
    """There is one step, from what is on the disk; none from models before it, nor from another's model."""

    async def play() -> None:
        issued, state = make(), train(EdgeState((0, 0, 0), START, START))
        first = await issued.issue(state)
        state = train(replace(state, issued=first))
        again = make()
        model = await again.issue(state)
        assert equal(model, await issued.issue(state))
        (step,) = again.find_steps(model)
        assert equal(follow(first, (step,)), model)
        elsewhere = train(state).model
        taken = await again.issue(replace(state, model=elsewhere, issued=elsewhere, position=(3, 0, 0)))
        assert equal(taken, elsewhere)
        assert len(again.find_steps(taken)) == 1

    asyncio.run(play())


def test_steps_that_would_be_larger_than_the_model_are_dropped() -> None:
    """8 bits of all entries are a quarter; of a hundredth of them, 16 steps are kept."""

    async def count(theta: float) -> int:
        issued, state = make(theta), train(EdgeState((0, 0, 0), START, START))
        for _ in range(MOST_STEPS + 2):
            model = await issued.issue(state)
            state = train(replace(state, issued=model))
        return len(issued.find_steps(model))

    assert asyncio.run(count(1.0)) == 3
    assert asyncio.run(count(0.01)) == MOST_STEPS


@pytest.mark.parametrize("bits", [4, 8, 32])
def test_a_device_cannot_push_a_model_to_where_there_is_no_difference(bits: int) -> None:
    """By updates that grow from round to round, each of which passes."""

    def fill(value: float) -> FlatModel:
        return FlatModel(torch.full((2000,), value) * torch.linspace(0.5, 1, 2000), torch.ones(3))

    async def play() -> None:
        issued, state = make(0.9, bits), EdgeState((0, 0, 0), fill(MOST_VALUE), START)
        for number in range(1, 5):
            model = await issued.issue(state)
            assert model.is_finite()
            sign = (-1) ** number
            state = replace(state, issued=model, model=fill(sign * MOST_VALUE), position=(number, 0, 0))

    asyncio.run(play())
    assert is_usable(fill(-MOST_VALUE))
    assert not is_usable(fill(2 * MOST_VALUE))
