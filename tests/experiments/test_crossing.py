"""The README's table and those of the results are what the copied logs say, in realised time."""

import re
from pathlib import Path
from typing import Any

import pytest

from cfel.report import load_runs, summarise

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
NAMES = {
    "HCEF+, small batches, shared momentum": "hcef_plus+small_batches",
    "HCEF+": "hcef_plus",
    "HCEF": "hcef",
    "P-FedAvg": "p_fedavg",
    "CEF with slow clocks": "cef+slow_clocks",
}
DATASETS = {"femnist": 0.75, "cifar10": 0.55}


def find_costs(dataset: str) -> dict[str, Any]:
    folder = ROOT / "results" / f"paper-channel-{dataset}-full"
    schemes: dict[str, Any] = summarise(load_runs(folder), DATASETS[dataset])["schemes"]
    return schemes


def read_rows(text: str) -> dict[str, list[str]]:
    """The cells of each name's first row, without bold type and intervals in brackets."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return {
        row[0].strip(" *"): [re.sub(r"\*|\s*\([^)]*\)", "", cell).strip() for cell in row[1:]]
        for row in reversed(rows)
    }


@pytest.mark.parametrize(("dataset", "column", "seeds"), [("femnist", 0, 3), ("cifar10", 1, 1)])
def test_the_table_of_the_readme_follows_from_the_logs(dataset: str, column: int, seeds: int) -> None:
    costs = find_costs(dataset)
    rows = read_rows(README)
    shown = {name: scheme for name, scheme in NAMES.items() if name in rows}
    assert len(shown) == 4
    for name, scheme in shown.items():
        found = costs[scheme]
        assert len(found["per_seed"]) == seeds
        assert rows[name][column] == f"{found['gain_seconds']:.2f}×, {found['gain_joules']:.2f}×"
    cef = costs["cef"]
    times = f"{cef['seconds_to_target'] / 1e4:.2f}·10⁴ s, {cef['joules_to_target'] / 1e3:.1f} kJ"
    assert rows["CEF"][column] == times


def test_the_intervals_of_the_readme_are_those_of_the_results() -> None:
    intervals = re.findall(r"×\** (\(\d+\.\d+–\d+\.\d+\))", README)
    assert len(intervals) == 7
    assert [each for each in intervals if each not in RESULTS] == []


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_tables_of_the_results_follow_from_the_logs(dataset: str) -> None:
    title = {"femnist": "FEMNIST", "cifar10": "CIFAR-10"}[dataset]
    section = RESULTS.partition(f"## Table 1, {title}, full scale, the paper's channel\n")[2].partition(
        "\n## "
    )[0]
    rows = read_rows(section)
    for scheme, found in find_costs(dataset).items():
        if scheme == "cef":
            continue  # the reference, written without decimals
        (name,) = [name for name, value in NAMES.items() if value == scheme]
        cells = [cell for cell in rows[name] if cell != str(len(found["per_seed"]))]
        seconds = [found["seconds_to_target"], found["expected_seconds_to_target"]]
        gains = [f"{found[key]:.2f}×" for key in ("gain_seconds", "gain_joules")]
        times = [f"{each / 1e4:.2f}·10⁴ s" for each in seconds]
        assert cells == [*times, f"{found['joules_to_target'] / 1e3:.1f} kJ", *gains]
