"""The ledger: what it adds up, and that JSON changes nothing."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfel.cost import (
    EdgeRoundCost,
    Ledger,
    after_edge_round,
    after_exchange,
    after_global_round,
    global_round_cost,
    open_ledger,
)
from cfel.errors import InputError

spent = st.floats(0, 1e12)


def edge_round(seconds: list[float], joules: float) -> EdgeRoundCost:
    return EdgeRoundCost(np.array(seconds), np.zeros(len(seconds), dtype=np.int64), joules)


def test_two_edge_rounds_and_gossip() -> None:
    """Clusters take 5 + 6 + 2 = 13 and 10 + 2 + 1.5 = 13.5 s; 3 + 4 = 7 J."""
    ledger = after_edge_round(after_edge_round(open_ledger(2), edge_round([5, 10], 3)), edge_round([6, 2], 4))
    assert ledger == Ledger(0, 0, (11, 12), 7)
    assert ledger.total_joules == 7
    closed = after_global_round(ledger, [2, 1.5])
    assert closed == Ledger(13.5, 7, (0, 0), 0)
    assert after_edge_round(closed, edge_round([1, 1], 2)).total_joules == 9


@given(st.lists(st.tuples(st.lists(spent, min_size=3, max_size=3), spent), max_size=6))
def test_ledger_agrees_with_the_global_round(rounds: list[tuple[list[float], float]]) -> None:
    costs = [edge_round(seconds, joules) for seconds, joules in rounds]
    ledger = open_ledger(3)
    for cost in costs:
        ledger = after_edge_round(ledger, cost)
    whole = global_round_cost(costs, [1.0, 2.0, 3.0])
    closed = after_global_round(ledger, [1.0, 2.0, 3.0])
    assert (closed.seconds, closed.joules) == (whole.seconds, whole.joules)


@given(st.builds(Ledger, spent, spent, st.lists(spent, max_size=5).map(tuple), spent))
def test_json_changes_nothing(ledger: Ledger) -> None:
    assert Ledger.from_dict(json.loads(json.dumps(ledger.to_dict()))) == ledger


def test_bad_ledgers_are_rejected() -> None:
    good = open_ledger(2).to_dict()
    with pytest.raises(InputError, match="ledger: unknown 'second'"):
        Ledger.from_dict({**good, "second": 1.0})
    with pytest.raises(InputError, match=r"ledger\.joules: is missing"):
        Ledger.from_dict({name: value for name, value in good.items() if name != "joules"})
    with pytest.raises(InputError, match=r"elapsed_seconds\[1\] = -1\.0"):
        Ledger.from_dict({**good, "elapsed_seconds": [0, -1]})
    with pytest.raises(InputError, match=r"ledger\.seconds = nan"):
        Ledger.from_dict({**good, "seconds": float("nan")})


def test_cluster_counts_must_agree() -> None:
    with pytest.raises(InputError, match=r"cost\.seconds: .* 2 .* 3"):
        after_edge_round(open_ledger(2), edge_round([1, 1, 1], 0))
    with pytest.raises(InputError, match=r"exchange_seconds: .* 2 .* 1"):
        after_global_round(open_ledger(2), [1])


def test_clocks_meet_at_an_exchange() -> None:
    """Cluster 0 is at 5 s and needs 2 for the exchange, cluster 1 is at 3 s and needs 6: both start at 9."""
    ledger = Ledger(100.0, 50.0, (5.0, 3.0), 7.0)
    assert after_exchange(ledger, [2, 6]) == Ledger(100.0, 50.0, (9.0, 9.0), 7.0)
    with pytest.raises(InputError, match=r"exchange_seconds: .* 2 .* 1"):
        after_exchange(ledger, [1])
