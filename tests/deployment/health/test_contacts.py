"""Who is in touch, who is lost or gone, and who calls without ever answering."""

from cfel.deployment.health.contacts import PeerContacts
from cfel.deployment.security.identity import Identity
from tests.support.clock import Clock


def test_silence_makes_suspect_and_then_lost() -> None:
    """Asked every 2 s: suspect until first heard of and beyond 5 s of silence, lost beyond 10 s."""
    clock = Clock()
    contacts = PeerContacts([1, 2], 2.0, clock)
    assert [contacts.state(i) for i in range(3)] == ["alive", "suspect", "suspect"]
    contacts.note(Identity("edge", 1))
    contacts.note(Identity("device", 2))
    assert [contacts.state(i) for i in range(3)] == ["alive", "alive", "suspect"]
    clock.seconds = 6.0
    assert contacts.state(1) == "suspect"
    clock.seconds = 10.5
    assert contacts.find_lost() == [1, 2]
    contacts.note(Identity("edge", 2))
    assert contacts.find_lost() == [1]


def test_silence_beyond_gone_seconds_and_two_questions_makes_gone() -> None:
    """Asked every 2 s, so after 4 s at the earliest; without any answer, it counts from the start.

    Edge server 2 calls after 3 s, but does not answer.
    """
    clock = Clock()
    contacts = PeerContacts([1, 2], 2.0, clock)
    clock.seconds = 3.0
    contacts.note_answer(Identity("edge", 1))
    contacts.note(Identity("edge", 2))
    assert [contacts.is_gone(i, 1.0) for i in range(3)] == [False, False, False]
    clock.seconds = 4.5
    assert [contacts.is_gone(i, 1.0) for i in range(3)] == [False, False, True]
    assert not contacts.is_gone(2, 10.0)
    clock.seconds = 13.5
    assert [contacts.is_gone(i, 10.0) for i in range(3)] == [False, True, True]
    contacts.note_answer(Identity("edge", 1))
    assert not contacts.is_gone(1, 10.0)


def test_one_that_calls_for_long_but_does_not_answer_is_not_reachable() -> None:
    """Asked every 2 s: it counts after 10 s of calls without a break, so not right after a restart."""
    clock = Clock()
    contacts = PeerContacts([1, 2], 2.0, clock)
    clock.seconds = 30.0
    for _ in range(7):
        assert contacts.find_unreachable() == []
        clock.seconds += 2.0
        contacts.note(Identity("edge", 1))
        contacts.note_answer(Identity("edge", 2))
    assert contacts.find_unreachable() == [1]
    contacts.note_answer(Identity("edge", 1))
    assert contacts.find_unreachable() == []
