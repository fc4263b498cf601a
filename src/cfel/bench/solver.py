"""`cfel bench solver`: how good, how fast and how large, measured side by side in one run.

Times are wall-clock and depend on the machine; what counts are the ratios, taken between things that ran a
moment apart. CVXPY, the general solver, is a development dependency: without it that comparison is left out.
"""

import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from cfel.control import RoundProblem, solve
from cfel.seeding import generator
from cfel.system import RandomConditions

MODELS = {"cifar10": (269_722, 0.15), "femnist": (6_603_710, 1.5)}
NOISE = (0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0)
SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
STEPS = 5


@dataclass(frozen=True, slots=True)
class Quality:
    """Proven gaps over many instances of one size whose caps can be met.

    Attributes:
        devices: N.
        instances: how many.
        median_gap, worst_gap: relative.
        above: instances with a gap above 0.1 %.
        worse_than_starts: how much worse than the best of 20 starts of Algorithm 3, at most; ≤ 0 is better.
    """

    devices: int
    instances: int
    median_gap: float
    worst_gap: float
    above: int
    worse_than_starts: float | None


@dataclass(frozen=True, slots=True)
class Speed:
    """One size, warm: median seconds of a solve, and its ratio to `numpy.sort` of as many numbers."""

    devices: int
    seconds: float
    sort_seconds: float
    sort_ratio: float
    gap: float


def fleet_problem(model: str, devices: int, seed: int, share: float, noise: float) -> RoundProblem:
    """A random fleet of a paper preset whose caps are a share of what CEF would use in this round.

    Args:
        model: "cifar10" or "femnist".
        devices: N, eight to a cluster.
        seed: of the conditions.
        share: of CEF's mean time per cluster and of its energy.
        noise: σ²/G².
    """
    parameters, joules = MODELS[model]
    bits = 32.0 * parameters
    now = RandomConditions(alpha_joules=joules).conditions(seed, 0, 0, devices, bits)
    clusters = max(1, devices // 8)
    cluster = np.arange(devices) * clusters // devices
    makespan = np.zeros(clusters)
    np.maximum.at(makespan, cluster, STEPS * now.mu + now.nu)
    return RoundProblem(
        tau=STEPS,
        sigma2=noise,
        g2=1.0,
        mu=now.mu,
        alpha=now.alpha,
        nu=now.nu,
        power=now.power,
        cluster=cluster,
        time_cap=np.full(clusters, share * makespan.mean()),
        energy_cap=share * float((STEPS * now.alpha + now.power * now.nu).sum()),
    )


def instances(devices: int, seeds: int) -> Iterator[RoundProblem]:
    """Both presets, σ²/G² from 0.01 to 100, budgets from 20 % to 120 % of CEF."""
    for seed in range(seeds):
        for model in MODELS:
            for noise in NOISE:
                for share in SHARES:
                    yield fleet_problem(model, devices, seed, share, noise)


def measure_quality(devices: int, seeds: int, starts: int = 0) -> Quality:
    """Gaps over all instances of a size; with `starts`, against the best of so many starts of Algorithm 3."""
    gaps, worse = [], []
    for number, problem in enumerate(instances(devices, seeds)):
        solution = solve(problem)
        if not solution.feasible:
            continue
        gaps.append(solution.gap)
        if starts:
            best = min(objectives_from_starts(problem, starts, number))
            worse.append((solution.objective - best) / best)
    return Quality(
        devices=devices,
        instances=len(gaps),
        median_gap=float(np.median(gaps)),
        worst_gap=max(gaps),
        above=sum(gap > 1e-3 for gap in gaps),
        worse_than_starts=max(worse) if worse else None,
    )


def objectives_from_starts(problem: RoundProblem, starts: int, seed: int) -> list[float]:
    """Where Algorithm 3 ends from random starts."""
    draws = generator(seed, "starts").random((starts, 2, problem.devices))
    return [solve(problem, "alternating", start=(rho, theta)).objective for rho, theta in draws]


def measure_speed(devices: int, repeats: int) -> Speed:
    """Median over both presets at 60 % budgets, each solve next to a sort of as many doubles."""
    numbers = generator(0, "sort").random(devices)
    solves, sorts, gap = [], [], 0.0
    for model in MODELS:
        for repeat in range(repeats):
            problem = fleet_problem(model, devices, repeat, 0.6, 1.0)
            solve(problem)
            seconds, solution = _timed(lambda problem=problem: solve(problem))  # type: ignore[misc]
            solves.append(seconds)
            sorts.append(_timed(lambda: np.sort(numbers))[0])
            gap = max(gap, solution.gap)
    seconds, sort_seconds = float(np.median(solves)), float(np.median(sorts))
    return Speed(devices, seconds, sort_seconds, seconds / sort_seconds, gap)


def measure_memory(devices: int) -> float:
    """Peak bytes allocated while one problem of that size is solved, its own arrays included."""
    problem = fleet_problem("cifar10", devices, 0, 0.6, 1.0)
    own = sum(getattr(problem, name).nbytes for name in ("mu", "alpha", "nu", "power", "cluster"))
    tracemalloc.start()
    solve(problem)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return float(peak + own)


def measure_general_solver(repeats: int) -> tuple[float, float] | None:
    """Median seconds of a joint solve and of one pass of P2.1 and P2.2 in CVXPY at N = 64.

    Taken over so many of the instances that `measure_quality` looks at, evenly chosen.
    """
    if find_spec("cvxpy") is None:
        return None
    ours, theirs = [], []
    family = list(instances(64, 1))
    for problem in family[:: max(1, len(family) // repeats)]:
        if not solve(problem).feasible:
            continue
        ours.append(_timed(lambda problem=problem: solve(problem))[0])  # type: ignore[misc]
        theirs.append(_timed(lambda problem=problem: one_general_pass(problem))[0])  # type: ignore[misc]
    return float(np.median(ours)), float(np.median(theirs))


def one_general_pass(problem: RoundProblem) -> tuple[np.ndarray, np.ndarray]:
    """P2.1 with ρ at half of its range, then P2.2, by CVXPY with the solvers it chooses itself."""
    cp: Any = import_module("cvxpy")
    step, upload = problem.tau * problem.mu, problem.nu
    step_joules, upload_joules = problem.tau * problem.alpha, problem.power * problem.nu
    cap = problem.time_cap[problem.cluster]
    rho0 = np.clip(0.5 * (cap - problem.theta_min * upload) / step, problem.rho_min, problem.rho_max)
    theta = cp.Variable(problem.devices)
    limits = [
        theta >= problem.theta_min,
        theta <= problem.theta_max,
        cp.multiply(upload, theta) <= cap - rho0 * step,
        upload_joules @ theta <= problem.energy_cap - rho0 @ step_joules,
    ]
    cp.Problem(cp.Maximize(rho0 @ theta), limits).solve()
    found = np.clip(theta.value, problem.theta_min, problem.theta_max)
    rho = cp.Variable(problem.devices)
    linear = (2 - found) * problem.sigma2 - (4 + found) * problem.g2
    limits = [
        rho >= problem.rho_min,
        rho <= problem.rho_max,
        cp.multiply(step, rho) <= cap - found * upload,
        step_joules @ rho <= problem.energy_cap - upload_joules @ found,
    ]
    quadratic = cp.Problem(cp.Minimize(3 * problem.g2 * cp.sum_squares(rho) + linear @ rho), limits)
    # CVXPY's own choice for a quadratic programme; polishing writes to standard output, and costs time.
    quadratic.solve(solver="OSQP", polishing=False)
    return np.asarray(rho.value), found


def growth_exponent(speeds: list[Speed]) -> float:
    """Slope of log time over log N: 1 is linear."""
    sizes, seconds = (np.log([getattr(speed, name) for speed in speeds]) for name in ("devices", "seconds"))
    return float(np.polyfit(sizes, seconds, 1)[0])


def as_document(**parts: Any) -> dict[str, Any]:  # noqa: ANN401 — any part of the bench
    """The parts of a bench as plain values."""
    return {
        name: [asdict(entry) for entry in part] if isinstance(part, list) else part
        for name, part in parts.items()
    }


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = action()
    return time.perf_counter() - begin, result
