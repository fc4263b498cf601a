"""Thousands of random fault schedules: one leader per term always, one leader soon once the faults stop."""

from dataclasses import replace

import pytest
from msgspec import structs

from cfel.deployment.election.rules import (
    Action,
    ElectionState,
    Event,
    Received,
    Role,
    Timing,
    Vote,
    VoteReply,
    VoteRequest,
    step,
)
from tests.deployment.election.election_world import Faults, Memory, SafetyError, Step, World, remembers

Answer = tuple[ElectionState, tuple[Action, ...]]

SETTLE_SECONDS = 15.0
HASTY = Timing(0.02, 0.05, (0.06, 0.08), (0.03, 0.12))
"""Shorter than a slow message takes: elections overlap, and old votes turn up in later ones."""
STUBBORN = Timing(0.1, 0.11, (0.12, 0.13), (1.0, 2.0))
"""Candidates wait for votes far longer than voters for a leader: many stand in one term."""


def faults_of(seed: int) -> Faults:
    """Schedules differ in kind, not only in chance: mild, lossy, falling over, in haste, stubborn."""
    return (
        Faults(),
        Faults(drop=0.4, double=0.0, crash=0.0),
        Faults(crash=0.03, slow=0.3, upheavals_per_second=6.0),
        Faults(slow=0.4, slow_seconds=0.3, double=0.3, crash=0.02, drift=0.01, timing=HASTY),
        Faults(
            slow=1.0,
            slow_seconds=0.4,
            drop=0.0,
            crash=0.05,
            down_seconds=(0.001,),
            upheavals_per_second=0.1,
            timing=STUBBORN,
        ),
    )[seed % 5]


def run_schedule(size: int, seed: int, act: Step = step, memory: Memory = remembers) -> World:
    """Bad seconds, then good ones until there is a leader, at most `SETTLE_SECONDS`."""
    faults = faults_of(seed)
    world = World(size, seed, faults, act, memory)
    world.run(20.0 if faults.timing is STUBBORN else 6.0)
    world.calm()
    calm_at = world.now
    while world.now < calm_at + SETTLE_SECONDS and world.leader() is None:
        world.run(0.25)
    return world


def check_schedules(size: int, seeds: range) -> None:
    for seed in seeds:
        world = run_schedule(size, seed)
        assert world.leader() is not None, (
            f"size {size}, seed {seed}: no leader {SETTLE_SECONDS} s after faults"
        )


BLOCKS = [0, 1, *(pytest.param(block, marks=pytest.mark.long) for block in range(2, 6))]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("size", [3, 5, 8])
def test_one_leader_per_term_always_and_one_leader_in_the_end(size: int, block: int) -> None:
    check_schedules(size, range(40 * block, 40 * (block + 1)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", [3, 5, 8])
def test_one_leader_per_term_over_thousands_of_schedules(size: int) -> None:
    check_schedules(size, range(1000, 2500))


def forgets_votes(_: Vote, new: Vote) -> Vote:
    return Vote(new.term)


def forgets_everything(old: Vote, _: Vote) -> Vote:
    return old


def votes_for_everybody(state: ElectionState, event: Event, now: float, draw: float) -> Answer:
    """Forgets its vote as soon as the next request comes."""
    match event:
        case Received(_, VoteRequest(preliminary=False)) if state.role is Role.FOLLOWER:
            state = replace(state, vote=Vote(state.term))
    return step(state, event, now, draw)


def half_is_enough(state: ElectionState, event: Event, now: float, draw: float) -> Answer:
    """Believes that one vote more was granted than was."""
    match event:
        case Received(_, VoteReply(granted=True)) if state.granted:
            state = replace(state, granted=state.granted | {-1})
    return step(state, event, now, draw)


def counts_old_votes(state: ElectionState, event: Event, now: float, draw: float) -> Answer:
    """Takes any vote for one in the election under way."""
    match event:
        case Received(sender, VoteReply() as reply):
            event = Received(sender, structs.replace(reply, term=state.term, asked_at=state.asked_at))
    return step(state, event, now, draw)


def votes_against_a_living_leader(state: ElectionState, event: Event, now: float, draw: float) -> Answer:
    """Does not wait for its leader's time to run out: still one per term, but two that act at once."""
    match event:
        case Received(_, VoteRequest()) if state.role is Role.FOLLOWER:
            state = replace(state, heard_at=float("-inf"))
    return step(state, event, now, draw)


@pytest.mark.parametrize(
    ("act", "memory", "size", "first"),
    [
        (step, forgets_votes, 3, 0),
        (step, forgets_everything, 3, 0),
        (votes_for_everybody, remembers, 3, 0),
        (half_is_enough, remembers, 8, 25),
        (counts_old_votes, remembers, 3, 70),
        (votes_against_a_living_leader, remembers, 3, 101),
    ],
)
def test_the_schedules_catch_a_broken_election(act: Step, memory: Memory, size: int, first: int) -> None:
    """Each way to break the rules meets a schedule that shows it; it starts near the first that does."""
    check_schedules(size, range(first, first + 5))
    with pytest.raises(SafetyError):
        run_schedules(size, range(first, 600), act, memory)


def run_schedules(size: int, seeds: range, act: Step, memory: Memory) -> None:
    for seed in seeds:
        run_schedule(size, seed, act, memory)
