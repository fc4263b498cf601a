"""What is to be run for an item: files, scales, sweeps, endings and the time it will take."""

from pathlib import Path

import pytest

from cfel.api.runs import PlannedRun
from cfel.errors import InputError
from cfel.experiment import load_experiment
from cfel.reproduce.items import (
    DATASETS,
    ITEMS,
    SCALES,
    ReproductionRequest,
    dump_rates,
    find_experiments,
    load_paper_values,
    load_rates,
    plan_runs,
)
from cfel.reproduce.reproduction import Pace, estimate_seconds
from cfel.rounds.dry_run import compute_use

ANYWHERE = Path("/anywhere")


def planned(item: str, dataset: str = "cifar10", scale: str = "full", **more: object) -> list[PlannedRun]:
    return plan_runs(ReproductionRequest(item, dataset, ANYWHERE, scale, **more), {}, Path())  # type: ignore[arg-type]


def test_every_experiment_file_can_be_run() -> None:
    """Each is an ordinary experiment that keeps 60 % of CEF's use: those of the items, and two of HCEF+."""
    files = [file for file in find_experiments().glob("*.toml") if file.name != "rates.toml"]
    assert len(files) == 13 + 2
    for file in files:
        experiment = load_experiment(file)
        assert experiment.name == file.stem
        assert experiment.budget.share_of_cef == 0.6


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("item", ITEMS)
def test_every_item_is_planned_at_every_scale(item: str, dataset: str, scale: str) -> None:
    if (item, dataset) == ("noniid", "femnist"):
        with pytest.raises(InputError, match="noniid: only for cifar10"):
            planned(item, dataset, scale)
        return
    runs = planned(item, dataset, scale)
    assert len({run.directory for run in runs}) == len(runs)
    assert all(run.experiment.data.path == str(ANYWHERE) for run in runs)
    charged = {run.experiment.model.charged_parameters for run in runs}
    real = {"cifar10": 269_722, "femnist": 6_603_710}[dataset]
    assert charged == ({real} if scale == "reduced" else {None})


def test_full_scale_is_the_papers() -> None:
    for run in planned("table1"):
        assert (run.experiment.fleet.devices, run.experiment.model.name) == (64, "resnet20")
        assert run.experiment.rounds.global_rounds == 40
        # What the paper does not say, or what changes only how long a run takes here.
        assert (run.experiment.data.augment, run.experiment.local.precision) == ("flip", "bfloat16")
    assert {run.experiment.rounds.target for run in planned("table1", "femnist")} == {0.75}


def test_only_schemes_that_mind_budgets_stop_at_them() -> None:
    endings = {run.experiment.scheme.name: run.experiment.rounds.stop for run in planned("table1")}
    assert {"cef": "rounds", "mll_sgd": "rounds", "hcef": "budget"}.items() <= endings.items()
    assert endings["cef_c"] == endings["cef_f"] == "budget"
    assert {run.experiment.rounds.stop for run in planned("table1", stop="target")} == {"target"}


def test_sweeps_have_the_papers_values() -> None:
    betas = [run.experiment.data.beta for run in planned("noniid", schemes=("cef",))]
    assert betas == [0.1, 0.3, 0.5, 1.0]
    edges = [run.experiment.topology for run in planned("topology", schemes=("cef",))]
    assert [each.p_edge for each in edges] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert {each.kind for each in edges} == {"erdos-renyi"}
    assert planned("topology", schemes=("cef",))[0].directory == Path("0.2/cef/seed-0")


@pytest.mark.parametrize(("item", "field"), [("q", "edge_rounds"), ("tau", "local_steps")])
def test_settings_of_q_and_tau_have_equally_much_to_do(item: str, field: str) -> None:
    """φ = 40 at q = τ = 5: 100, 50, 33, 25 and 20 global rounds."""
    rounds = [run.experiment.rounds for run in planned(item, schemes=("cef",))]
    assert [getattr(each, field) for each in rounds] == [2, 4, 6, 8, 10]
    assert [each.global_rounds for each in rounds] == [100, 50, 33, 25, 20]


def test_every_setting_gets_its_own_budgets() -> None:
    """A share of CEF's use in that setting; with τ = 2 there are five times the uploads of τ = 10."""
    runs = planned("tau", "femnist", schemes=("hcef",))
    budgets = []
    for run in (runs[0], runs[-1]):
        setting = run.experiment.build_setting()
        budgets.append(setting.budget)
        assert budgets[-1] == compute_use(setting).take_share(0.6)
    assert budgets[0].seconds > 1.1 * budgets[1].seconds


def test_rates_are_tried_on_held_out_samples() -> None:
    runs = planned("rates", "femnist", schemes=("cef",))
    assert [run.experiment.local.learning_rate for run in runs] == [0.1, 0.06, 0.03, 0.01]
    assert {run.experiment.data.held_out for run in runs} == {0.1}
    assert {run.experiment.data.held_out for run in planned("table1")} == {0.0}


def test_chosen_rates_are_used(tmp_path: Path) -> None:
    table = tmp_path / "rates.toml"
    table.write_text(dump_rates("cifar10", "full", {"hcef": 0.1}))
    rates = load_rates(table, "cifar10", "full")
    assert rates == {"hcef": 0.1}
    assert load_rates(table, "femnist", "full") == {}
    runs = plan_runs(
        ReproductionRequest("table1", "cifar10", ANYWHERE, "full", ("hcef", "cef")), rates, Path()
    )
    assert [run.experiment.local.learning_rate for run in runs] == [0.1, 0.05]


def test_a_bad_table_of_rates(tmp_path: Path) -> None:
    table = tmp_path / "rates.toml"
    with pytest.raises(InputError, match="cannot be read"):
        load_rates(table, "cifar10", "full")
    table.write_text("[cifar10.full]\nhcef = -1\n")
    with pytest.raises(InputError, match=r"cifar10\.full\.hcef = -1"):
        load_rates(table, "cifar10", "full")


def test_the_users_changes_go_before_everything() -> None:
    runs = planned("topology", schemes=("cef",), changes=("rounds.global=7", "fleet.devices=24"))
    assert {run.experiment.fleet.devices for run in runs} == {24}
    assert {run.experiment.rounds.global_rounds for run in runs} == {7}


def test_the_users_rounds_are_those_at_the_papers_periods() -> None:
    """Otherwise settings of q and τ would differ in how much they train."""
    runs = planned("q", schemes=("cef",), changes=("rounds.global=8",))
    assert [run.experiment.rounds.global_rounds for run in runs] == [20, 10, 7, 5, 4]


def test_seconds_that_are_left() -> None:
    """Two rounds of 4 devices · 1 edge round · 1 step at 1 s and 2 evaluations at ½ s: 10 s a run."""
    runs = planned("table1", scale="smoke", schemes=("cef", "hcef"))
    assert estimate_seconds(runs, Pace(1.0, 0.5)) == 20.0


def test_the_papers_values() -> None:
    """Table 1; the printed energy gain on FEMNIST is a slip, and is noted."""
    cifar10, femnist = load_paper_values("cifar10"), load_paper_values("femnist")
    assert cifar10.gain_seconds("hcef") == pytest.approx(43 / 22)
    assert cifar10.gain_joules("hcef") == pytest.approx(79 / 43)
    assert femnist.gain_joules("hcef") == pytest.approx(3.086, abs=1e-3)
    assert "3.1" in femnist.note
    assert (cifar10.target, femnist.target) == (0.70, 0.75)
    assert femnist.gain_seconds("hcef_plus") is None
