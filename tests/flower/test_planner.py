"""Rounds of a federation with one server, planned without Flower: costs and budgets by hand."""

import subprocess
import sys

import pytest

from cfel.control.scheme import SchemeParameters
from cfel.errors import InputError
from cfel.flower.planner import NodeConditions, NodeOrder, NodeReport, RoundPlanner

FAST = NodeConditions(mu=1.0, alpha=2.0, nu=10.0, power=0.5)
SLOW = NodeConditions(mu=5.0, alpha=2.0, nu=40.0, power=0.5)


def make_planner(scheme: str | SchemeParameters = "hcef_plus", **budgets: float) -> RoundPlanner:
    planner = RoundPlanner(4, 6, scheme=scheme, **budgets)
    planner.set_conditions(11, FAST)
    planner.set_conditions(7, SLOW)
    return planner


def test_without_limits_cef_takes_all_steps_and_sends_everything() -> None:
    """6 steps of 1 and 5 s, uploads of 10 and 40 s: 70 s; 2 · 6 · 2 J of computing and 25 J of sending."""
    planner = make_planner("cef")
    assert planner.plan([7, 11]) == {11: NodeOrder(6, 1.0), 7: NodeOrder(6, 1.0)}
    done = planner.charge({7: NodeReport(), 11: NodeReport()})
    assert (done.seconds, done.joules) == (70.0, 49.0)
    assert (planner.ledger.seconds, planner.ledger.joules) == (70.0, 49.0)


@pytest.mark.parametrize("scheme", ["hcef", "hcef_plus"])
def test_budgets_are_kept_and_the_slow_node_does_less(scheme: str) -> None:
    planner = make_planner(scheme, time_budget=120.0, energy_budget=100.0)
    for _ in range(4):
        orders = planner.plan([7, 11])
        assert 1 <= orders[7].steps <= orders[11].steps <= 6
        assert 0 < orders[7].theta <= orders[11].theta <= 1
        planner.charge({7: NodeReport(), 11: NodeReport()})
    assert 0 < planner.ledger.seconds <= 120.0 * (1 + 1e-9)
    assert 0 < planner.ledger.joules <= 100.0 * (1 + 1e-9)
    assert len(planner.history) == 4
    with pytest.raises(InputError, match="all 4 rounds are over"):
        planner.plan([7, 11])


def test_a_round_that_a_budget_does_not_cover_is_not_started() -> None:
    """CEF always asks for everything: one round of 70 s fits into 100 s, a second does not."""
    planner = make_planner("cef", time_budget=100.0)
    assert len(planner.plan([7, 11])) == 2
    planner.charge({})
    assert planner.plan([7, 11]) == {}
    planner.charge({})
    assert planner.ledger.seconds == 70.0
    # Without the slow node a round takes 6 + 10 s.
    assert planner.plan([11]) == {11: NodeOrder(6, 1.0)}


def test_reports_say_what_it_really_cost_and_change_the_next_plan() -> None:
    planner = make_planner("cef")
    planner.plan([7, 11])
    dearer = NodeConditions(mu=20.0, alpha=3.0, nu=10.0, power=0.5)
    done = planner.charge({11: NodeReport(steps=2, conditions=dearer)})
    # Node 11: 2 · 20 + 10 s, 2 · 3 + 5 J. Node 7 did not answer: charged as ordered, 70 s, 12 + 20 J.
    assert (done.seconds, done.joules) == (70.0, 43.0)
    assert planner.find_conditions(11) == dearer
    assert planner.find_conditions(7) == SLOW


def test_estimates_of_clients_are_used() -> None:
    """P2 without caps: ρ = 1 − (σ² + G²)/(6 G²) at θ = 1; with σ² = 2 G² half the steps, rounded to whole."""
    parameters = SchemeParameters(name="hcef", steps="whole")
    planner = make_planner(parameters)
    before = planner.plan([11])[11].steps
    planner.charge({11: NodeReport(sigma2=2.0, g2=1.0)})
    after = planner.plan([11])[11].steps
    assert (before, after) == (4, 3)


@pytest.mark.parametrize(
    "parameters",
    [
        SchemeParameters(name="hcef"),
        SchemeParameters(name="hcef", steps="small_batches"),
        SchemeParameters(name="hcef_plus"),
    ],
    ids=["local", "small_batches", "switched off"],
)
def test_other_than_whole_steps_are_rejected(parameters: SchemeParameters) -> None:
    """Rounded up, they would cost more than the budgets leave."""
    with pytest.raises(InputError, match=r"scheme.steps = '\w+'.*whole"):
        make_planner(parameters)


def test_a_scheme_that_plans_in_whole_steps_by_itself_is_accepted() -> None:
    orders = make_planner(SchemeParameters(name="hcef_plus", steps="whole")).plan([7, 11])
    assert orders == make_planner("hcef_plus").plan([7, 11])


def test_what_the_largest_entries_keep_is_averaged() -> None:
    planner = make_planner()
    shares = len(planner.kept_energy_at)
    assert shares > 0
    planner.plan([7, 11])
    # If the largest entries hold nearly all of an update, there is no need to send more.
    planner.charge({node: NodeReport(kept_energy=(0.999,) * shares) for node in (7, 11)})
    orders = planner.plan([7, 11])
    assert orders[7].theta == orders[11].theta == pytest.approx(0.01)


def test_nothing_can_be_planned_for_a_node_that_is_not_known() -> None:
    with pytest.raises(InputError, match="nothing is known about node 3"):
        make_planner().plan([3, 7])
    assert make_planner().plan([]) == {}


@pytest.mark.parametrize("wrong", [{"mu": 0.0}, {"alpha": -1.0}, {"nu": float("nan")}])
def test_conditions_must_be_possible(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        NodeConditions.read({"mu": 1.0, "alpha": 1.0, "nu": 1.0, "power": 1.0, **wrong})
    with pytest.raises(InputError, match="power is missing"):
        NodeConditions.read({"mu": 1.0, "alpha": 1.0, "nu": 1.0})
    assert NodeConditions.read({"mu": 3.0}, FAST) == NodeConditions(3.0, 2.0, 10.0, 0.5)


def test_planning_and_sparsifying_need_numpy_alone() -> None:
    code = (
        "import sys, cfel.flower.sparse; from cfel.flower import RoundPlanner;"
        "assert not {'torch', 'flwr', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
