"""From total budgets to the caps of one edge round."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfel.control import Budget, Rounds, round_caps
from cfel.cost import EdgeRoundCost, Ledger, after_edge_round, after_global_round, open_ledger
from cfel.errors import InputError

ROUNDS = Rounds(global_rounds=4, edge_rounds=5, local_steps=5)


def test_caps_by_hand() -> None:
    """Global round 1 of 4, edge round 2 of 5, 900 of 1000 s and 90 of 100 J left.

    900/3 = 300 s for this global round; clusters have used 20 and 30 s and will gossip for 1 and 2 s, which
    leaves 279 and 268 s for 3 edge rounds. 90/3 = 30 J less 4 J leaves 26 J for 3.
    """
    ledger = Ledger(100.0, 10.0, (20.0, 30.0), 4.0)
    seconds, joules = round_caps(Budget(1000.0, 100.0), ledger, ROUNDS, 1, 2, np.array([1.0, 2.0]))
    assert seconds.tolist() == [93.0, 268 / 3]
    assert joules == 26 / 3


def test_caps_turn_negative_when_more_was_spent_than_there_is() -> None:
    """(1000 − 1300)/3 = −100 s, less 20 + 1 and 30 + 2; (100 − 130)/3 = −10 J, less 5 J; over 3 rounds."""
    ledger = Ledger(1300.0, 130.0, (20.0, 30.0), 5.0)
    seconds, joules = round_caps(Budget(1000.0, 100.0), ledger, ROUNDS, 1, 2, np.array([1.0, 2.0]))
    assert seconds.tolist() == [-121 / 3, -44.0]
    assert joules == -5.0


def test_no_budget_is_no_cap() -> None:
    seconds, joules = round_caps(Budget(), Ledger(9.0, 9.0, (1.0, 1.0), 1.0), ROUNDS, 3, 4, np.ones(2))
    assert seconds.tolist() == [np.inf, np.inf]
    assert joules == np.inf


@given(
    seconds=st.floats(1, 1e9),
    joules=st.floats(1, 1e9),
    global_rounds=st.integers(1, 6),
    edge_rounds=st.integers(1, 6),
    backhaul=st.floats(0, 100),
)
def test_spending_every_cap_exactly_ends_on_budget(
    seconds: float, joules: float, global_rounds: int, edge_rounds: int, backhaul: float
) -> None:
    """Whatever the gossip takes is set aside before the caps are dealt out."""
    budget, rounds = Budget(seconds + 1000, joules), Rounds(global_rounds, edge_rounds)
    gossip = np.array([backhaul, backhaul / 2])
    ledger = open_ledger(2)
    for global_round in range(global_rounds):
        for edge_round in range(edge_rounds):
            caps, energy = round_caps(budget, ledger, rounds, global_round, edge_round, gossip)
            spent = EdgeRoundCost(np.maximum(caps, 0.0), np.zeros(2, dtype=np.int64), energy)
            ledger = after_edge_round(ledger, spent)
        ledger = after_global_round(ledger, gossip)
    assert ledger.seconds == pytest.approx(budget.seconds, rel=1e-9)
    assert ledger.joules == pytest.approx(budget.joules, rel=1e-9)


def test_what_one_round_saves_the_later_ones_may_spend() -> None:
    """100 J for 2 global rounds of 2 edge rounds: 50 J for the first, of which 45 are left after spending 5.

    If those are saved too, the second global round has 95 J, 47.5 for each of its edge rounds.
    """
    rounds, budget = Rounds(2, 2), Budget(joules=100.0)
    ledger = after_edge_round(open_ledger(1), EdgeRoundCost(np.zeros(1), np.zeros(1, dtype=np.int64), 5.0))
    assert round_caps(budget, ledger, rounds, 0, 1, np.zeros(1))[1] == 45.0
    ledger = after_global_round(ledger, np.zeros(1))
    assert round_caps(budget, ledger, rounds, 1, 0, np.zeros(1))[1] == 47.5


@pytest.mark.parametrize(("global_round", "edge_round"), [(4, 0), (0, 5), (-1, 0), (0, -1)])
def test_round_outside_the_run_is_rejected(global_round: int, edge_round: int) -> None:
    with pytest.raises(InputError, match=r"must lie within \(0, 0\) … \(3, 4\)"):
        round_caps(Budget(), open_ledger(1), ROUNDS, global_round, edge_round, np.zeros(1))


@pytest.mark.parametrize("amount", [0.0, -1.0, np.nan])
def test_budget_must_be_positive(amount: float) -> None:
    with pytest.raises(InputError, match=r"budget\.seconds"):
        Budget(seconds=amount)
    with pytest.raises(InputError, match=r"budget\.joules"):
        Budget(joules=amount)


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_a_run_has_at_least_one_round_of_each_kind(count: float) -> None:
    for field in range(3):
        counts = [1, 1, 1]
        counts[field] = count  # type: ignore[call-overload]
        with pytest.raises(InputError, match="rounds"):
            Rounds(*counts)  # type: ignore[arg-type]


def test_edge_rounds_left_and_shares() -> None:
    """From edge round 2 of global round 1: 3 · 5 − 2 = 13 to go, this one included."""
    assert ROUNDS.edge_rounds_left(1, 2) == 13
    assert Budget(10.0, np.inf).take_share(0.6) == Budget(6.0, np.inf)
