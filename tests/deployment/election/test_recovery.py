"""A member that has lost its vote gives none before it is safe."""

from cfel.deployment.election.recovery import VoteRecovery
from cfel.deployment.election.state import MOST_TERM_JUMP, Electorate, Timing, Vote

FIVE = Electorate(1, (0, 1, 2, 3, 4), Timing())


def test_it_waits_for_every_other_member() -> None:
    """A majority is not enough: the last one may lead a later term by its forgotten vote."""
    lost = VoteRecovery(FIVE, "vote.json: not a vote")
    assert lost.describe().startswith("vote.json: not a vote. It takes no part in elections until it has")
    assert "heard of edge-0, edge-2, edge-3, edge-4." in lost.describe()
    assert [lost.note_term(member, 7) for member in (0, 2, 3, 3)] == [None] * 4
    assert "heard of edge-4." in lost.describe()
    assert lost.note_term(4, 9) == Vote(9, 1)


def test_the_newest_sign_of_each_member_counts() -> None:
    lost = VoteRecovery(FIVE, "")
    for member, term in ((0, 3), (2, 3), (3, 3), (0, 8)):
        assert lost.note_term(member, term) is None
    assert lost.note_term(4, 3) == Vote(8, 1)


def test_one_member_cannot_use_up_the_terms() -> None:
    lost = VoteRecovery(FIVE, "")
    for member in (0, 2, 3):
        lost.note_term(member, 10)
    assert lost.note_term(4, 2**53) == Vote(10 + MOST_TERM_JUMP, 1)
