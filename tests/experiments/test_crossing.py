"""The first table and gains of the README are what the copied logs say, in realised time and interpolated."""

import re
from pathlib import Path

import pytest

from cfel.report import load_runs, summarise

ROOT = Path(__file__).parents[2]
NAMES = {
    "**HCEF+, small batches, shared momentum** (ours)": "hcef_plus+small_batches",
    "**HCEF+** (ours)": "hcef_plus",
    "HCEF": "hcef",
    "P-FedAvg": "p_fedavg",
    "CEF, early finishers slow down": "cef+slow_clocks",
    "CEF": "cef",
}
ROW = re.compile(
    r"^\| ([^|]+?) \| ([\d.]+)·10⁴ s \| ([\d.]+)·10⁴ s \| ([\d.]+) kJ \| \**([\d.]+)×, ([\d.]+)×"
)
TABLE = re.compile(r"^\*\*(FEMNIST|CIFAR-10) to (\d+) %\*\*", re.MULTILINE)


def read_tables() -> dict[str, tuple[float, dict[str, list[float]]]]:
    """For each data set, the target and the rows of the README's table."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    found = list(TABLE.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return {
        match[1]: (
            int(match[2]) / 100,
            {
                row[1]: [float(each) for each in row.groups()[1:]]
                for row in map(ROW.match, text[match.end() : end].splitlines())
                if row
            },
        )
        for match, end in zip(found, ends, strict=True)
    }


@pytest.mark.parametrize(
    ("dataset", "folder", "seeds"),
    [("FEMNIST", "paper-channel-femnist-full", 3), ("CIFAR-10", "paper-channel-cifar10-full", 1)],
)
def test_the_first_tables_of_the_readme_follow_from_the_logs(dataset: str, folder: str, seeds: int) -> None:
    target, rows = read_tables()[dataset]
    summary = summarise(load_runs(ROOT / "results" / folder), target)
    assert {NAMES[name] for name in rows} == set(summary["schemes"])
    for name, (realised, expected, kilojoules, time, energy) in rows.items():
        found = summary["schemes"][NAMES[name]]
        assert len(found["per_seed"]) == seeds
        assert realised == pytest.approx(found["seconds_to_target"] / 1e4, abs=0.005)
        assert expected == pytest.approx(found["expected_seconds_to_target"] / 1e4, abs=0.005)
        assert kilojoules == pytest.approx(found["joules_to_target"] / 1e3, abs=0.05)
        assert time == pytest.approx(found["gain_seconds"], abs=0.005)
        assert energy == pytest.approx(found["gain_joules"], abs=0.005)


def test_the_results_have_the_same_figures_of_cifar10() -> None:
    target, _ = read_tables()["CIFAR-10"]
    schemes = summarise(load_runs(ROOT / "results" / "paper-channel-cifar10-full"), target)["schemes"]
    results = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    for name, scheme in NAMES.items():
        if scheme == "cef":
            continue  # the reference, written without decimals
        row = schemes[scheme]
        times = [row["seconds_to_target"], row["expected_seconds_to_target"]]
        cells = " | ".join(f"{each / 1e4:.2f}·10⁴ s" for each in times)
        gains = f"{row['gain_seconds']:.2f}× | {row['gain_joules']:.2f}×"
        plain = name.removesuffix(" (ours)").strip("*")
        assert f"| {plain} | {cells} | {row['joules_to_target'] / 1e3:.1f} kJ | {gains} |" in results
