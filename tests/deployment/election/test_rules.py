"""The rules of the vote, one at a time, and the times a user feels."""

import pytest

from cfel.deployment.election.rules import (
    MOST_TERM_JUMP,
    ElectionState,
    Electorate,
    Heartbeat,
    HeartbeatReply,
    LeaderChanged,
    Persist,
    Received,
    Role,
    Send,
    Tick,
    Timing,
    Vote,
    VoteReply,
    VoteRequest,
    change_members,
    is_leading,
    next_tick_at,
    start,
    step,
)
from cfel.errors import InputError
from tests.deployment.election.election_world import World

TIMING = Timing()


def member(own: int = 0, size: int = 3, vote: Vote = Vote()) -> ElectionState:  # noqa: B008 (frozen)
    return start(Electorate(own, tuple(range(size)), TIMING), vote, now=10.0, draw=0.0)


def elected(size: int = 3) -> ElectionState:
    """Member 0 leads term 1 since second 11, unanswered."""
    state, _ = step(member(size=size), Tick(), 11.0, 0.5)
    for preliminary, term in ((True, 0), (False, 1)):
        for voter in range(1, size // 2 + 1):
            reply = VoteReply(term, 11.0, preliminary=preliminary, granted=True)
            state, _ = step(state, Received(voter, reply), 11.0, 0.5)
    assert state.role is Role.LEADER
    return state


def test_silence_leads_through_a_preliminary_vote_to_an_election() -> None:
    """Timeout 0.7 s at draw 0: silent until 10.7; then asked without a term, asked with one, elected."""
    quiet = member()
    assert next_tick_at(quiet) == 10.7
    assert step(quiet, Tick(), 10.69, 0.5) == (quiet, ())

    asking, actions = step(quiet, Tick(), 10.7, 0.5)
    sounding = VoteRequest(1, 10.7, preliminary=True)
    assert actions == (Send(1, sounding), Send(2, sounding))
    assert asking.vote == Vote(0, None)

    standing, actions = step(asking, Received(2, VoteReply(0, 10.7, True, True)), 10.8, 0.5)
    request = VoteRequest(1, 10.8, preliminary=False)
    assert actions == (Persist(Vote(1, 0)), Send(1, request), Send(2, request))

    leader, actions = step(standing, Received(1, VoteReply(1, 10.8, False, True)), 10.9, 0.5)
    heartbeat = Heartbeat(1, 10.9)
    assert actions == (LeaderChanged(1, 0), Send(1, heartbeat), Send(2, heartbeat))
    assert leader.leader == 0


def test_a_vote_is_durable_before_it_is_sent_and_given_only_once() -> None:
    first = Received(1, VoteRequest(4, 3.0, preliminary=False))
    voted, actions = step(member(), first, 11.0, 0.5)
    assert actions == (Persist(Vote(4, 1)), Send(1, VoteReply(4, 3.0, False, True)))

    again, actions = step(voted, first, 11.0, 0.5)
    assert (again, actions) == (voted, (Send(1, VoteReply(4, 3.0, False, True)),))

    other = Received(2, VoteRequest(4, 5.0, preliminary=False))
    assert step(voted, other, 11.0, 0.5)[1] == (Send(2, VoteReply(4, 5.0, False, False)),)

    restarted = member(vote=Vote(4, 1))
    assert step(restarted, other, 11.0, 0.5)[1] == (Send(2, VoteReply(4, 5.0, False, False)),)


def test_nobody_votes_against_a_leader_it_hears() -> None:
    following, actions = step(member(1), Received(0, Heartbeat(3, 77.0)), 10.1, 0.0)
    assert actions == (Persist(Vote(3)), LeaderChanged(3, 0), Send(0, HeartbeatReply(3, 77.0)))
    for preliminary in (True, False):
        request = VoteRequest(9, 1.0, preliminary=preliminary)
        state, actions = step(following, Received(2, request), 10.79, 0.0)
        assert (state, actions) == (following, (Send(2, VoteReply(3, 1.0, preliminary, False)),))
        _, actions = step(following, Received(2, request), 10.81, 0.0)
        assert Send(2, VoteReply(3 if preliminary else 9, 1.0, preliminary, True)) in actions


def test_a_preliminary_vote_binds_nobody() -> None:
    state = member()
    for candidate in (1, 2):
        after, actions = step(state, Received(candidate, VoteRequest(1, 0.0, True)), 11.0, 0.5)
        assert (after, actions) == (state, (Send(candidate, VoteReply(0, 0.0, True, True)),))


def test_votes_of_another_election_do_not_count() -> None:
    standing, _ = step(member(vote=Vote(6)), Tick(), 11.0, 0.5)
    for stale in (VoteReply(6, 10.5, True, True), VoteReply(6, 11.0, False, True)):
        assert step(standing, Received(1, stale), 11.1, 0.5) == (standing, ())


def test_a_leader_acts_only_once_and_as_long_as_a_majority_answers() -> None:
    """Two others make a majority of five; contact lasts 0.6 s from the sending, not from the answer."""
    state = elected(size=5)
    assert not is_leading(state, 11.0)
    state, _ = step(state, Received(1, HeartbeatReply(1, 11.0)), 11.05, 0.5)
    assert not is_leading(state, 11.05)
    state, _ = step(state, Received(4, HeartbeatReply(1, 11.0)), 11.3, 0.5)
    assert is_leading(state, 11.3)
    assert is_leading(state, 11.59)
    assert not is_leading(state, 11.61)

    after, actions = step(state, Tick(), 11.61, 0.5)
    assert actions == (LeaderChanged(1, None),)
    assert after.role is Role.FOLLOWER


def test_a_leader_that_nobody_answers_steps_down() -> None:
    state = elected()
    while state.role is Role.LEADER and next_tick_at(state) < 20:
        woken_at = next_tick_at(state)
        state, _ = step(state, Tick(), woken_at, 0.5)
    assert woken_at == 11.6
    assert (state.role, state.leader, state.vote) == (Role.FOLLOWER, None, Vote(1, 0))


@pytest.mark.parametrize(
    "message",
    [
        HeartbeatReply(8, 11.0),
        VoteReply(8, 11.0, False, False),
        VoteReply(8, 11.0, True, False),
    ],
)
def test_a_higher_term_ends_a_leadership(message: HeartbeatReply | VoteReply) -> None:
    """Its followers are asked at once for their votes in the term after that one."""
    state, actions = step(elected(), Received(1, message), 11.1, 0.5)
    assert state.role is Role.CANDIDATE
    request = VoteRequest(9, 11.1, preliminary=False)
    assert actions == (Persist(Vote(9, 0)), LeaderChanged(9, None), Send(1, request), Send(2, request))


@pytest.mark.parametrize(
    "state", [elected(), member(2), step(member(2), Received(0, Heartbeat(1, 0.0)), 10.1, 0.0)[0]]
)
def test_a_leader_of_a_later_term_is_followed_at_once(state: ElectionState) -> None:
    """It was elected by a majority; whoever led before, this member included, may not act any more."""
    after, actions = step(state, Received(1, Heartbeat(8, 0.0)), 11.1, 0.5)
    assert (after.role, after.leader, after.vote) == (Role.FOLLOWER, 1, Vote(8))
    assert actions[:2] == (Persist(Vote(8)), LeaderChanged(8, 1))


def test_a_follower_learns_nothing_from_answers_that_it_did_not_ask_for() -> None:
    state = member()
    for late in (HeartbeatReply(8, 0.0), VoteReply(8, 0.0, False, False)):
        assert step(state, Received(1, late), 10.1, 0.5) == (state, ())


@pytest.mark.parametrize(
    "message",
    [
        HeartbeatReply(2**53, 11.0),
        VoteReply(2**53, 11.0, False, False),
        VoteRequest(2**53, 11.0, preliminary=False),
        Heartbeat(6 + MOST_TERM_JUMP, 0.0),
    ],
)
def test_a_term_out_of_reach_is_rejected(
    message: HeartbeatReply | VoteReply | VoteRequest | Heartbeat,
) -> None:
    """A damaged term must not use up all others; one that could be is believed."""
    state = member(vote=Vote(5))
    with pytest.raises(InputError, match="more than 1000000 terms after 5"):
        step(state, Received(1, message), 12.0, 0.5)
    assert step(state, Received(2, Heartbeat(5 + MOST_TERM_JUMP, 0.0)), 12.0, 0.5)[0].leader == 2


def test_an_old_leader_learns_of_the_newer_term() -> None:
    state = member(1, vote=Vote(5, 2))
    assert step(state, Received(0, Heartbeat(4, 1.5)), 10.1, 0.5) == (
        state,
        (Send(0, HeartbeatReply(5, 1.5)),),
    )


def test_a_single_member_elects_itself() -> None:
    state, actions = step(member(size=1), Tick(), 11.0, 0.5)
    assert actions == (Persist(Vote(1, 0)), LeaderChanged(1, 0))
    assert is_leading(state, 1e9)


def test_a_leader_that_joined_while_a_member_was_away_is_followed() -> None:
    """Its heartbeat is proof enough: the member hears of the change of the electorate later."""
    after, _ = step(member(), Received(7, Heartbeat(1, 0.0)), 10.0, 0.5)
    assert after.leader == 7


def test_a_candidate_that_knows_of_fewer_changes_gets_no_vote() -> None:
    """It may count on a majority that is none any more."""
    voter = change_members(member(), Electorate(0, (0, 1, 2, 3), TIMING, changes=1), 0.0, 0.5)
    for changes, granted in ((0, False), (1, True)):
        _, actions = step(
            voter, Received(1, VoteRequest(1, 9.0, preliminary=True, changes=changes)), 30.0, 0.5
        )
        (reply,) = [each.message for each in actions if isinstance(each, Send)]
        assert isinstance(reply, VoteReply)
        assert reply.granted is granted


def test_one_without_a_vote_neither_votes_nor_asks() -> None:
    """As before it joins: it only waits for a leader."""
    outside = start(Electorate(4, (0, 1), TIMING), Vote(), 0.0, 0.5)
    after, actions = step(outside, Tick(), 100.0, 0.5)
    assert not actions
    _, actions = step(after, Received(1, VoteRequest(1, 9.0, preliminary=False)), 200.0, 0.5)
    (reply,) = [each.message for each in actions if isinstance(each, Send)]
    assert isinstance(reply, VoteReply)
    assert not reply.granted


def test_messages_of_itself_and_bad_settings_are_rejected() -> None:
    with pytest.raises(InputError, match="sender: 0"):
        step(member(), Received(0, Heartbeat(1, 0.0)), 10.0, 0.5)
    with pytest.raises(InputError, match="increase"):
        Electorate(0, (0, 0, 1), TIMING)
    with pytest.raises(InputError, match="contact_seconds"):
        Timing(contact_seconds=0.7)
    with pytest.raises(InputError, match="retry_seconds"):
        Timing(retry_seconds=(0.0, 1.0))
    with pytest.raises(InputError, match="term = -1"):
        Vote(-1)


@pytest.mark.parametrize("size", [3, 5, 8])
def test_a_new_leader_acts_within_two_seconds_of_a_kill(size: int) -> None:
    """Virtual time, so the bound is exact: 50 kills at each size, links of 1 to 10 ms."""
    waits = []
    for seed in range(50):
        world = World(size, seed)
        world.run(4.0)
        old = world.leader()
        assert old is not None
        world.kill(old)
        killed_at = world.now
        while world.leader() is None and world.now < killed_at + 10:
            world.run(0.01)
        waits.append(world.now - killed_at)
    assert max(waits) < 2.0


@pytest.mark.parametrize("size", [3, 5, 8])
def test_who_was_cut_off_does_not_depose_the_leader_on_return(size: int) -> None:
    for seed in range(20):
        world = World(size, seed)
        world.run(4.0)
        leader, term = world.leader(), world.states[0].term
        others = [other for other in world.members if other != leader]
        world.part(frozenset(others[: (size - 1) // 2]))
        world.run(5.0)
        world.broken = set()
        world.run(2.0)
        assert (world.leader(), world.states[0].term) == (leader, term)


@pytest.mark.parametrize("size", [3, 5, 8])
def test_no_leader_without_a_majority_and_one_with(size: int) -> None:
    for seed in range(20):
        world = World(size, seed)
        world.run(4.0)
        old = world.leader()
        assert old is not None
        small = frozenset([old, *[other for other in world.members if other != old][: (size - 1) // 2 - 1]])
        world.part(small)
        world.run(3.0)
        assert all(world.states[member].leader is None for member in small)
        following = {world.states[other].leader for other in world.members if other not in small}
        assert len(following) == 1
        assert following.isdisjoint({*small, None})


def test_a_member_that_was_held_up_waits_one_heartbeat_before_it_asks_for_votes() -> None:
    """Due at 10.7, it wakes at 11.0: heartbeats may wait to be read. Not so after 12.2, two timeouts."""
    waiting, actions = step(member(), Tick(is_late=True), 11.0, 0.5)
    assert (waiting.role, next_tick_at(waiting), actions) == (Role.FOLLOWER, 11.2, ())
    assert step(waiting, Tick(), 11.2, 0.5)[0].role is Role.PRECANDIDATE
    assert step(member(), Tick(is_late=True), 12.2, 0.5)[0].role is Role.PRECANDIDATE


def test_a_leader_that_was_held_up_is_heard_again_before_it_steps_down() -> None:
    """It sent heartbeats at 11.0; at 11.7 its lease of 0.6 s is over, but others wait for up to 1.1 s."""
    assert step(elected(), Tick(), 11.7, 0.5)[0].role is Role.FOLLOWER
    late, actions = step(elected(), Tick(is_late=True), 11.7, 0.5)
    heartbeat = Heartbeat(1, 11.7)
    assert actions == (Send(1, heartbeat), Send(2, heartbeat))
    assert not is_leading(late, 11.7)
    answered, _ = step(late, Received(1, HeartbeatReply(1, 11.7)), 11.8, 0.5)
    assert is_leading(answered, 11.8)
    assert step(elected(), Tick(is_late=True), 12.1, 0.5)[0].role is Role.FOLLOWER
