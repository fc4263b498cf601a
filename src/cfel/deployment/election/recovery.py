"""How a member gets over the loss of its vote: it abstains until every other member has shown its term.

A member votes for another one only after that one has entered the term, and stored it. A vote for itself
counts only together with votes of others, who have entered the term, too. So once all others have shown
their terms, none of its forgotten votes was given in a later one, and it may vote in the terms after that.
A majority is not enough: the one that is missing may lead by the forgotten vote. Values only.
"""

from collections.abc import Mapping

from cfel.deployment.election.state import MOST_TERM_JUMP, Electorate, Vote


class VoteRecovery:
    """A member without its vote.

    Args:
        electorate: who votes.
        reason: how the vote was lost, in words.
    """

    def __init__(self, electorate: Electorate, reason: str) -> None:
        self._electorate, self._reason = electorate, reason
        self._shown: dict[int, int] = {}

    def note_term(self, member: int, term: int) -> Vote | None:
        """Notes the term of another member.

        Returns:
            The vote to continue with, once all others have shown their terms.
        """
        self._shown[member] = term
        if self._missing():
            return None
        # Counts as having voted in this term, for whomever.
        return Vote(_newest_term(self._shown), self._electorate.member)

    def describe(self) -> str:
        """What is wrong, and what to do about it."""
        names = ", ".join(f"edge-{member}" for member in self._missing())
        return (
            f"{self._reason}. It takes no part in elections until it has heard of {names}. If one of them is "
            "gone for good, stop all edge servers, delete vote.json on all of them, and start them again"
        )

    def _missing(self) -> list[int]:
        return [member for member in self._electorate.others if member not in self._shown]


def _newest_term(shown: Mapping[int, int]) -> int:
    """The newest term, unless it is out of reach of most others: a single member could use up the terms."""
    terms = sorted(shown.values())
    return min(terms[-1], terms[(len(terms) - 1) // 2] + MOST_TERM_JUMP)
