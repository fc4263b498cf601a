"""What a new coordinator believes of what edge servers hand over, one of which may lie."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from cfel.control.scheme import RoundPlan
from cfel.deployment.coordinator.control_state import CoordinatorState, initial_coordinator_state
from cfel.deployment.coordinator.handover import Handover, has_begun, take_over
from cfel.deployment.protocol.coordinator_requests import NewestAnswer, ProposedRecord
from cfel.runlog import RoundRecord
from cfel.world import World
from tests.deployment.conftest import deployed
from tests.deployment.coordinator.test_checked_calls import RECORD

TERM = 9
OLD, OTHER = replace(RECORD, wall_seconds=2.0), replace(RECORD, wall_seconds=3.0)
LOST = NewestAnswer((0, 0, 0), None, (), is_lost=True)


@cache
def world(clusters: int) -> World:
    return deployed({"fleet": {"devices": 6, "clusters": clusters}}).build_world()


@cache
def start(clusters: int) -> CoordinatorState:
    return initial_coordinator_state(world(clusters))


def state(rounds_done: int, clusters: int = 5, spent: float = 0.0) -> CoordinatorState:
    """The state with the plan of the first edge round after so many global rounds."""
    ones = np.ones(6)
    control = replace(start(clusters).control, rounds_done=rounds_done, spent_joules=ones * spent)
    return replace(
        start(clusters), control=control, plan=RoundPlan(rho=ones, theta=ones), available=(True,) * 6
    )


def mixing(rounds_done: int, clusters: int = 5) -> CoordinatorState:
    """The state of the gossip step that ends the next global round."""
    edge_rounds = world(clusters).setting.rounds.edge_rounds
    return replace(state(rounds_done, clusters), edge_round=edge_rounds, plan=None, available=())


def hand_over(states: Sequence[CoordinatorState | None], clusters: int = 5) -> Handover:
    """Edge server 0 coordinates, and asks all whose state is listed."""
    answers = {i: NewestAnswer((0, 0, 0), each, ()) for i, each in enumerate(states)}
    found = take_over(world(clusters), answers, 0, TERM, start(clusters))
    assert found is not None
    return found


@pytest.mark.parametrize("spent", [0.0, 1e300], ids=["later round", "same round"])
def test_a_state_that_one_edge_server_alone_knows_is_not_believed(spent: float) -> None:
    agreed, lie = state(1), state(1 if spent else 2, spent=spent)
    found = hand_over([agreed, agreed, agreed, agreed, lie])
    assert found.state is agreed
    assert found.doubts == ((4, f"a state of {lie.position} that no other edge server has"),)


def test_one_that_was_absent_believes_two_others_but_not_one() -> None:
    agreed, old = state(2), state(0)
    assert hand_over([old, agreed, state(2), old, state(3)]).state is agreed
    assert hand_over([old, old, old, old, agreed]).state is old


def test_who_is_one_step_ahead_confirms_where_the_others_are() -> None:
    """Nobody else knows the state of edge server 1, but 2 is where it leads to; 4 is left behind, like 0."""
    before, ahead = mixing(1), state(2)
    found = hand_over([state(0), before, ahead, state(0), state(0)])
    assert found.state is before
    assert found.doubts == ()
    assert found.find_plan((2, 0, 0)) is ahead
    assert found.find_plan((1, 0, 0)) is None


def test_with_others_silent_the_newest_state_that_a_majority_may_know_counts() -> None:
    agreed, ahead = state(1), state(3)
    assert hand_over([agreed, agreed, ahead]).state is ahead
    assert hand_over([agreed, agreed, agreed, ahead]).state is agreed
    assert hand_over([state(1, 3), state(3, 3)], 3).state.control.rounds_done == 3
    assert hand_over([state(1, 3), state(1, 3), state(3, 3)], 3).state.control.rounds_done == 1


def test_a_liar_that_claims_to_have_lost_its_state_gets_no_second_voice() -> None:
    answers = {i: NewestAnswer((0, 0, 0), state(1, 3), ()) for i in (0, 1)}
    answers[2] = NewestAnswer((0, 0, 0), state(3, 3), (), is_lost=True)
    found = take_over(world(3), answers, 0, TERM, start(3))
    assert found is not None
    assert found.state.control.rounds_done == 1


def test_a_plan_that_one_alone_knows_does_not_begin_the_run() -> None:
    found = hand_over([None, None, None, None, state(0, spent=1e300)])
    assert found.state is start(5)
    assert found.find_plan((0, 0, 0)) is not None


def test_who_has_lost_its_state_keeps_the_run_from_beginning_only_if_a_majority_may_have() -> None:
    sound = NewestAnswer((0, 0, 0), None, ())
    assert not has_begun({0: sound, 1: sound}, 3)
    assert not has_begun({0: sound, 1: sound, 2: LOST}, 3)
    assert has_begun({0: sound, 2: LOST}, 3)
    assert take_over(world(3), {0: sound, 2: LOST}, 0, TERM, start(3)) is None


@pytest.mark.parametrize(
    ("proposals", "silent", "chosen"),
    [
        ([], 0, RECORD),
        ([OLD, OLD], 0, OLD),
        ([OTHER, None], 0, RECORD),
        ([OTHER], 1, OTHER),
        ([replace(OLD, round=2)] * 2, 0, RECORD),
    ],
    ids=["none", "a majority has it", "one has it", "one, and one is silent", "of another round"],
)
def test_a_record_counts_that_a_majority_may_have_stored(
    proposals: list[RoundRecord | None], silent: int, chosen: RoundRecord
) -> None:
    found = tuple(ProposedRecord(2, each) for each in proposals if each is not None)
    assert Handover(start(3), records=found, silent=silent).choose_record(RECORD) == chosen


def test_the_record_of_the_newest_earlier_term_counts() -> None:
    """Two of five are silent, so either may have been stored by a majority; the later one is the only one."""
    records = (ProposedRecord(2, OTHER), ProposedRecord(1, OLD))
    assert Handover(start(5), records=records, silent=2).choose_record(RECORD) == OTHER


def test_records_that_cannot_be_are_doubted_and_not_used() -> None:
    agreed = state(1)
    answers = {i: NewestAnswer((0, 0, 0), agreed, ()) for i in range(3)}
    lies = [ProposedRecord(2**52, OTHER), ProposedRecord(1, replace(OTHER, round=7))]
    for number, lie in zip((3, 4), lies, strict=True):
        answers[number] = NewestAnswer((0, 0, 0), agreed, (), proposal=lie)
    found = take_over(world(5), answers, 0, TERM, start(5))
    assert found is not None
    assert dict(found.doubts) == {
        3: f"a record of term {2**52}, which has not begun",
        4: "a record of round 7, which nobody has reached",
    }
    assert found.choose_record(RECORD) == RECORD
