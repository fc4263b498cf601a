"""What schemes would use of the budgets."""

import json

import pytest

from cfel.control import SCHEMES, Budget, expected_use
from cfel.experiment import Experiment, parse_experiment
from cfel.studies.rehearsals import SchemeUse, compare_use, scheme_use


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return parse_experiment(
        {"rounds": {"global": 2, "edge": 2}, "fleet": {"devices": 16, "clusters": 2}, "budget": {}}
    )


def test_cef_uses_what_it_was_measured_by(experiment: Experiment) -> None:
    setting, _ = experiment.setting()
    cef = expected_use(setting)
    found = scheme_use(experiment, setting, Budget(2 * cef.seconds, 4 * cef.joules), "cef")
    assert found == SchemeUse("cef", cef.seconds, cef.joules, 0.5, 0.25, 1.0, 1.0, found.worst_gap, 0)
    assert found.worst_gap == pytest.approx(0, abs=1e-12)


def test_hcef_keeps_to_budgets_within_reach(experiment: Experiment) -> None:
    setting, _ = experiment.setting()
    found = scheme_use(experiment, setting, experiment.budgets(setting), "hcef")
    assert found.seconds_share <= 1 + 1e-9
    assert found.joules_share <= 1 + 1e-9
    assert found.unmet_rounds == 0
    assert found.rho < 1


def test_rounds_out_of_reach_are_counted(experiment: Experiment) -> None:
    setting, _ = experiment.setting()
    found = scheme_use(experiment, setting, Budget(1.0, 1.0), "hcef")
    assert found.unmet_rounds == 4
    assert (found.rho, found.theta) == pytest.approx((0.1, 0.01))
    assert found.seconds_share > 1


def test_every_scheme_meets_the_same_budgets() -> None:
    uses = compare_use("demo")
    assert [use.scheme for use in uses] == list(SCHEMES)
    budgets = {round(use.seconds / use.seconds_share, 3) for use in uses}
    assert len(budgets) == 1
    assert json.loads(json.dumps(uses[0].to_dict()))["scheme"] == "hcef"
