"""`cfel plan`: every way in, every way out, and a plan whose numbers can be worked out by hand."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import pytest

import cfel
from cfel.api.fleet_file import read_problem
from cfel.control import solve
from cfel.errors import CfelError
from tests.cli.conftest import HEAD, Run, Write

COLUMNS = ("mu", "alpha", "nu", "power")
HCEF = ("--scheme", "hcef")


def as_json(fleet: Path, columns: bool, **rest: Any) -> str:
    with fleet.open(encoding="utf-8") as file:
        rows = [
            {key: float(value) if key in COLUMNS else value for key, value in row.items()}
            for row in csv.DictReader(file)
        ]
    devices: Any = {key: [row[key] for row in rows] for key in rows[0]} if columns else rows
    return json.dumps({**rest, "devices": devices})


def test_a_plan_by_hand(run: Run, one: Path) -> None:
    """τ = 5, σ² = G² = 1, no caps: θ = 1 and 2ρ + 3(1−ρ)² is least at ρ = 2/3, where it is 5/3.

    That takes 5 · 2/3 + 1 = 13/3 s and as many joules.
    """
    answer = run("plan", one, *HCEF, "--json")
    found = answer.document
    assert (answer.code, answer.err) == (0, "")
    assert found["rho"] == pytest.approx([2 / 3])
    assert found["theta"] == [1.0]
    assert found["objective"] == pytest.approx(5 / 3)
    assert found["lower_bound"] == pytest.approx(5 / 3)
    assert found["gap"] == pytest.approx(0, abs=1e-12)
    assert found["device_seconds"] == pytest.approx([13 / 3])
    assert found["device_joules"] == pytest.approx([13 / 3])
    assert (found["feasible"], found["violations"]) == (True, [])
    assert (found["time_cap"], found["energy_cap"], found["method"]) == ([None], None, "joint")
    shown = run("plan", one, *HCEF).out
    for words in ("only", "home", "0.667", "4.33 J (no limit)", "all limits are kept", "none"):
        assert words in shown
    assert "inf" not in shown
    assert "time    4.33 s (no limit; slowest: only)\n" in shown
    assert (
        "proof   the error bound is at most 0.0001 % above its least possible value\nmethod  joint\n" in shown
    )


def test_the_verdict_names_its_limits(run: Run, fleet: Path, write: Write) -> None:
    """One cap for all; a cap of its own for each cluster; and values far below one, which are not 0."""
    shown = run("plan", fleet, *HCEF, "--time-cap", 450, "--energy-cap", 300).out
    for line in (
        "  19 devices limited by energy: a joule helps more on another device\n",
        "  1 device limited by time: the cluster's whole time cap is used\n",
        "time    450.0 s of 450.0 s (slowest: roof-7)\n",
        "energy  300.0 J of 300.0 J\n",
        "proof   the error bound is at most 0.0291 % above its least possible value\n",
    ):
        assert line in shown
    caps = write("caps.json", as_json(fleet, False, time_cap=[400, 350, 300]))
    assert "time    400.0 s of 400.0 s in cluster plant (slowest: plant-5)\n" in run("plan", caps, *HCEF).out
    small = run("plan", write("small.csv", f"{HEAD}\na,0.023,0.0153,0.023,0.0153,x\n"), *HCEF).out
    assert "time    0.0997 s (no limit; slowest: a)\n" in small
    assert "energy  0.0514 J (no limit)\n" in small
    large = write("large.csv", f"{HEAD}\na,2000,1,1,1,x\nb,1,1,1,1,x\n")
    assert run("plan", large, *HCEF, "--time-cap", 5000).out.count(" 5,000.0 ") == 5


def test_options_reach_the_problem(run: Run, one: Path) -> None:
    """σ² = 0: ρ + 3(1−ρ)² is least at 5/6; with w = 2 it is 2/3; τ = 2 changes only the cost."""
    found = run("plan", one, *HCEF, "--sigma2", 0, "--json").document
    assert found["rho"] == pytest.approx([5 / 6])
    found = run("plan", one, *HCEF, "--sigma2", 0, "--noise-weight", 2, "--tau", 2, "--json").document
    assert found["rho"] == pytest.approx([2 / 3])
    assert found["device_seconds"] == pytest.approx([2 * 2 / 3 + 1])
    found = run("plan", one, *HCEF, "--g2", 0, "--rho-min", 0.25, "--theta-min", 0.5, "--json").document
    assert found["rho"] == [0.25]


@pytest.mark.parametrize("form", ["parquet", "objects", "columns"])
def test_every_format_means_the_same(run: Run, fleet: Path, tmp_path: Path, form: str) -> None:
    options = ("--time-cap", 400, "--energy-cap", 1000)
    expected = run("plan", fleet, *options)
    if form == "parquet":
        file = tmp_path / "fleet.parquet"
        pa_parquet.write_table(pa_csv.read_csv(fleet), file)
        answer = run("plan", file, *options)
    else:
        file = tmp_path / "fleet.json"
        file.write_text(as_json(fleet, form == "columns", time_cap=400, energy_cap=1000))
        answer = run("plan", file)
    assert (answer.code, answer.out, answer.err) == (0, expected.out, "")
    assert all(name in answer.out for name in ("plant-1", "roof-8", "depot"))


def test_options_go_before_the_document(run: Run, fleet: Path, write: Write) -> None:
    file = write("fleet.json", as_json(fleet, False, time_cap=[450, 450, 450], energy_cap="inf", tau=3))
    found = run("plan", file, *HCEF, "--time-cap", 300, "--json").document
    assert found["time_cap"] == [300, 300, 300]
    assert found["device_seconds"] == pytest.approx(
        solve(read_problem(file, {"time_cap": 300.0}).problem).device_seconds.tolist()
    )


def test_budgets_become_caps(run: Run, fleet: Path) -> None:
    """85000 s and 15000 J over 40 · 5 = 200 edge rounds: 425 s and 75 J each; 5 is the default."""
    options = ("--time-budget", 85000, "--energy-budget", 15000, "--rounds", 40, "--json")
    found = run("plan", fleet, *options, "--edge-rounds", 5).document
    assert (found["time_cap"], found["energy_cap"]) == ([425.0] * 3, 75.0)
    assert run("plan", fleet, *options).document == found
    assert run("plan", fleet, "--time-cap", 425, "--energy-cap", 75, "--json").document == found
    found = run("plan", fleet, "--time-budget", 85000, "--rounds", 40, "--energy-cap", 300, "--json").document
    assert found["time_cap"] == [425.0] * 3


def test_algorithm_3_and_its_start(run: Run, fleet: Path) -> None:
    options = (*HCEF, "--time-cap", 450, "--energy-cap", 300, "--json")
    best = run("plan", fleet, *options).document
    found = run("plan", fleet, *options, "--method", "alternating", "--start", 0.3).document
    problem = read_problem(fleet, {"time_cap": 450.0, "energy_cap": 300.0}).problem
    expected = solve(problem, "alternating", (0.3, 1.0))
    assert (found["method"], found["iterations"]) == ("alternating", expected.iterations)
    assert found["rho"] == expected.rho.tolist()
    assert found["lower_bound"] == best["lower_bound"]
    assert found["objective"] >= best["objective"] * (1 - 1e-4)
    assert expected.iterations >= 1


def test_csv_holds_the_whole_table(run: Run, fleet: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.csv"
    found = run("plan", fleet, *HCEF, "--energy-cap", 300, "--rows", 1, "--csv", file, "--json").document
    with file.open(encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text))
    assert len(rows) == 20
    assert (rows[0]["device"], rows[-1]["cluster"]) == ("plant-1", "roof")
    assert [float(row["rho"]) for row in rows] == found["rho"]
    assert [float(row["joules"]) for row in rows] == found["device_joules"]
    assert {row["limited_by"] for row in rows} == {"energy"}


def test_few_rows_say_that_there_are_more(run: Run, fleet: Path) -> None:
    shown = run("plan", fleet, "--rows", 2).out
    assert "… and 18 more" in shown
    assert "… and 1 more" in shown
    assert "plant-3" not in shown
    assert run("plan", fleet, "--rows", 0).code == 0


def test_caps_out_of_reach_are_reported_not_rejected(run: Run, fleet: Path) -> None:
    """roof-7 needs 0.1 · 5 · 144.5 + 0.01 · 6.9 = 72.319 s at the least."""
    answer = run("plan", fleet, *HCEF, "--time-cap", 1, "--energy-cap", 1)
    words = " ".join(answer.out.split())
    assert answer.code == 0
    assert "not met: cluster roof: time cap 1 s is out of reach" in words
    assert "needs at least 72.3 s" in words
    assert "not met: energy cap 1 J is below the" in words
    assert "all limits are kept" not in words
    found = run("plan", fleet, *HCEF, "--time-cap", 1, "--on-unreachable", "minimum", "--json").document
    assert (found["feasible"], found["time_cap"]) == (False, [1.0] * 3)
    assert found["rho"] == pytest.approx([0.1] * 20)


@pytest.mark.parametrize("cap", [68, 60, 30])
def test_slow_clocks_meet_a_cap_that_full_clocks_cannot(run: Run, fleet: Path, cap: int) -> None:
    """At full clock the lower bounds need 68.317 J; slowed down as far as 450 s allow, 18.7 J."""
    caps = ("--time-cap", 450, "--energy-cap", cap)
    found = run("plan", fleet, *caps, "--json").document
    assert (found["feasible"], found["violations"]) == (True, [])
    assert 0.98 * cap <= sum(found["device_joules"]) <= cap * (1 + 1e-8)
    assert "all limits are kept" in run("plan", fleet, *caps).out


def test_a_stretched_time_cap_is_shown_as_what_devices_keep_to(run: Run, fleet: Path) -> None:
    """Nobody can do its least in 10 s: no device is said to be held by that cap."""
    caps = ("--time-cap", 10, "--energy-cap", 1)
    found = run("plan", fleet, *caps, "--json").document
    assert found["time_cap"] == pytest.approx([123.903, 130.4720, 144.569], abs=1e-3)
    shown = run("plan", fleet, *caps).out
    assert "20 devices over the time cap: more time than was asked for\n" in shown
    assert "limited by time" not in shown
    assert "at the floor" in run("plan", fleet, *caps, *HCEF).out
    kept = run("plan", fleet, *caps, "--on-unreachable", "minimum", "--json").document
    assert kept["time_cap"] == [10.0] * 3


def test_battery_is_kept(run: Run, write: Write) -> None:
    """3 J are enough for θ = 1 and ρ = 0.4, or less of both: all of it is used, the other has no limit."""
    file = write("two.csv", f"{HEAD},battery\na,1,1,1,1,x,3\nb,1,1,1,1,x,\n")
    shown = run("plan", file, *HCEF).out
    found = run("plan", file, *HCEF, "--json").document
    assert found["device_joules"] == pytest.approx([3, 13 / 3])
    assert "1 device limited by battery: " in shown
    rows = [{"mu": 1, "alpha": 1, "nu": 1, "power": 1, "cluster": "x", "battery": left} for left in (3, None)]
    again = run("plan", write("two.json", json.dumps({"devices": rows})), *HCEF, "--json")
    assert again.document == found


def test_any_scheme_plans(run: Run, fleet: Path, write: Write) -> None:
    """Clocks are shown where the scheme chooses them; a user's own scheme is found beside the table."""
    caps = ("--time-cap", 450, "--energy-cap", 900)
    found = run("plan", fleet, *caps, "--scheme", "hcef_plus", "--json").document
    plan = cfel.plan(fleet, time_cap=450, energy_cap=900, scheme="hcef_plus")
    assert found["scheme"] == found["method"] == "hcef_plus"
    assert (found["rho"], found["theta"]) == (plan.rho.tolist(), plan.theta.tolist())
    assert found["speed"] == plan.speed.tolist()
    assert (found["gap"], found["objective"]) == (plan.gap, plan.objective)
    assert found["violations"] == []
    assert min(found["speed"]) < 1
    shown = run("plan", fleet, *caps, "--scheme", "hcef_plus").out
    assert " clock " in shown
    # Its bound says nothing about another makespan or another energy.
    words = " ".join(shown.split())
    assert "proof at most 0.0001 % worse than the best plan of hcef_plus for this time and energy" in words
    assert run("plan", fleet, *caps).out == shown
    assert " clock " not in run("plan", fleet, *caps, *HCEF).out
    options = (
        "--scheme",
        "hcef_plus",
        "--scheme-option",
        "least_speed=0.9",
        "--scheme-option",
        "least_batch=0.5",
    )
    assert min(run("plan", fleet, *caps, *options, "--json").document["speed"]) >= 0.9
    beside = write("beside.csv", fleet.read_text())
    write(
        "my_plans.py",
        "from cfel.control.scheme import RoundPlan, stateless\n"
        "def all_of_it(parameters):\n"
        "    return stateless(lambda seen: RoundPlan(0 * seen.sigma2 + 1, 0 * seen.sigma2 + 1))\n",
    )
    own = run("plan", beside, "--scheme", "my_plans:all_of_it")
    assert (own.code, own.out.count("proof   none: my_plans:all_of_it solves no problem")) == (0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scheme", "hcef_plus", "--scheme-option", "least_speed"], "must look like KEY=VALUE"),
        (["--scheme", "hcef_plus", "--scheme-option", "least_speed=2"], "scheme.options.least_speed = 2"),
        (["--scheme", "cef+small_batches"], "--batch: required with small batches"),
        (
            ["--scheme", "cef+small_batches", "--batch", 9, "--step-overhead", 1],
            "--step-overhead = 1.0: must",
        ),
        ([*HCEF, "--step-overhead", 0.1], "--step-overhead: only with another scheme than hcef"),
    ],
)
def test_what_a_scheme_needs(run: Run, fleet: Path, options: list[object], message: str) -> None:
    answer = run("plan", fleet, *options)
    assert answer.code == 2
    assert message in answer.err


@pytest.mark.parametrize("scheme", ["hcef", "hcef_plus"])
@pytest.mark.parametrize("length", [1, 60])
def test_tables_fit_80_columns(run: Run, write: Write, length: int, scheme: str) -> None:
    """Long names are folded; no number is ever cut short."""
    rows = [f"{'d' * length}{n},{100 + n}.5,2,3000,0.5,{'c' * length}{n % 3}" for n in range(40)]
    file = write("wide.csv", "\n".join([HEAD, *rows]))
    options = ("--time-cap", 1000, "--energy-cap", 50_000, "--scheme", scheme)
    shown = run("plan", file, *options).out
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("…") == 1
    found = run("plan", file, *options, "--json").document
    for device in range(20):
        assert f" {found['device_seconds'][device]:,.1f} " in shown


def test_names_that_look_like_markup(run: Run, write: Write) -> None:
    shown = run("plan", write("odd.csv", f"{HEAD}\n[/red],1,1,1,1,[bold]\n"), "--time-cap", 0.1).out
    assert "[/red]" in shown
    assert "not met: cluster [bold]: time cap 0.1 s" in shown


@pytest.mark.parametrize("option", ["--time-cap", "--energy-cap"])
@pytest.mark.parametrize("cap", [0, -4])
def test_a_cap_is_positive(run: Run, write: Write, option: str, cap: float) -> None:
    answer = run("plan", write("one.csv", f"{HEAD}\na,1,1,1,1,x\n"), option, cap)
    assert answer.code == 2
    assert f"argument {option}: '{cap}': must be a number > 0, or inf for no limit" in answer.err


def test_clusters_without_devices_are_left_out(run: Run, write: Write) -> None:
    device = {"mu": 1, "alpha": 1, "nu": 1, "power": 1}
    rows = [{**device, "cluster": 0}, {**device, "cluster": 2}]
    shown = run("plan", write("f.json", json.dumps({"devices": rows}))).out
    assert "more" not in shown.split("Devices")[0]


def test_failures_of_the_solver_exit_with_1(run: Run, one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise CfelError("[no] plan")

    monkeypatch.setattr("cfel.api.plan.solve", broken)
    answer = run("plan", one, *HCEF)
    assert (answer.code, answer.out, answer.err) == (1, "", "failed: [no] plan\n")


def test_an_interruption_exits_with_130(run: Run, one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cfel.api.plan.solve", stopped)
    assert run("plan", one, *HCEF).code == 130


@pytest.mark.slow
def test_a_million_rows(run: Run, tmp_path: Path) -> None:
    """1,000 clusters of 1,000 devices, caps at which both limits bind."""
    rng = np.random.default_rng(0)
    draws = rng.uniform(1, 2, (10**6, 4))
    rows = [f"{a:.4f},{b:.4f},{c:.4f},{d:.4f},{n % 1000}" for n, (a, b, c, d) in enumerate(draws.tolist())]
    file = tmp_path / "million.csv"
    file.write_text("\n".join([HEAD.removeprefix("id,"), *rows]))
    out = tmp_path / "plan.csv"
    answer = run("plan", file, "--time-cap", 6, "--energy-cap", 5e6, "--csv", out)
    assert answer.code == 0
    assert "all limits are kept" in answer.out
    assert "… and 999,980 more" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80
    with out.open(encoding="utf-8") as lines:
        assert sum(1 for _ in lines) == 10**6 + 1
    found = run("plan", file, "--time-cap", 6, "--energy-cap", 5e6, "--json").document
    assert len(found["rho"]) == 10**6
    assert 0 <= found["gap"] <= 1e-3
