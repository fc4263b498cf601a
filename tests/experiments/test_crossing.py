"""The README's first table is what the copied logs say, in realised time and interpolated."""

import re
from pathlib import Path

import pytest

from cfel.report import load_runs
from cfel.report.crossing import find_crossing

ROOT = Path(__file__).parents[2]
NAMES = {"HCEF+": "hcef_plus", "HCEF": "hcef", "CEF+clocks": "cef+slow_clocks", "CEF": "cef"}
ROW = re.compile(
    r"^\| \**([\w+-]+)\**[^|]*\| ([\d.]+)·10⁴ s \| ([\d.]+)·10⁴ s \| ([\d.]+) kJ \| \**([\d.]+)×, ([\d.]+)×"
)


def test_the_first_table_of_the_readme_follows_from_the_logs() -> None:
    folder = ROOT / "results" / "paper-channel-femnist-full"
    runs = {run.scheme: run for run in load_runs(folder) if run.seed == 0}
    found = {name: find_crossing(runs[scheme].records, 0.75) for name, scheme in NAMES.items()}
    rows = {
        match[1]: [float(each) for each in match.groups()[1:]]
        for match in map(ROW.match, (ROOT / "README.md").read_text(encoding="utf-8").splitlines())
        if match
    }
    assert set(rows) == set(NAMES)
    for name, (realised, expected, kilojoules, time, energy) in rows.items():
        cost, cef = found[name], found["CEF"]
        assert cost is not None
        assert cef is not None
        assert realised == pytest.approx(cost.realised_seconds / 1e4, abs=0.005)
        assert expected == pytest.approx(cost.expected_seconds / 1e4, abs=0.005)
        assert kilojoules == pytest.approx(cost.joules / 1e3, abs=0.05)
        assert time == pytest.approx(cef.realised_seconds / cost.realised_seconds, abs=0.005)
        assert energy == pytest.approx(cef.joules / cost.joules, abs=0.005)
