"""`python -m benchmarks solver`: quality, speed and memory of the solver.

Wall time depends on the machine, so only ratios between measurements close in time count. CVXPY, the general
solver, is a development dependency; without it that comparison is left out.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from rich.console import Console

from cfel.cli.output import new_table, print_table
from cfel.control import RoundProblem, Solution, solve
from cfel.control.agreement import agree
from cfel.control.list_solver import PairTable, Weighing, list_steps, list_theta, pair_up, solve_on_list
from cfel.control.prices import search_price
from cfel.control.problem import find_feasible_limits
from cfel.control.segments import PricedFleet
from cfel.seeding import make_generator
from cfel.system.conditions import RandomConditions

MODELS = {"cifar10": (269_722, 0.15), "femnist": (6_603_710, 1.5)}
NOISE = (0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0)
SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
STEPS = 5


@dataclass(frozen=True, slots=True)
class Quality:
    """Proven gaps over many feasible instances of one size.

    Attributes:
        devices: N.
        instances: number of instances.
        median_gap, worst_gap: relative gaps.
        above: number of instances with a gap above 0.1 %.
        worse_than_starts: largest relative excess over the best of 20 starts of Algorithm 3; ≤ 0 is better.
    """

    devices: int
    instances: int
    median_gap: float
    worst_gap: float
    above: int
    worse_than_starts: float | None


@dataclass(frozen=True, slots=True)
class Speed:
    """Median seconds of a solve after warm-up, and its ratio to `numpy.sort` of as many numbers."""

    devices: int
    seconds: float
    sort_seconds: float
    sort_ratio: float
    gap: float
    cluster_size: int = 8


@dataclass(frozen=True, slots=True)
class Gossiped:
    """A plan without a coordinator, compared with the coordinated one.

    Attributes:
        steps: gossip steps.
        error: bound on the relative error of a sum, m·ζᴷ.
        price_bound: how far prices may lie above the exact one at most, relatively.
        price_error: how far they do.
        loss: by how much the objective is above the coordinated one, relatively.
        energy: share of the energy cap that is used.
    """

    steps: int
    error: float
    price_bound: float
    price_error: float
    loss: float
    energy: float


@dataclass(frozen=True, slots=True)
class Results:
    """All measurements.

    Attributes:
        quality, speed: for several sizes, the largest last.
        list_speed: of plans on a list of pairs, as HCEF+ makes them; the last row has large clusters.
        gossiped: plans without a coordinator, 16 clusters in a ring.
        growth_exponent: time grows as N to this power from 10,000 devices.
        peak_bytes: memory of the largest size.
        general_solver_seconds: one pass of P2.1 and P2.2 in CVXPY; None without it.
        general_solver_ratio: relative to a joint solve.
    """

    quality: Sequence[Quality]
    speed: Sequence[Speed]
    list_speed: Sequence[Speed]
    gossiped: Sequence[Gossiped]
    growth_exponent: float
    peak_bytes: float
    general_solver_seconds: float | None
    general_solver_ratio: float | None

    def document(self) -> dict[str, Any]:
        """The results as plain values."""
        return asdict(self)

    def show(self, console: Console) -> None:
        """Prints the results as tables."""
        _print_quality(console, self.quality)
        _print_speed(console, "Time per solve of P2 (median, after warm-up)", self.speed)
        _print_speed(console, "Time per plan on a list, as of HCEF+", self.list_speed)
        _print_gossiped(console, self.gossiped)
        console.print(f"time grows as N^{self.growth_exponent:.2f} from 10,000 devices")
        largest = self.speed[-1].devices
        console.print(f"peak memory at {largest:,} devices: {self.peak_bytes / 2**20:,.0f} MiB")
        if self.general_solver_seconds is None:
            console.print("no comparison with a general solver: CVXPY is not installed")
        else:
            console.print(
                "one pass of P2.1 and P2.2 in CVXPY, 64 devices: "
                f"{1e3 * self.general_solver_seconds:.1f} ms, "
                f"{self.general_solver_ratio:.0f} times as long as a joint solve"
            )


def measure(*, quick: bool, only: None = None) -> Results:  # noqa: ARG001 — it has no parts
    """Runs the benchmark."""
    seeds, starts, largest = (1, 0, 100_000) if quick else (5, 20, 1_000_000)
    quality = []
    for devices in (2, 8, 64, 512):
        print(f"quality, {devices} devices …", file=sys.stderr)
        tried = starts if devices <= 64 else 0
        quality.append(measure_quality(devices, 1 if tried else seeds, tried))
    print("speed …", file=sys.stderr)
    small = measure_speed(64, 40, solve)
    general = measure_general_solver(30)
    sizes = [devices for devices in (10_000, 100_000, 1_000_000) if devices <= largest]
    large = [measure_speed(devices, 3, solve) for devices in sizes]
    listed = [measure_speed(devices, 40 if devices == 64 else 3, solve_list) for devices in (64, *sizes)]
    return Results(
        quality=quality,
        speed=[small, *large],
        list_speed=[*listed, measure_speed(largest, 3, solve_list, cluster_size=1000)],
        gossiped=[measure_gossip(steps) for steps in (50, 100, 150, 200)],
        growth_exponent=fit_growth_exponent(large),
        peak_bytes=measure_memory(largest),
        general_solver_seconds=general[1] if general else None,
        general_solver_ratio=general[1] / general[0] if general else None,
    )


def build_problem(
    model: str, devices: int, seed: int, share: float, noise: float, cluster_size: int = 8
) -> RoundProblem:
    """A random fleet of a paper preset whose caps are a share of what CEF would use in this round.

    Args:
        model: "cifar10" or "femnist".
        devices: N.
        seed: seed of the conditions.
        share: caps as a share of CEF's mean time per cluster and of its energy.
        noise: σ²/G².
        cluster_size: devices per cluster.
    """
    parameters, joules = MODELS[model]
    bits = 32.0 * parameters
    now = RandomConditions(alpha_joules=joules).conditions(seed, 0, 0, devices, bits)
    clusters = max(1, devices // cluster_size)
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


def generate_instances(devices: int, seeds: int) -> Iterator[RoundProblem]:
    """Both presets, σ²/G² from 0.01 to 100, budgets from 20 % to 120 % of CEF."""
    for seed in range(seeds):
        for model in MODELS:
            for noise in NOISE:
                for share in SHARES:
                    yield build_problem(model, devices, seed, share, noise)


def measure_quality(devices: int, seeds: int, starts: int = 0) -> Quality:
    """Gaps of all instances of a size; also compares with the best of `starts` runs of Algorithm 3."""
    gaps, worse = [], []
    for number, problem in enumerate(generate_instances(devices, seeds)):
        solution = solve(problem)
        if not solution.feasible:
            continue
        gaps.append(solution.gap)
        if starts:
            best = min(solve_from_starts(problem, starts, number))
            worse.append((solution.objective - best) / best)
    return Quality(
        devices=devices,
        instances=len(gaps),
        median_gap=float(np.median(gaps)),
        worst_gap=max(gaps),
        above=sum(gap > 1e-3 for gap in gaps),
        worse_than_starts=max(worse) if worse else None,
    )


def solve_from_starts(problem: RoundProblem, starts: int, seed: int) -> list[float]:
    """Objectives that Algorithm 3 reaches from random starts."""
    draws = make_generator(seed, "starts").random((starts, 2, problem.devices))
    return [solve(problem, "alternating", start=(rho, theta)).objective for rho, theta in draws]


def solve_list(problem: RoundProblem) -> Solution:
    """A plan on HCEF+'s list of whole steps and shares, with clocks, where time counts 0.8."""
    steps, shares = list_steps(float(problem.rho_min[0]), STEPS), list_theta(float(problem.theta_min[0]))
    count, share = pair_up(steps, shares)
    rho, theta = count / STEPS, shares[share]
    kept = theta**0.3
    cost = 0.25 * (1 - rho) ** 2 - rho * np.maximum(1 - (1 - kept) / (50 * kept), 0.0)
    return solve_on_list(problem, PairTable(count, theta, cost, least_clock=0.5), Weighing(0.8))


def measure_speed(
    devices: int, repeats: int, plan: Callable[[RoundProblem], Solution], cluster_size: int = 8
) -> Speed:
    """Median over both presets at 60 % budgets, each solve followed by a sort of as many doubles."""
    numbers = make_generator(0, "sort").random(devices)
    solves, sorts, gap = [], [], 0.0
    for model in MODELS:
        for repeat in range(repeats):
            # The least share of steps is one step, so that both kinds of plans solve the same problem.
            drawn = build_problem(model, devices, repeat, 0.6, 1.0, cluster_size)
            problem = replace(drawn, rho_min=np.full(devices, 1 / STEPS))
            plan(problem)  # warm-up
            seconds, solution = _time_call(lambda problem=problem: plan(problem))  # type: ignore[misc]
            solves.append(seconds)
            sorts.append(_time_call(lambda: np.sort(numbers))[0])
            gap = max(gap, solution.gap)
    seconds, sort_seconds = float(np.median(solves)), float(np.median(sorts))
    return Speed(devices, seconds, sort_seconds, seconds / sort_seconds, gap, cluster_size)


def measure_gossip(steps: int, clusters: int = 16) -> Gossiped:
    """A ring of clusters: an edge server takes a third of its own numbers, and of each neighbour's."""
    problem = build_problem("femnist", 8 * clusters, 0, 0.6, 1.0)
    limits = find_feasible_limits(problem)
    fleet = PricedFleet.from_problem(problem, limits)
    bracket = search_price(fleet, limits.joules)
    one = np.eye(clusters)
    ring = (one + np.roll(one, 1, axis=0) + np.roll(one, -1, axis=0)) / 3
    found = agree(fleet, limits.joules, ring, steps, bracket.price)
    best = solve(problem).objective / (problem.sigma2 + problem.g2)
    return Gossiped(
        steps=steps,
        error=found.error,
        price_bound=found.highest / bracket.price - 1,
        price_error=float(np.abs(found.price / bracket.price - 1).max()),
        loss=float(found.response.cost.sum()) / best - 1,
        energy=float(found.response.joules.sum()) / limits.joules,
    )


def measure_memory(devices: int) -> float:
    """Peak bytes allocated while solving a problem of that size, including its arrays."""
    problem = build_problem("cifar10", devices, 0, 0.6, 1.0)
    own = sum(getattr(problem, name).nbytes for name in ("mu", "alpha", "nu", "power", "cluster"))
    tracemalloc.start()
    solve(problem)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return float(peak + own)


def measure_general_solver(repeats: int) -> tuple[float, float] | None:
    """Median seconds of a joint solve and of one pass of P2.1 and P2.2 in CVXPY at N = 64.

    Measured on about `repeats` evenly chosen instances of `measure_quality`; None without CVXPY.
    """
    if find_spec("cvxpy") is None:
        return None
    ours, theirs = [], []
    family = list(generate_instances(64, 1))
    for problem in family[:: max(1, len(family) // repeats)]:
        if not solve(problem).feasible:
            continue
        ours.append(_time_call(lambda problem=problem: solve(problem))[0])  # type: ignore[misc]
        theirs.append(_time_call(lambda problem=problem: solve_with_cvxpy(problem))[0])  # type: ignore[misc]
    return float(np.median(ours)), float(np.median(theirs))


def solve_with_cvxpy(problem: RoundProblem) -> tuple[np.ndarray, np.ndarray]:
    """Solves P2.1 with ρ at half of its range, then P2.2, with the solvers that CVXPY selects."""
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
    # CVXPY selects OSQP for a quadratic programme. Polishing costs time and writes to standard output.
    quadratic.solve(solver="OSQP", polishing=False)
    return np.asarray(rho.value), found


def fit_growth_exponent(speeds: Sequence[Speed]) -> float:
    """Slope of log time over log N; 1 is linear."""
    sizes, seconds = (np.log([getattr(speed, name) for speed in speeds]) for name in ("devices", "seconds"))
    return float(np.polyfit(sizes, seconds, 1)[0])


def _time_call(action: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = action()
    return time.perf_counter() - begin, result


def _print_quality(console: Console, rows: Sequence[Quality]) -> None:
    title = "Proven gap (both presets, σ²/G² 0.01 … 100, budgets 20 … 120 % of CEF)"
    table = new_table("devices", "instances", "median", "worst", "> 0.1 %", "vs 20 starts")
    for row in rows:
        compared = "–" if row.worse_than_starts is None else f"{row.worse_than_starts:+.1e}"
        table.add_row(
            f"{row.devices:,}",
            str(row.instances),
            f"{100 * row.median_gap:.5f} %",
            f"{100 * row.worst_gap:.4f} %",
            str(row.above),
            compared,
        )
    print_table(console, title, table)


def _print_speed(console: Console, title: str, rows: Sequence[Speed]) -> None:
    table = new_table("devices", "per cluster", "ms", "× numpy.sort", "gap")
    for row in rows:
        ratio, gap = f"{row.sort_ratio:.1f}", f"{100 * row.gap:.5f} %"
        table.add_row(f"{row.devices:,}", f"{row.cluster_size:,}", f"{1e3 * row.seconds:.2f}", ratio, gap)
    print_table(console, title, table)


def _print_gossiped(console: Console, rows: Sequence[Gossiped]) -> None:
    table = new_table("gossip steps", "error of the sum ≤", "price ≤", "price", "objective", "energy used")
    for row in rows:
        table.add_row(
            f"{row.steps:,}",
            f"{row.error:.1e}",
            f"{100 * row.price_bound:+.1f} %",
            f"{100 * row.price_error:+.1f} %",
            f"{100 * row.loss:+.2f} %",
            f"{100 * row.energy:.1f} %",
        )
    print_table(console, "Without a coordinator: 16 clusters in a ring, against the coordinated plan", table)
