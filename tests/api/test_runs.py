"""`cfel.run`, `simulate`, `compare`, `sweep` and `load` on an experiment made of objects."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cfel
from cfel.api.runs import list_rows, plan_comparison, whole_runs_are_better
from cfel.errors import InputError, RunDirectoryError
from cfel.plugins import ANY_CODE
from tests.report.conftest import record, write_run


def make_experiment(model: Any = None) -> cfel.Experiment:
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(60, 4)).astype(np.float32)
    labels = (inputs[:, 0] > 0).astype(int)
    return cfel.Experiment(
        preset="none",
        name="objects",
        model=model or (lambda: nn.Linear(4, 2)),
        data=((inputs[:40], labels[:40]), (inputs[40:], labels[40:])),
        rounds={"global": 2, "edge": 2, "local": 2},
        fleet={"devices": 4, "clusters": 2},
        simulation={"workers": 1, "engine": "threads"},
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> cfel.RunResult:
    return cfel.run(make_experiment(), out=tmp_path_factory.mktemp("runs") / "one", progress=False)


def test_tables_of_a_run(result: cfel.RunResult) -> None:
    rounds = result.rounds.to_pandas()
    assert rounds["round"].tolist() == [1, 2]
    assert rounds["joules"].is_monotonic_increasing
    assert result.plans.num_rows == 2 * 2 * 4
    devices = result.devices.to_pandas()
    assert devices["cluster"].tolist() == [0, 0, 1, 1]
    assert devices["edge_rounds"].tolist() == [4] * 4
    assert devices["joules"].sum() == pytest.approx(rounds["joules"].iloc[-1])
    assert result.summary["model_sha256"] == result.records[-1].model_sha256


def test_a_run_is_loaded_as_it_was(result: cfel.RunResult) -> None:
    loaded: cfel.RunResult = cfel.load(result.path)
    assert loaded.records == result.records
    assert loaded.rounds.equals(result.rounds)
    with pytest.raises(InputError, match="a Python object"):
        loaded.model()


def test_the_model_is_the_mean_of_the_edge_models(result: cfel.RunResult) -> None:
    whole, *edges = (result.model(edge).state_dict() for edge in (None, 0, 1))
    assert torch.allclose(whole["weight"], (edges[0]["weight"] + edges[1]["weight"]) / 2)
    with pytest.raises(InputError, match=r"edge = 7: .* 0, 1"):
        result.model(7)


def test_stepwise_rounds_are_those_of_a_run(result: cfel.RunResult) -> None:
    simulation = cfel.simulate(make_experiment())
    with pytest.raises(InputError, match="no round has been simulated yet"):
        simulation.model()
    rounds = iter(simulation)
    assert next(rounds).model_sha256 == result.records[0].model_sha256
    assert simulation.plans.num_rows == 8
    assert next(rounds).model_sha256 == result.records[1].model_sha256
    assert torch.equal(simulation.model().state_dict()["weight"], result.model().state_dict()["weight"])
    assert next(rounds, None) is None


def test_a_caller_may_stop_early() -> None:
    for each in cfel.simulate(make_experiment()):
        assert each.round == 1
        break


def test_one_scheme_can_be_named_without_a_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown 'hecf'"):
        cfel.compare(make_experiment(nn.Linear(4, 2)), "hecf", out=tmp_path, progress=False)
    with pytest.raises(InputError, match="target = 75: must be at most 1"):
        cfel.compare(make_experiment(nn.Linear(4, 2)), "cef", out=tmp_path, target=75, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_without_optuna_the_message_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setitem(sys.modules, "optuna.distributions", None)
    with pytest.raises(InputError, match="this needs optuna, which is not installed"):
        cfel.tune(make_experiment(), {"rounds.edge": [1, 2]}, out=tmp_path, progress=False)


def test_a_run_is_resumed_only_with_the_same_objects(tmp_path: Path) -> None:
    start = nn.Linear(4, 2)
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        cfel.run(make_experiment(start), tmp_path, progress=False, on_round=lambda each: _stop(each, seen))
    with pytest.raises(RunDirectoryError, match="holds a run already"):
        cfel.run(make_experiment(start), tmp_path, progress=False)
    with pytest.raises(RunDirectoryError, match=r"model\.name = '<model Linear \w+>'"):
        cfel.run(make_experiment(nn.Linear(4, 2)), tmp_path, resume=True, progress=False)
    resumed = cfel.run(make_experiment(start), tmp_path, resume=True, progress=False)
    assert [each.round for each in resumed.records] == [1, 2]


def _stop(record: cfel.RoundRecord, seen: list[int]) -> None:
    seen.append(record.round)
    raise KeyboardInterrupt


def test_figures_and_report(result: cfel.RunResult, tmp_path: Path) -> None:
    picture = result.plot()
    picture.save(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")
    assert picture._repr_svg_() == picture.svg
    with pytest.raises(InputError, match="did you mean 'accuracy-seconds'"):
        result.plot("accuracy-second")
    picture.save(tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(InputError, match=r"suffix: unknown '\.gif'"):
        picture.save(tmp_path / "figure.gif")
    files = result.export_figures(tmp_path / "figures", ["csv"])
    assert {file.suffix for file in files} == {".csv"}
    assert (tmp_path / "figures" / "accuracy-seconds.csv").read_text() == picture.csv
    with pytest.raises(InputError, match="format: unknown 'latex'"):
        result.export_figures(tmp_path / "figures", ["latex"])


@pytest.mark.long
def test_compare_and_sweep_with_functions(tmp_path: Path) -> None:
    from cfel.control import Scheme, SchemeParameters
    from cfel.control.schemes import SCHEMES

    def my_scheme(parameters: SchemeParameters) -> Scheme:
        return SCHEMES["cef"](parameters)

    base = make_experiment()
    comparison = cfel.compare(base, ["cef", my_scheme], [0, 1], out=tmp_path / "compared", progress=False)
    rows = comparison.table.to_pylist()
    assert [(row["scheme"], row["seed"]) for row in rows] == [
        *(("cef", 0), ("cef", 1), ("<scheme my_scheme>", 0), ("<scheme my_scheme>", 1))
    ]
    assert rows[0]["final_accuracy"] == rows[2]["final_accuracy"]
    assert cfel.load(tmp_path / "compared").table.equals(comparison.table)
    swept = cfel.sweep(base, {"rounds.local": [1, 2]}, out=tmp_path / "sweep", progress=False)
    before = [each.run.environment.started for each in swept.runs]
    again = cfel.sweep(base, {"rounds.local": [1, 2, 3]}, out=tmp_path / "sweep", progress=False)
    assert [each.run.environment.started for each in again.runs[:2]] == before
    assert again.table.column("rounds.local").to_pylist() == [1, 2, 3]
    assert cfel.load(tmp_path / "sweep").table.equals(again.table)
    assert again.plot().svg.startswith("<?xml")
    exported = again.export_figures(tmp_path / "swept", ["csv"])
    assert (tmp_path / "swept" / "by-key-0.csv") in exported
    compared = comparison.export_figures(tmp_path / "figures", ["png"])
    assert len(compared) == len(list((tmp_path / "figures").glob("*.png")))


def test_compare_rejects_two_experiments_for_one_scheme(tmp_path: Path) -> None:
    base = make_experiment()
    with pytest.raises(InputError, match="two experiments for hcef"):
        cfel.compare([base, base.change({"rounds.local": 3})], out=tmp_path, progress=False)
    with pytest.raises(InputError, match="at least one experiment"):
        cfel.compare([], out=tmp_path)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({}, "at least one key"),
        ({"rounds.local": []}, "at least one value"),
        ({"rounds.locl": [1]}, "locl"),
        ({"seed": [1]}, "give seeds as `seeds`"),
        ({"rounds.local": [1, 1]}, "would share the folder"),
    ],
)
def test_a_sweep_is_checked_before_it_runs(over: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        cfel.sweep(make_experiment(), over, out=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_a_file_is_loaded_with_changes() -> None:
    tiny = Path(__file__).parents[2] / "examples" / "tiny.toml"
    assert cfel.load(tiny, rounds__global=7).rounds.global_rounds == 7
    with pytest.raises(InputError, match="globl"):
        cfel.load(tiny, rounds__globl=7)


def test_a_comparison_has_each_run_once() -> None:
    """The same scheme or seed twice is one run."""
    runs = plan_comparison(list_rows(make_experiment(), ["cef", "hcef", "cef"]), [1, 0, 1], Path("out"))
    assert [str(run.directory) for run in runs] == [
        *("out/cef/seed-1", "out/cef/seed-0", "out/hcef/seed-1", "out/hcef/seed-0")
    ]


def test_several_runs_are_loaded_in_the_order_of_the_report(tmp_path: Path) -> None:
    for scheme in ("cef", "hcef"):
        write_run(tmp_path / scheme / "seed-0", scheme, 0, [record(1, 0.5, 1.0, 1.0)])
    comparison = cfel.load(tmp_path, trust=True)
    assert [each.run.scheme for each in comparison.runs] == list(comparison.summary["schemes"])
    assert {each.code for each in comparison.runs} == {ANY_CODE}
    with pytest.raises(RunDirectoryError, match="holds no run"):
        cfel.load(tmp_path / "cef" / "seed-0" / "plans")


@pytest.mark.parametrize(
    ("runs", "workers", "devices", "small", "whole"),
    [
        (4, 2, 64, False, True),  # 2 against 4 / 1.8
        (5, 2, 64, False, False),  # 3 against 5 / 1.8
        (5, 2, 64, True, True),  # 3 against 5 / 0.6
        (1, 8, 64, False, False),  # 1 against 1 / 7.2
        (1, 8, 64, True, False),  # 1 against 1 / 2.4
        (3, 8, 64, True, True),  # 1 against 3 / 2.4
        (1, 8, 1, False, True),  # one device keeps one worker busy, whichever way
        (100, 32, 64, False, False),  # 4 against 100 / 28.8
        (120, 32, 64, False, True),  # 4 against 120 / 28.8
    ],
)
def test_whole_runs_or_devices(runs: int, workers: int, devices: int, small: bool, whole: bool) -> None:
    assert whole_runs_are_better(runs, workers, devices, small) is whole


def test_named_experiments_are_rows_and_overruns_are_warnings(tmp_path: Path) -> None:
    """CEF takes more than its budget: a Python user is told so."""
    base = make_experiment().change({"budget.seconds": 1.0, "scheme": "cef"})
    rows = {"mine": base, "mine, slower": base.change({"local.learning_rate": 0.01})}
    with pytest.warns(cfel.BudgetWarning, match=r"^mine, time by .*: CEF plans without caps"):
        comparison = cfel.compare(rows, out=tmp_path / "named", progress=False)
    assert (comparison.baseline, list(comparison.summary["schemes"])) == ("mine", list(rows))
    assert (tmp_path / "named" / "mine,_slower" / "seed-0").is_dir()
    with pytest.raises(InputError, match="not both"):
        cfel.compare(rows, ["cef"], out=tmp_path / "both", progress=False)
    with pytest.raises(InputError, match="would share the folder"):
        cfel.compare({"a b": base, "a_b": base}, out=tmp_path / "shared", progress=False)
    with pytest.warns(cfel.BudgetWarning, match="time exceeds its budget"):
        result = cfel.run(base, out=tmp_path / "run", progress=False)
    assert "⚠ time exceeds its budget" in result._repr_html_()
    assert "accuracy within the budgets" in result._repr_html_()
    assert len(repr(result)) < 200


def test_a_misspelt_section_is_named() -> None:
    with pytest.raises(InputError, match="experiment: unknown 'fleets'; did you mean 'fleet'"):
        cfel.Experiment(fleets={"devices": 4})


def test_a_data_set_of_the_hub_needs_its_prefix() -> None:
    experiment = make_experiment().change({"data.name": "uoft-cs/cifar10"})
    with pytest.raises(InputError, match="write 'hf:uoft-cs/cifar10'"):
        experiment.load_task()
