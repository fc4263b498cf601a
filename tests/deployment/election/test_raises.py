"""One member that shows ever later terms: leaders stay, elections end, and terms stay close together."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from cfel.deployment.election.raises import MOST_LEADER_STEP, MOST_STEP
from cfel.deployment.election.rules import step
from cfel.deployment.election.state import (
    MOST_TERM_JUMP,
    ElectionMessage,
    Heartbeat,
    HeartbeatReply,
    Received,
    Role,
    Send,
    Vote,
    VoteReply,
    VoteRequest,
)
from tests.deployment.election.election_world import World
from tests.deployment.election.test_rules import elected, member

LIAR, SECONDS = 4, 60.0

Lie = Callable[[int], list[ElectionMessage]]
LIES: dict[str, Lie] = {
    "replies": lambda term: [HeartbeatReply(term + 1, 0.0)],
    "far replies": lambda term: [HeartbeatReply(term + MOST_TERM_JUMP, 0.0)],
    "requests": lambda term: [VoteRequest(term + 1, 0.0, preliminary=False)],
    "far requests": lambda term: [VoteRequest(term + MOST_TERM_JUMP, 0.0, preliminary=False)],
    "heartbeats": lambda term: [Heartbeat(term + 1, 0.0)],
    "everything": lambda term: [
        HeartbeatReply(term + 900, 0.0),
        VoteReply(term + 900, 0.0, preliminary=True, granted=False),
        VoteRequest(term + 1, 0.0, preliminary=False),
        VoteRequest(term + 1000, 0.0, preliminary=False),
        Heartbeat(term + 2, 0.0),
        HeartbeatReply(2**53, 0.0),
    ],
}


def flood(world: World, lie: Lie) -> None:
    """Sends a lie to each honest member in turn, 20 times a second, about the term that this one knows."""
    turn = count()

    def send() -> None:
        to = next(turn) % LIAR
        for message in lie(world.states[to].term):
            world.happen(to, Received(LIAR, message))
        world.later(0.05, send)

    send()


@pytest.mark.parametrize("name", LIES)
def test_a_flood_of_later_terms_stops_nobody(name: str) -> None:
    """Four honest members, one that lies and never votes; without it a leader would act all the time."""
    world = World(5, 3)
    world.kill(LIAR)
    world.run(4.0)
    flood(world, LIES[name])
    led, longest, silent = 0, 0, 0
    for _ in range(int(SECONDS / 0.1)):
        world.run(0.1)
        silent = 0 if world.leader() is not None else silent + 1
        led, longest = led + (silent == 0), max(longest, silent)
    terms = [state.term for state in world.states.values()]
    assert led * 0.1 > 0.85 * SECONDS
    assert longest * 0.1 < 10.0
    assert max(terms) - min(terms) <= MOST_TERM_JUMP
    # Also without the flood, a leader follows soon.
    world.agenda = [each for each in world.agenda if each[2].__name__ != "send"]
    world.run(5.0)
    assert world.leader() is not None


def test_a_member_that_has_asked_nothing_hears_no_replies() -> None:
    following, _ = step(member(1), Received(0, Heartbeat(3, 77.0)), 10.1, 0.0)
    for reply in (HeartbeatReply(4, 0.0), VoteReply(4, 0.0, preliminary=False, granted=False)):
        assert step(following, Received(2, reply), 10.2, 0.0) == (following, ())


def test_a_leader_that_is_raised_asks_its_followers_at_once_and_again_only_after_a_while() -> None:
    """By one member once in thirty timeouts of 0.7 s; by another one at any time."""
    state, actions = step(elected(size=5), Received(1, HeartbeatReply(500, 0.0)), 11.1, 0.5)
    assert (state.role, state.vote) == (Role.CANDIDATE, Vote(2 + MOST_LEADER_STEP, 0))
    request = VoteRequest(2 + MOST_LEADER_STEP, 11.1, preliminary=False)
    assert actions[2:] == tuple(Send(other, request) for other in (1, 2, 3, 4))
    leads = replace(state, role=Role.LEADER, leader=0, answered=(11.1,) * 5)
    later = HeartbeatReply(leads.term + 1, 0.0)
    assert step(leads, Received(1, later), 32.0, 0.5) == (leads, ())
    assert step(leads, Received(2, later), 12.0, 0.5)[0].role is Role.CANDIDATE
    assert step(leads, Received(1, later), 32.2, 0.5)[0].role is Role.CANDIDATE


def test_a_follower_votes_for_its_own_leader_and_no_other_while_it_hears_it() -> None:
    following, _ = step(member(1), Received(0, Heartbeat(3, 77.0)), 10.1, 0.0)
    request = VoteRequest(4, 0.0, preliminary=False)
    assert step(following, Received(2, request), 10.2, 0.0)[0] is following
    voted, _ = step(following, Received(0, request), 10.2, 0.0)
    assert voted.vote == Vote(4, 0)
    # Still bound: the leader that it heard may be elected, and nobody else for now.
    assert step(voted, Received(2, VoteRequest(5, 0.0, preliminary=False)), 10.3, 0.0)[0] is voted


def test_a_term_far_away_is_entered_in_steps_and_without_a_vote() -> None:
    state = member(size=5, vote=Vote(5))
    asked, _ = step(state, Received(1, VoteRequest(900, 0.0, preliminary=False)), 12.0, 0.5)
    assert asked.vote == Vote(5 + MOST_STEP)
    assert step(asked, Received(1, VoteRequest(900, 0.0, preliminary=False)), 12.1, 0.5)[0].vote == asked.vote
    told, _ = step(asked, Received(2, Heartbeat(900, 0.0)), 12.0, 0.5)
    assert (told.vote, told.leader) == (Vote(5 + 2 * MOST_STEP), None)
