"""The solver's measurements, on sizes that take no time."""

import json

import numpy as np
import pytest

from benchmarks import solver as bench_solver
from benchmarks.__main__ import main
from benchmarks.solver import Quality, Speed
from cfel.control import solve


def speed(devices: int, seconds: float) -> Speed:
    return Speed(devices, seconds, 1.0, seconds, 0.0)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5, 2.0])
def test_growth_exponent(exponent: float) -> None:
    """Times c · N^e lie on a line of slope e in a doubly logarithmic plot."""
    speeds = [speed(n, 1e-8 * n**exponent) for n in (10_000, 100_000, 1_000_000)]
    assert bench_solver.fit_growth_exponent(speeds) == pytest.approx(exponent, abs=1e-12)


@pytest.mark.parametrize(("devices", "clusters"), [(2, 1), (7, 1), (64, 8), (20, 2)])
def test_fleets_come_in_clusters_of_eight(devices: int, clusters: int) -> None:
    problem = bench_solver.build_problem("femnist", devices, 0, 0.6, 0.5)
    assert (problem.devices, problem.clusters) == (devices, clusters)
    assert (problem.sigma2, problem.g2, problem.tau) == (0.5, 1.0, 5)
    assert np.unique(problem.cluster).tolist() == list(range(clusters))


def test_caps_are_shares_of_cef() -> None:
    """CEF takes every step and sends everything: at a share of 1 its energy is exactly the cap."""
    problem = bench_solver.build_problem("cifar10", 64, 3, 1.0, 1.0)
    everything = np.ones(64)
    assert problem.energy_cap == pytest.approx(problem.joules(everything, everything).sum())
    makespan = problem.seconds(everything, everything).reshape(8, 8).max(axis=1)
    assert problem.time_cap.tolist() == pytest.approx([makespan.mean()] * 8)
    half = bench_solver.build_problem("cifar10", 64, 3, 0.5, 1.0)
    assert half.energy_cap == pytest.approx(problem.energy_cap / 2)


def test_instances_cover_the_range() -> None:
    problems = list(bench_solver.generate_instances(2, 2))
    assert len(problems) == 2 * 2 * 9 * 10
    ratios = {problem.sigma2 / problem.g2 for problem in problems}
    assert (min(ratios), max(ratios)) == (0.01, 100)


def test_quality(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_solver, "NOISE", (0.1, 1.0))
    monkeypatch.setattr(bench_solver, "SHARES", (0.6, 1.0))
    found = bench_solver.measure_quality(2, 1, starts=3)
    assert (found.devices, found.instances) == (2, 8)
    assert 0 <= found.median_gap <= found.worst_gap < 0.1
    assert found.worse_than_starts is not None
    assert found.worse_than_starts <= 1e-4
    assert bench_solver.measure_quality(2, 1).worse_than_starts is None


def test_starts_are_the_same_every_time() -> None:
    problem = bench_solver.build_problem("femnist", 4, 0, 0.6, 1.0)
    found = bench_solver.solve_from_starts(problem, 3, 5)
    assert len(found) == 3
    assert found == bench_solver.solve_from_starts(problem, 3, 5)
    assert min(found) >= solve(problem).lower_bound * (1 - 1e-9)


def test_speed() -> None:
    for plan in (solve, bench_solver.solve_list):
        found = bench_solver.measure_speed(64, 1, plan)
        assert (found.devices, found.seconds > 0, found.gap >= 0) == (64, True, True)
        assert found.sort_ratio == found.seconds / found.sort_seconds


def test_plans_without_a_coordinator() -> None:
    """More gossip brings the price closer; it is never further than its bound, and keeps to the cap."""
    coarse, fine = (bench_solver.measure_gossip(steps) for steps in (100, 200))
    assert fine.price_error < coarse.price_error
    assert fine.price_error <= fine.price_bound * (1 + 1e-9)
    assert max(coarse.energy, fine.energy) <= 1


def test_memory_counts_the_problem_itself() -> None:
    """Five columns of 8 bytes a device at the least."""
    assert bench_solver.measure_memory(1000) > 5 * 8 * 1000


def test_one_pass_of_the_general_solver_is_a_plan() -> None:
    pytest.importorskip("cvxpy")
    problem = bench_solver.build_problem("femnist", 8, 0, 0.8, 1.0)
    rho, theta = bench_solver.solve_with_cvxpy(problem)
    assert (problem.seconds(rho, theta) <= problem.time_cap[problem.cluster] * (1 + 1e-5)).all()
    assert problem.joules(rho, theta).sum() <= problem.energy_cap * (1 + 1e-5)
    assert problem.objective(rho, theta) >= solve(problem).lower_bound * (1 - 1e-5)


def test_comparison_with_the_general_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cvxpy")
    found = bench_solver.measure_general_solver(1)
    assert found is not None
    assert min(found) > 0
    monkeypatch.setattr(bench_solver, "find_spec", lambda _: None)
    assert bench_solver.measure_general_solver(1) is None


def test_what_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the measuring replaced, everything around it: the tables, and the progress kept off them."""
    monkeypatch.setenv("COLUMNS", "80")
    made_up = {
        "measure_quality": lambda n, seeds, _: Quality(n, seeds, 1e-5, 2e-4, 0, None),
        "measure_speed": lambda n, repeats, _, cluster_size=8: Speed(
            n, n * 1e-7, 1e-6, float(repeats), 1e-4, cluster_size
        ),
        "measure_general_solver": lambda repeats: (0.001, 0.001 * repeats),
        "measure_memory": lambda _: 2.0**30,
    }
    for name, function in made_up.items():
        monkeypatch.setattr(bench_solver, name, function)
    assert main(["solver", "--quick"]) == 0
    shown = capsys.readouterr()
    assert "quality, 64 devices" in shown.err
    assert all(words in shown.out for words in ("grows as N^1.00", "1,024 MiB", "30 times as long"))
    assert max(map(len, shown.out.splitlines())) <= 80
    monkeypatch.setattr(bench_solver, "measure_general_solver", lambda _: None)
    assert main(["solver", "--quick"]) == 0
    assert "CVXPY is not installed" in capsys.readouterr().out
    assert main(["solver", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["general_solver_ratio"] is None
    assert [row["devices"] for row in document["speed"]] == [64, 10_000, 100_000, 1_000_000]


@pytest.mark.slow
def test_the_whole_benchmark() -> None:
    found = bench_solver.measure(quick=True)
    assert [row.devices for row in found.quality] == [2, 8, 64, 512]
    assert all(row.above == 0 for row in found.quality if row.devices >= 64)
    assert all(row.worst_gap >= row.median_gap >= 0 for row in found.quality)
    assert found.peak_bytes > 0
