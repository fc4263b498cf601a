"""What a new coordinator takes over: the newest state, and the record that may be logged already."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from cfel.deployment.coordinator.calls import Handover, TermCalls, may_have_begun, take_over
from cfel.deployment.coordinator.state import CoordinatorState, initial_coordinator_state
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.protocol.calls import Answer, Request
from cfel.deployment.protocol.edge_requests import LOGGED, NewestAnswer, ProposedRecord
from cfel.deployment.security.identity import Identity
from cfel.errors import UnreachableError
from cfel.runlog import RoundRecord
from tests.deployment.conftest import deployed
from tests.deployment.samples import RECORD
from tests.deployment.virtual_time import run_virtually

WORLD = deployed().build_world()
START = initial_coordinator_state(WORLD, 0.0)
OLD, OTHER = replace(RECORD, wall_seconds=2.0), replace(RECORD, wall_seconds=3.0)
SOUND = NewestAnswer((0, 0, 0), None, ())
LOST = NewestAnswer((0, 0, 0), None, (), is_lost=True)
ALL_DEVICES = NewestAnswer((0, 0, 0), None, (0, 1))


def state(rounds_done: int) -> CoordinatorState:
    return replace(START, control=replace(START.control, rounds_done=rounds_done))


def known(rounds_done: int) -> NewestAnswer:
    return NewestAnswer((rounds_done, 0, 0), state(rounds_done), ())


@dataclass
class Edges:
    """Edge servers with these answers; None for one that is silent."""

    answers: Sequence[NewestAnswer | None]

    async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
        """See `Calls`."""
        del request, seconds
        answer = self.answers[to.number]
        if answer is None:
            raise UnreachableError(f"{to}: nobody answers")
        return answer  # type: ignore[return-value]


def hand_over(*answers: NewestAnswer | None, gone: tuple[int, ...] = ()) -> Handover | None:
    """What the coordinator of three edge servers takes over within a minute; None if it keeps asking."""

    async def play() -> Handover | None:
        edges = TermCalls(9, range(3), Edges(answers), lambda: True, 0.0, lambda i: i in gone)
        try:
            async with asyncio.timeout(60):
                return await take_over(edges, WORLD, DeploymentParameters(join_seconds=30.0), 0.0)
        except TimeoutError:
            return None

    return run_virtually(play())


def rounds_done(found: Handover | None) -> int | None:
    return None if found is None else found.state.control.rounds_done


def test_the_newest_state_that_anybody_knows_counts() -> None:
    assert rounds_done(hand_over(known(1), known(2), known(1))) == 2
    assert rounds_done(hand_over(SOUND, known(3), None)) == 3


def test_a_minority_may_not_have_heard_of_the_newest_state() -> None:
    assert hand_over(known(1), None, None) is None


def test_one_that_lost_its_state_counts_only_if_those_that_may_know_it_are_gone() -> None:
    assert hand_over(known(1), LOST, None) is None
    assert rounds_done(hand_over(known(1), LOST, None, gone=(2,))) == 1
    assert rounds_done(hand_over(known(1), LOST, known(2))) == 2
    assert hand_over(LOST, LOST, ALL_DEVICES) is None


def test_the_first_round_waits_for_all_to_join_and_not_for_ever() -> None:
    assert rounds_done(hand_over(ALL_DEVICES, ALL_DEVICES, ALL_DEVICES)) == 0
    assert rounds_done(hand_over(ALL_DEVICES, SOUND, None)) == 0
    assert hand_over(SOUND, SOUND, SOUND) is None


def test_who_has_lost_its_state_keeps_the_run_from_beginning_only_if_a_majority_may_have() -> None:
    assert not may_have_begun({0: SOUND, 1: SOUND}, 3)
    assert not may_have_begun({0: SOUND, 1: SOUND, 2: LOST}, 3)
    assert may_have_begun({0: SOUND, 2: LOST}, 3)


@pytest.mark.parametrize(
    ("proposals", "chosen"),
    [
        ([], RECORD),
        ([(2, OLD)], OLD),
        ([(1, OTHER), (2, OLD), (1, OTHER)], OLD),
        ([(2, OTHER), (LOGGED, OLD)], OLD),
        ([(2, replace(OLD, round=2))], RECORD),
    ],
    ids=["none", "one", "of the newest term", "logged", "of another round"],
)
def test_a_record_counts_that_may_be_logged(
    proposals: list[tuple[int, RoundRecord]], chosen: RoundRecord
) -> None:
    found = tuple(ProposedRecord(term, each) for term, each in proposals)
    assert Handover(START, found).choose_record(RECORD) == chosen
