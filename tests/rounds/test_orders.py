"""How far a run has come, for schedules of the learning rate: by rounds, or by what is used of the budget."""

import numpy as np
import pytest

from cfel.control.caps import Budget, Rounds
from cfel.control.scheme import Observation
from cfel.cost import Ledger
from cfel.learning.local.algorithm import LocalParameters
from cfel.rounds.kernel import find_used
from cfel.system.conditions import Conditions


def _observe(global_round: int, edge_round: int, ledger: Ledger, budget: Budget) -> Observation:
    ones = np.ones(2)
    return Observation(
        global_round=global_round,
        edge_round=edge_round,
        rounds=Rounds(10, 2, 1),
        conditions=Conditions(mu=ones, alpha=ones, nu=ones, power=ones, available=np.ones(2, dtype=bool)),
        cluster=np.array([0, 1]),
        sigma2=ones,
        g2=ones,
        ledger=ledger,
        budget=budget,
        gossip_seconds_left=np.zeros(2),
    )


@pytest.mark.parametrize(
    ("by", "ledger", "budget", "rate"),
    [
        # Edge round 1 of global round 4 of 10 rounds of 2: 9 of 20 are over.
        ("rounds", Ledger(0.0, 0.0, (0.0, 0.0), 0.0), Budget(), 1 - 9 / 20),
        # 60 s in finished rounds and 20 s of the slower cluster in this one, of 100 s.
        ("budget", Ledger(60.0, 0.0, (10.0, 20.0), 0.0), Budget(seconds=100.0), 0.2),
        # 30 J of 40 J is more than 60 s of 100 s.
        ("budget", Ledger(60.0, 25.0, (0.0, 0.0), 5.0), Budget(seconds=100.0, joules=40.0), 0.25),
        # More than all of it is used.
        ("budget", Ledger(600.0, 0.0, (0.0, 0.0), 0.0), Budget(seconds=100.0), 0.0),
    ],
)
def test_the_rate_follows_the_run(by: str, ledger: Ledger, budget: Budget, rate: float) -> None:
    local = LocalParameters(schedule="linear", schedule_by=by)  # type: ignore[arg-type]
    assert local.find_rate(find_used(by, _observe(4, 1, ledger, budget))) == pytest.approx(rate)
