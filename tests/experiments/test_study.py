"""The studies: their rows are those of the landed runs, and their tables those of `results/README.md`."""

import re
import runpy
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cfel.control import SCHEMES
from cfel.experiment import experiment_toml, load_experiment
from cfel.report.landed import land_study
from cfel.report.load import load_run, load_runs, load_tree
from cfel.report.summary import Crossing
from tests.report.conftest import record, write_run

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")
STUDY = runpy.run_path(str(ROOT / "experiments" / "study.py"))

TABLES = [
    ("ablation", "ablation-cifar10", ()),
    ("ablation", "ablation-femnist", ()),
    ("differences", "differences-femnist", (0.6, 0.76)),
    ("momentum", "differences-femnist", (0.65,)),
    ("learning", "learning-cifar10", (0.4,)),
    ("under-budgets", "under-budgets-cifar10", (0.4,)),
    ("under-budgets", "under-budgets-femnist", (0.72,)),
    ("front", "front-tenfold-femnist", (0.72,)),
    ("front", "front-tenfold-cifar10", (0.5,)),
    ("front", "front-femnist", (0.72,)),
    ("front", "front-cifar10", (0.5,)),
    ("full", "full-femnist", (0.75,)),
    ("full", "full-cifar10", (0.55,)),
    ("attribution", "attribution-femnist", (0.7,)),
    ("tuned", ".", ()),
]


@pytest.mark.parametrize(("name", "folder", "targets"), TABLES)
def test_the_tables_of_the_results_follow_from_the_landed_runs(
    name: str, folder: str, targets: tuple[float, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    STUDY["main"]([name, "--out", str(RESULTS / folder), "--table", *map(str, targets)])
    table = capsys.readouterr().out
    assert table.count("\n") > 4
    assert table in PAGE


LANDED = [("learning", "cifar10")] + [
    (name, dataset)
    for name in ("under-budgets", "under-budgets-whole", "static", "rates-cef")
    for dataset in ("cifar10", "femnist")
]


# Rows with options that HCEF+ no longer has.
GONE = {f"small-shared-{option}/hcef_plus/seed-10" for option in ("horizon_50", "noise_0.3")}


@pytest.mark.parametrize(("name", "dataset"), LANDED)
def test_the_command_repeats_the_landed_runs(name: str, dataset: str) -> None:
    """The same rows, seeds and budgets, and the same value of every key that the landed experiments have.

    What is charged for small batches is among them. The overhead of a step matters only there. Static plans
    were a user-defined scheme when they were run, some with one seed only.
    """
    study = STUDY["STUDIES"][name]
    landed = load_tree(RESULTS / f"{name}-{dataset}")
    planned = STUDY["plan_study"](study, dataset, study.seeds, None, ())
    if name == "static":
        assert {place for place in planned if place.endswith("seed-0")} < landed.keys() < planned.keys()
    else:
        assert planned.keys() | GONE == landed.keys() | GONE
    for place, run in landed.items():
        if place in GONE:
            continue
        experiment = load_experiment(STUDY["find_file"](dataset, study), planned[place])
        assert experiment.budget.seconds == run.fleet.seconds_budget
        assert experiment.budget.joules == run.fleet.joules_budget
        ours, theirs = flatten(experiment_toml(experiment)), flatten(run.experiment_toml)
        # Where the data are, and how the run was carried out.
        ignored = {"preset", "data.path", "simulation.engine"}
        small = "small" in place or name == "static"
        if not small:
            ignored |= {"local.step_overhead"}
        if place.startswith("static-"):
            assert (ours["scheme.name"], theirs["scheme.name"]) == ("static", "static_plan:static")
            ignored |= {"scheme.name"}
        ignored |= {key for key in ours if key.startswith("deployment.")}
        shared = (ours.keys() & theirs.keys()) - ignored
        assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}
        assert not small or "local.step_overhead" in shared


def write_costs(out: Path, costs: dict[str, tuple[float, float]]) -> Path:
    """A row takes so many seconds and joules per round, and reaches 0.6 after three."""
    for row, (seconds, joules) in costs.items():
        lines = [record(n, 0.2 * n, seconds * n, joules * n) for n in (1, 2, 3)]
        write_run(out / row / "seed-0", "static", 0, lines)
    return out


def test_the_front_of_static_plans(tmp_path: Path) -> None:
    """A plan that takes more of both is not on it; HCEF+ is behind one of those that are, the nearest.

    Of two plans with equal costs, both are on it.
    """
    plans = {"static-a-tau2": (100.0, 40.0), "static-b-tau2": (200.0, 20.0), "static-c-tau5": (220.0, 40.0)}
    out = write_costs(tmp_path, {**plans, "hcef_plus-tau5": (110.0, 50.0)})
    document, table = STUDY["tabulate_static"](out, 0.6)
    assert document["seeds"]["0"]["front"] == ["static-a-tau2", "static-b-tau2"]
    assert "0.91×, 0.80× (`a-tau2`), behind 1 | 2.00×, 0.80× (`c-tau5`) |" in table
    write_costs(out, {"static-d-tau1": plans["static-b-tau2"]})
    document, _ = STUDY["tabulate_static"](out, 0.6)
    assert document["seeds"]["0"]["front"] == ["static-a-tau2", "static-b-tau2", "static-d-tau1"]
    document, table = STUDY["tabulate_static"](out, 0.9)
    assert document["seeds"]["0"]["front"] == []
    assert re.search(r"`hcef_plus-tau5` \| \S+ % \| – \| – \| – \| – \|", table)


def test_rows_of_fewer_seeds_are_compared_apart(tmp_path: Path) -> None:
    """Seed 1 makes no mean that another row does not have."""
    write_rows(
        tmp_path, {"hcef_plus-tau5": ("hcef_plus", 1.0), "static-a-tau5": ("static", 1.0)}, seeds=(0, 1)
    )
    write_rows(tmp_path, {"static-b-tau5": ("static", 0.5)}, seeds=(0,))
    document, _ = STUDY["tabulate_static"](tmp_path, 0.5)
    fronts = {seeds: part["front"] for seeds, part in document["seeds"].items()}
    assert fronts == {"0, 1": ["static-a-tau5"], "0": ["static-b-tau5"]}


def flatten(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    pending: list[tuple[str, Any]] = list(tomllib.loads(text).items())
    for key, value in pending:
        if isinstance(value, dict):
            pending += [(f"{key}.{inner}", each) for inner, each in value.items()]
        else:
            found[key] = value
    return found


def test_small_batches_of_femnist_are_charged_as_in_the_landed_table() -> None:
    """0.18 + 0.82 · 10/50 = 0.344 of a step; the measured overhead of 0.25 would make it 0.4."""
    rows = STUDY["list_under_budgets"]("femnist")
    for name in ("cef-small-shared", "p_fedavg-small-shared"):
        assert {"fleet.conditions.seconds_gigahertz=51.6", "fleet.conditions.alpha_joules=0.516"} <= {
            *rows[name]
        }
    assert STUDY["charge_batch"]("femnist", 10, 0.25)[1:] == (
        "fleet.conditions.seconds_gigahertz=60",
        "fleet.conditions.alpha_joules=0.6",
    )


def write_rows(out: Path, rows: dict[str, tuple[str, float]], seeds: tuple[int, ...] = (0, 1)) -> Path:
    """Three rounds per run; a row has a scheme and takes so many seconds and joules per round."""
    for row, (scheme, cost) in rows.items():
        for seed in seeds:
            lines = [record(n, 0.2 * n, cost * n, cost * n) for n in (1, 2, 3)]
            write_run(out / row / f"seed-{seed}", scheme, seed, lines)
    return out


def test_rows_are_named_by_their_folders_and_land(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row at half of CEF's costs gains 2; the target of 0.5 is reached after 2.5 rounds of 200 s."""
    out = write_rows(tmp_path / "out", {"cef": ("cef", 200.0), "cef-cheap": ("cef", 100.0)})
    place = tmp_path / "landed"
    STUDY["main"](["under-budgets", "--out", str(out), "--table", "0.5", "--land", str(place)])
    table = capsys.readouterr().out
    assert "| 2 of 2 | 0.05·10⁴ s | 0.50 kJ | 1.00× (1.00–1.00) | 1.00× (1.00–1.00) |" in table
    assert "2.00× (2.00–2.00) | 2.00× (2.00–2.00) |" in table
    STUDY["main"](["under-budgets", "--out", str(place), "--table", "0.5"])
    assert capsys.readouterr().out == table
    assert {path.name for path in place.iterdir()} == {
        *("rounds.parquet", "runs.json", "experiment.toml", "summary.json")
    }


def test_a_row_that_misses_the_target_has_no_costs(tmp_path: Path) -> None:
    out = write_rows(tmp_path, {"cef": ("cef", 200.0)})
    _, table = STUDY["tabulate_under_budgets"](out, 0.99)
    assert table.endswith("| 0 of 2 | – | – | – | – |")


def test_accuracy_at_the_budget_is_interpolated(tmp_path: Path) -> None:
    """A budget that ends in the middle of a round has the mean of the accuracies before and after it."""
    run = load_run(write_rows(tmp_path, {"cef": ("cef", 200.0)}) / "cef" / "seed-0")
    halved = replace(run, fleet=replace(run.fleet, seconds_budget=500.0, joules_budget=None))
    assert STUDY["find_accuracy"](halved) == pytest.approx(0.5)
    unlimited = replace(run, fleet=replace(run.fleet, seconds_budget=None, joules_budget=None))
    assert STUDY["find_accuracy"](unlimited) == run.records[-1].accuracy


def test_the_ablation_compares_seeds_that_all_rows_have(tmp_path: Path) -> None:
    write_rows(tmp_path, {"without-nothing": ("hcef_plus", 1.0)}, seeds=(0, 1))
    write_rows(tmp_path, {"without-curve": ("hcef_plus", 1.0)}, seeds=(0, 2))
    document, _ = STUDY["tabulate_ablation"](tmp_path)
    assert document["seeds"] == [0]
    assert document["without"]["curve"]["last_points"] == [0.0]


def test_an_accuracy_that_is_missed_does_not_count(tmp_path: Path) -> None:
    """Half the costs at the two accuracies that are reached, so both gains are 2; 0.99 is not reached."""
    runs = load_tree(write_rows(tmp_path, {"a": ("cef", 200.0), "b": ("hcef", 100.0)}, seeds=(0,)))
    found = STUDY["compare_costs"](runs["a/seed-0"], runs["b/seed-0"], [0.3, 0.5, 0.99])
    assert found == pytest.approx((2.0, 2.0))


def test_a_gain_is_over_the_same_scheme_without_the_change() -> None:
    document, _ = STUDY["tabulate_learning"](RESULTS / "learning-cifar10", 0.4)
    for row in document["changes"]["nothing"].values():
        assert (row["seconds_gain"], row["joules_gain"]) == pytest.approx((1.0, 1.0))
    document, _ = STUDY["tabulate_learning"](RESULTS / "learning-cifar10", 0.99)
    assert document["changes"]["nothing"]["cef"]["seconds_gain"] is None


def test_a_scheme_that_misses_the_target_says_so() -> None:
    costs = {"cef": Crossing(2e4, 2e4, 3e3), "hcef": None, "hcef_plus": Crossing(1e4, 1e4, 1e3)}
    assert STUDY["format_momentum"]("kept", costs) == [
        *("kept", "2.00·10⁴ s, 3.0 kJ", "not reached", "1.00·10⁴ s, 1.0 kJ (2.00×, 3.00×)")
    ]


@pytest.mark.parametrize("words", [["--table"], ["--table", "0.5", "0.6"], ["--land", "x"], ["--data", "x"]])
def test_what_a_study_needs_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        STUDY["main"](["under-budgets", "--out", "nowhere", *words])
    assert "needs --" in capsys.readouterr().err


def test_rows_are_chosen_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    parser, study = STUDY["build_parser"](), STUDY["STUDIES"]["full"]
    chosen = STUDY["choose_rows"](parser, study, "femnist", ["hcef", "static"])
    assert list(chosen.rows["femnist"]) == ["hcef", "static"]
    assert STUDY["choose_rows"](parser, study, "femnist", None) is study
    with pytest.raises(SystemExit):
        STUDY["choose_rows"](parser, study, "femnist", ["statik"])
    assert "no row 'statik'; choose from hcef_plus," in capsys.readouterr().err


def test_a_landed_study_is_not_landed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its summary would be replaced before that fails."""
    words = ["tuned", "--out", str(RESULTS / "learning-cifar10"), "--table", "--land", str(tmp_path)]
    with pytest.raises(SystemExit):
        STUDY["main"](words)
    assert "has landed already" in capsys.readouterr().err


@pytest.mark.long
def test_missing_runs_are_made_and_failures_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "small.toml", tmp_path / "out"
    file.write_text('preset = "demo"\n[rounds]\nglobal = 1\n[simulation]\nworkers = 1\n')
    planned = {"cef/seed-3": ("seed=3", "scheme.name=cef"), "x/seed-3": ("scheme.name=nonesuch",)}
    with pytest.raises(SystemExit, match="1 run of 2 failed"):
        STUDY["run_missing"](file, planned, out, 2)
    assert "nonesuch" in capsys.readouterr().out
    assert [run.seed for run in load_runs(out)] == [3]
    land_study(out, tmp_path / "landed")
    STUDY["main"](["unpack", str(tmp_path / "landed"), str(tmp_path / "again")])
    assert [run.records for run in load_runs(tmp_path / "again")] == [run.records for run in load_runs(out)]


@pytest.mark.parametrize("dataset", ["cifar10", "femnist"])
def test_the_field_has_every_scheme_with_the_same_training_options(dataset: str) -> None:
    """All train on 10 samples with shared momentum, but FedBuff and ATOMO; FedBalancer takes 10 of 20."""
    rows, found = STUDY["list_field"](dataset), {}
    file = STUDY["find_file"](dataset, STUDY["STUDIES"]["field"])
    for row, changes in rows.items():
        found[row] = load_experiment(file, (*STUDY["stop_at_budgets"](dataset), *changes))
        assert found[row].rounds.global_rounds == 1000
        assert found[row].fleet.estimate_error == (0.3 if row.endswith("-wrong") else 0.0)
    assert {each.scheme.name for each in found.values()} == set(SCHEMES)
    assert len(rows) > 40
    own = {row for row, each in found.items() if each.local.algorithm != "shared_momentum"}
    assert own == {"fedbuff", "atomo", "fedbalancer"}
    assert found["fedbalancer"].local.options == {"shared": True}
    batches = {row for row, each in found.items() if each.data.batch != 10}
    assert batches == {"fedbalancer", "static", "static-wrong", "hcef_plus", "hcef_plus-wrong"}


def test_the_field_is_one_page_for_both_data_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To 0.5 takes 2.5 rounds: of 200 s with CEF, 100 s with Nori, 50 s with HCEF+, 60 s if it is misled.

    The budget of 100 s ends after two of its rounds, with 40 %, or after 1⅔ of 60 s, with 33.3 %.
    """
    costs = {"cef": 200.0, "nori": 100.0, "hcef_plus": 50.0, "hcef_plus-wrong": 60.0}
    out = write_rows(tmp_path / "out" / "cifar10", {row: (row, cost) for row, cost in costs.items()}, (0,))
    write_rows(tmp_path / "out" / "femnist", {"cef": ("cef", 10.0)}, (0,))
    place = tmp_path / "landed"
    STUDY["main"](["field", "--out", str(out.parent), "--table", "0.5", "0.9", "--land", str(place)])
    page = capsys.readouterr().out
    assert "cifar10, to 50 %" in page
    best = "| `hcef_plus` | 40.0 % | 1 of 1 | 125 s | 125 J | 4.00× | 4.00× | 2.00×, 2.00× |"
    assert f"{best} −6.7, 1.20×, 1.20× | 0.0 |" in page
    assert "| `nori` | 20.0 % | 1 of 1 | 250 s | 250 J | 2.00× | 2.00× | 0.50×, 0.50× |  | 0.0 |" in page
    assert "| `cef` | 60.0 % | 0 of 1 | – | – | – | – | –, – |  | 0.0 |" in page
    assert page.endswith("5 runs, 0.0 hours of one machine\n")
    STUDY["main"](["field", "--out", str(place), "--table", "0.5", "0.9"])
    assert capsys.readouterr().out == page
