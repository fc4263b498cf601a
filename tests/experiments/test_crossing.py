"""The first table and gains of the README are what the copied logs say, in realised time and interpolated."""

import re
from pathlib import Path

import pytest

from cfel.report import load_runs, summarise

ROOT = Path(__file__).parents[2]
NAMES = {"HCEF+": "hcef_plus", "HCEF": "hcef", "CEF+clocks": "cef+slow_clocks", "CEF": "cef"}
ROW = re.compile(
    r"^\| \**([\w+-]+)\**[^|]*\| ([\d.]+)·10⁴ s \| ([\d.]+)·10⁴ s \| ([\d.]+) kJ \| \**([\d.]+)×, ([\d.]+)×"
)


def test_the_first_table_of_the_readme_follows_from_the_logs() -> None:
    summary = summarise(load_runs(ROOT / "results" / "paper-channel-femnist-full"), 0.75)
    rows = {
        match[1]: [float(each) for each in match.groups()[1:]]
        for match in map(ROW.match, (ROOT / "README.md").read_text(encoding="utf-8").splitlines())
        if match
    }
    assert set(rows) == set(NAMES)
    for name, (realised, expected, kilojoules, time, energy) in rows.items():
        found = summary["schemes"][NAMES[name]]
        assert len(found["per_seed"]) == 3
        assert realised == pytest.approx(found["seconds_to_target"] / 1e4, abs=0.005)
        assert expected == pytest.approx(found["expected_seconds_to_target"] / 1e4, abs=0.005)
        assert kilojoules == pytest.approx(found["joules_to_target"] / 1e3, abs=0.05)
        assert time == pytest.approx(found["gain_seconds"], abs=0.005)
        assert energy == pytest.approx(found["gain_joules"], abs=0.005)


def test_the_gains_on_cifar10_follow_from_the_logs() -> None:
    """To 45 %, in the README and in the results."""
    schemes = summarise(load_runs(ROOT / "results" / "paper-channel-cifar10-full"), 0.45)["schemes"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    results = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    plus, clocks = schemes["hcef_plus"], schemes["cef+slow_clocks"]
    assert f"gains {plus['gain_seconds']:.2f}× in time and {plus['gain_joules']:.2f}× in energy" in readme
    assert f"save {clocks['gain_joules']:.2f}× of the energy" in readme
    for name, row in (("HCEF+", plus), ("CEF, early finishers slow down", clocks)):
        time = f"{row['seconds_to_target'] / 1e4:.2f}·10⁴ s"
        cells = f"| {name} | {time} | {time} | {row['joules_to_target'] / 1e3:.1f} kJ |"
        assert f"{cells} {row['gain_seconds']:.2f}× | {row['gain_joules']:.2f}× |" in results
