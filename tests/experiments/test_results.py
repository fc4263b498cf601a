"""The tables of README.md and results/README.md that no study prints are what the landed runs say."""

import re
import runpy
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cfel.report.load import Run, load_runs, load_tree
from cfel.report.summary import summarise
from cfel.reproduce.items import dump_rates, select_rates

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
FIRST_PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")
STUDY = runpy.run_path(str(ROOT / "experiments" / "study.py"))
NAMES = {
    "HCEF+, small batches, shared momentum": "hcef_plus+small_batches",
    "HCEF+": "hcef_plus",
    "Earlier HCEF+": "hcef_plus",
    "HCEF+ (first)": "hcef_plus",
    "HCEF": "hcef",
    "P-FedAvg": "p_fedavg",
    "CEF with slow clocks": "cef+slow_clocks",
    "CEF": "cef",
    "CEF-C": "cef_c",
    "CEF-F": "cef_f",
    "MLL-SGD": "mll_sgd",
}
KEYS = {"τ": "tau", "q": "q", "p_edge": "topology", "β": "noniid"}
Rows = dict[str, list[str]]


def read_table(page: str, after: str) -> Rows:
    """The rows of the first table after some words, by their first cell without bold type and "(ours)"."""
    lines = page[page.index(after) :].splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows: Rows = {}
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name.replace("*", "").removesuffix(" (ours)")] = cells
    return rows


def read_numbers(cells: list[str]) -> list[float]:
    """All numbers in some cells, without units, powers of ten and intervals."""
    plain = re.sub(r"·10⁴|\([^)]*\)|\*|(?<=\d),(?=\d{3})", "", " ".join(cells))
    return [float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", plain)]


def summarise_study(study: str, target: float) -> Mapping[str, Any]:
    schemes: Mapping[str, Any] = summarise(load_runs(RESULTS / study), target)["schemes"]
    return schemes


def check(shown: list[float], row: Mapping[str, Any], fields: Mapping[str, float]) -> None:
    """Numbers agree up to rounding in the last of two digits, in units of each field."""
    assert len(shown) >= len(fields)
    for number, (name, unit) in zip(shown, fields.items(), strict=False):
        assert number == pytest.approx(row[name] / unit, abs=0.0051 if unit != 1e3 else 0.051), name


COSTS = {"seconds_to_target": 1e4, "expected_seconds_to_target": 1e4, "joules_to_target": 1e3}
GAINS = {"gain_seconds": 1.0, "gain_joules": 1.0}
COSTS_OF_CEF = {"seconds_to_target": 1e4, "joules_to_target": 1e3}


TODAY = {
    "HCEF+ with the preset `best` and 8-bit values": "hcef_plus-bits",
    "HCEF+ with the preset `best`": "hcef_plus",
    "A static plan with the same training options": "static",
    "P-FedAvg with the same training options": "p_fedavg",
    "CEF at its best: own rate, τ, deadline, slow clocks": "cef-best-tau2",
    "HCEF": "hcef",
}
"""Rows of the first page by their rows in `full-femnist` and `full-cifar10`."""


def test_gains_of_todays_scheme() -> None:
    """The first page repeats what the page of results shows, which `study.py full` prints."""
    first, rows = read_table(FIRST_PAGE, "## What it gains"), read_table(PAGE, "[`full-femnist`]")
    others = read_table(PAGE, "[`full-cifar10`]")
    for columns, table in ((slice(0, 2), rows), (slice(2, 4), others)):
        for name, row in TODAY.items():
            assert [cell.replace("**", "") for cell in first[name][columns]] == table[f"`{row}`"][4:6]
        seconds, energy = table["`cef`"][1:3]
        shown = float(seconds.removesuffix(" s").replace(",", "")) / 1e4
        assert first["CEF"][columns] == [f"{shown:.2f}·10⁴ s", energy]
    # In the text below the table.
    best = rows["`cef-best-tau2`"]
    gains = [*best[-3:-1], best[-1].split()[0], *others["`cef-best-tau2`"][-3:-1]]
    static = rows["`static-bits`"], others["`static-bits`"], others["`static-bits-th0.3`"]
    gains += [gain.split()[0] for cells in static for gain in cells[-3:-1]]
    for gain in gains:
        assert gain in FIRST_PAGE


def test_costs_at_full_scale() -> None:
    schemes = summarise_study("paper-channel-cifar10-full", 0.55)
    rows = read_table(PAGE, "[`paper-channel-cifar10-full`]")
    assert {NAMES[name] for name in rows} == set(schemes)
    for name, cells in rows.items():
        row = schemes[NAMES[name]]
        assert len(row["per_seed"]) == 1
        check(read_numbers(cells), row, {**COSTS, **GAINS})


def test_costs_on_femnist_with_intervals_and_seed_by_seed() -> None:
    schemes = summarise_study("paper-channel-femnist-full", 0.75)
    rows = read_table(PAGE, "[`paper-channel-femnist-full`]")
    assert {NAMES[name] for name in rows} == set(schemes)
    for name, (seeds, *cells) in rows.items():
        row = schemes[NAMES[name]]
        assert int(seeds) == len(row["per_seed"]) == 3
        check(read_numbers(cells), row, {**COSTS, **GAINS})
        for cell, gain in zip(cells[-2:], GAINS, strict=True):
            if "(" in cell:
                assert f"({row['interval'][gain][0]:.2f}–{row['interval'][gain][1]:.2f})" in cell
    by_seed = read_table(PAGE, "Seed by seed:\n\n| Gain over CEF")
    assert len(by_seed) == 4
    for name, cells in by_seed.items():
        found = schemes[NAMES[name]]["per_seed"].values()
        assert cells == [f"{row['gain_seconds']:.2f}×, {row['gain_joules']:.2f}×" for row in found]


def test_costs_with_a_floor_at_full_scale() -> None:
    """Columns: time, expected, the paper's, energy, the paper's, gains, the paper's."""
    schemes = summarise_study("table1-femnist-full", 0.75)
    rows = read_table(PAGE, "[`table1-femnist-full`]")
    assert {NAMES[name] for name in rows} == set(schemes)
    for name, cells in rows.items():
        shown = read_numbers([cells[0], cells[1], cells[3], cells[5]])
        check(shown, schemes[NAMES[name]], {**COSTS, **GAINS})


@pytest.mark.parametrize(
    ("study", "target"), [("table1-femnist-reduced", 0.72), ("table1-cifar10-reduced", 0.5)]
)
def test_costs_at_reduced_scale(study: str, target: float) -> None:
    """A scheme that did not reach the target with every seed has words instead of costs."""
    schemes = summarise_study(study, target)
    rows = read_table(PAGE, f"[`{study}`]")
    assert {NAMES[name] for name in rows} == set(schemes)
    for name, (*cells, accuracy) in rows.items():
        row = schemes[NAMES[name]]
        assert accuracy == f"{100 * row['final_accuracy']:.1f} %"
        assert ("reached" in cells[0]) == (row["seconds_to_target"] is None)
        if row["seconds_to_target"] is None:
            continue
        fields = {"seconds_to_target": 1e4, "joules_to_target": 1e3, **GAINS}
        check(read_numbers(cells), row, fields)
        for cell, gain in zip(cells[-2:], GAINS, strict=True):
            if "(" in cell:
                assert f"({row['interval'][gain][0]:.2f}–{row['interval'][gain][1]:.2f})" in cell


def find_first(run: Run, target: float) -> tuple[float, float] | None:
    """Expected seconds and joules at the end of the first round at or above the target."""
    reached = (each for each in run.records if each.accuracy is not None and each.accuracy >= target)
    return next(((each.seconds_expected, each.joules_expected) for each in reached), None)


@pytest.mark.parametrize(("dataset", "target"), [("femnist", 0.72), ("cifar10", 0.45)])
def test_gains_in_the_sweeps(dataset: str, target: float) -> None:
    after = PAGE[PAGE.index("## Sweeps at reduced scale") :]
    text = after[after.index(f"{'FEMNIST' if dataset == 'femnist' else 'CIFAR-10'}, target") :]
    begin = text.index("| Gain over CEF")
    lines = text[begin : text.index("\n\n", begin)].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    checked = 0
    for (key, *values), *both in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        for place, value in enumerate(filter(None, values), start=1):
            folder = RESULTS / f"{KEYS[key]}-{dataset}" / f"{float(value):g}"
            runs = {run.scheme: find_first(run, target) for run in load_runs(folder)}
            for row in both:
                own, cef = runs[NAMES[row[0]]], runs["cef"]
                if "×" in row[place]:
                    assert own is not None
                    assert cef is not None
                    assert row[place] == f"{cef[0] / own[0]:.2f}×, {cef[1] / own[1]:.2f}×"
                    checked += 1
                elif row[place].startswith("not reached by"):
                    assert cef is None
                elif row[place].startswith("not reached"):
                    assert own is None
    assert checked == {"femnist": 26, "cifar10": 32}[dataset]


@pytest.mark.parametrize("dataset", ["cifar10", "femnist"])
def test_the_selected_rates_follow_from_the_landed_runs(dataset: str) -> None:
    study = RESULTS / f"rates-{dataset}"
    values = sorted({float(place.partition("/")[0]) for place in load_tree(study)})
    chosen, _ = select_rates({value: load_runs(study / f"{value:g}") for value in values})
    text = dump_rates(dataset, "reduced", chosen)
    assert tomllib.loads(text) == tomllib.loads((study / "rates.toml").read_text())
    table = tomllib.loads((ROOT / "experiments" / "rates.toml").read_text())
    assert table[dataset]["reduced"] == chosen


def used_share(run: Run) -> float:
    last, fleet = run.records[-1], run.fleet
    assert fleet.seconds_budget is not None
    assert fleet.joules_budget is not None
    return max(last.seconds_realised / fleet.seconds_budget, last.joules_realised / fleet.joules_budget)


def test_which_rows_ended_before_their_budgets() -> None:
    """HCEF+ and others end up to 0.2 % below a budget that leaves no room for another round."""
    used: dict[str, list[float]] = {}
    for dataset in ("femnist", "cifar10"):
        for place, run in load_tree(RESULTS / f"under-budgets-{dataset}").items():
            used.setdefault(place.partition("/")[0], []).append(used_share(run))
    early = {row: shares for row, shares in used.items() if min(shares) < 0.998}
    assert early.keys() == {"nori", "cef-fedbuff"}
    shares = [f"{100 * min(early[row]):.0f}–{100 * max(early[row]):.0f} %" for row in ("nori", "cef-fedbuff")]
    assert f"with {shares[0]} and {shares[1]} of a budget" in PAGE.replace("\n", " ")


@pytest.mark.parametrize(("dataset", "target"), [("femnist", 0.72), ("cifar10", 0.4)])
def test_rows_with_the_whole_budget(dataset: str, target: float) -> None:
    """They use their budgets up, and CEF is the row of the larger table."""
    study = RESULTS / f"under-budgets-whole-{dataset}"
    _, table = STUDY["tabulate_under_budgets"](study, target)
    assert "\n".join(table.splitlines()[2:]) in PAGE
    runs = load_tree(study)
    assert {place.partition("/")[0] for place in runs} == {"cef", "nori", "cef-fedbuff"}
    assert all(used_share(run) >= 1 for run in runs.values())
    for place, run in load_tree(RESULTS / f"under-budgets-{dataset}").items():
        if place.startswith("cef/"):
            assert run.records == runs[place].records


@pytest.mark.parametrize(("dataset", "name"), [("femnist", "FEMNIST"), ("cifar10", "CIFAR-10")])
def test_rates_of_cef(dataset: str, name: str) -> None:
    document, _ = STUDY["tabulate_rates"](RESULTS / f"rates-cef-{dataset}", 0.72)
    assert document["seeds"] == [10, 11, 12]
    rows = document["rows"]
    shown = ", ".join(f"{100 * row['accuracy']:.1f}" for row in rows.values())
    assert f"{shown} % on {name}" in PAGE.replace("\n", " ")
    if dataset == "femnist":
        times = rows["cef-rate0.12"]["seconds"] / rows["cef-rate0.06"]["seconds"]
        assert f"up to {times:.2f}× in time" in PAGE.replace("\n", " ")


STATIC = [("femnist", 0.72), ("cifar10", 0.5)]


@pytest.mark.parametrize(("dataset", "target"), STATIC)
def test_static_plans(dataset: str, target: float) -> None:
    """The table of the rows that all seeds have; no plan that only seed 0 has is on the front of seed 0."""
    document, text = STUDY["tabulate_static"](RESULTS / f"static-{dataset}", target)
    assert {seeds: len(part["rows"]) for seeds, part in document["seeds"].items()} == {"0, 1, 2": 30, "0": 63}
    table = text.split("\n\n")[1]
    assert f"[`static-{dataset}`](static-{dataset})\n\n{table}\n\n" in PAGE
    everywhere = document["seeds"]["0, 1, 2"]["rows"]
    assert set(document["seeds"]["0"]["front"]) <= everywhere.keys()
    assert all(run.records[-1].round < 2000 for run in load_tree(RESULTS / f"static-{dataset}").values())


def test_what_static_plans_say_of_hcef_plus() -> None:
    section = PAGE[PAGE.index("## Static plans") : PAGE.index("## The effect of each part")]
    by_tau, gains = [], []
    for dataset, target in STATIC:
        rows = read_table(section, f"[`static-{dataset}`]")
        behind = {name for name, cells in rows.items() if "behind" in cells[3]}
        assert "`hcef_plus-tau5`" in behind
        assert "`hcef_plus-tau2`" not in behind
        gains += [read_numbers([rows[f"`hcef_plus-tau{tau}`"][4]])[:2] for tau in (2, 5)]
        document, _ = STUDY["tabulate_static"](RESULTS / f"static-{dataset}", target)
        slow, fast = (document["seeds"]["0, 1, 2"]["rows"][f"hcef_plus-tau{tau}"] for tau in (5, 2))
        by_tau.append([slow[cost] / fast[cost] for cost in ("seconds", "joules")])
    femnist, cifar10 = (f"{seconds:.2f}× and {joules:.2f}×" for seconds, joules in by_tau)
    assert f"HCEF+ gains {femnist} by it on FEMNIST, {cifar10} on CIFAR-10" in section
    seconds, joules = zip(*gains, strict=True)
    shown = f"{min(seconds):.2f}–{max(seconds):.2f}× and {min(joules):.2f}–{max(joules):.2f}× for τ = 2 and 5"
    assert shown in section
