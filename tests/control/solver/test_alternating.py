"""Algorithm 3: both sub-problems and the whole alternation against CVXPY, and how it depends on its start."""

import numpy as np
import pytest
from hypothesis import given, settings

from cfel.control import RoundProblem, Stopping, solve
from cfel.control.problem import find_feasible_limits
from cfel.control.solve import make_start_feasible, solve_rho, solve_theta
from cfel.errors import InputError
from tests.control import reference
from tests.control.instances import CIFAR, FEMNIST, PRESETS, RATIOS, SEEDS, paper_problem

Plan = tuple[np.ndarray, np.ndarray]


def random_start(problem: RoundProblem, seed: int) -> Plan:
    """A start within every limit."""
    rho, theta = np.random.default_rng(seed).random((2, problem.devices))
    return make_start_feasible(problem, find_feasible_limits(problem), (rho, theta))


def assert_same_theta(problem: RoundProblem, rho: np.ndarray) -> None:
    """The fast θ keeps all limits and is as good as CVXPY's."""
    theta = solve_theta(problem, find_feasible_limits(problem), rho)
    exact = reference.cvxpy_theta(problem, rho)
    assert float(rho @ (2 - theta)) == pytest.approx(float(rho @ (2 - exact)), rel=1e-6)
    assert_feasible(problem, rho, theta)


def assert_same_rho(problem: RoundProblem, theta: np.ndarray) -> None:
    """The fast ρ keeps all limits and is as good as CVXPY's."""
    rho = solve_rho(problem, find_feasible_limits(problem), theta)
    exact = reference.cvxpy_rho(problem, theta)
    ours, theirs = (reference.objective(problem, plan, theta) for plan in (rho, exact))
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert_feasible(problem, rho, theta)


def assert_feasible(problem: RoundProblem, rho: np.ndarray, theta: np.ndarray) -> None:
    assert ((problem.rho_min <= rho) & (rho <= problem.rho_max)).all()
    assert ((problem.theta_min <= theta) & (theta <= problem.theta_max)).all()
    used, spent = reference.seconds(problem, rho, theta), reference.joules(problem, rho, theta)
    assert reference.worst_excess(used, problem.time_cap[problem.cluster]) <= 1e-9
    assert reference.worst_excess(np.array([spent.sum()]), np.array([problem.energy_cap])) <= 1e-9
    if problem.battery is not None:
        assert reference.worst_excess(spent, problem.battery) <= 1e-9


def with_batteries(seed: int) -> RoundProblem:
    """Half of the devices on mains, the others with 40 % of CEF's energy."""
    plain = paper_problem(seed, CIFAR, devices=16, share=0.7)
    full = plain.joules(np.ones(16), np.ones(16))
    return paper_problem(
        seed, CIFAR, devices=16, share=0.7, battery=np.where(np.arange(16) % 2, 0.4 * full, np.inf)
    )


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("share", [0.4, 0.6, 0.9])
@pytest.mark.parametrize("ratio", [0.01, 0.2, 3.0])
def test_both_sub_problems_agree_with_cvxpy(name: str, share: float, ratio: float) -> None:
    for devices in (1, 3, 64):
        problem = paper_problem(7, PRESETS[name], devices=devices, ratio=ratio, share=share)
        rho, _ = random_start(problem, devices)
        assert_same_theta(problem, rho)
        assert_same_rho(problem, solve_theta(problem, find_feasible_limits(problem), rho))
        assert_same_rho(problem, np.full(devices, 0.01))


@pytest.mark.parametrize("seed", range(4))
def test_both_sub_problems_agree_with_cvxpy_on_batteries(seed: int) -> None:
    problem = with_batteries(seed)
    rho, _ = random_start(problem, seed)
    assert_same_theta(problem, rho)
    assert_same_rho(problem, solve_theta(problem, find_feasible_limits(problem), rho))


@given(SEEDS)
@settings(max_examples=15, derandomize=True)
def test_sub_problems_agree_with_cvxpy_on_any_seed(seed: int) -> None:
    draw = np.random.default_rng(seed)
    problem = paper_problem(
        seed,
        (CIFAR, FEMNIST)[seed % 2],
        devices=int(draw.integers(1, 20)),
        clusters=3,
        ratio=float(draw.choice(RATIOS)),
        share=float(draw.uniform(0.3, 1.2)),
    )
    rho, _ = random_start(problem, seed)
    assert_same_theta(problem, rho)
    assert_same_rho(problem, solve_theta(problem, find_feasible_limits(problem), rho))


def test_theta_goes_first_where_a_joule_buys_most() -> None:
    """Two devices, ρ = ½, uploads of 10 s at 1 W and 2 W: worth 0.05 and 0.025 per joule.

    Steps cost nothing. The lower bounds 0.1 need 1 + 2 J; of 15 J, 12 are left. Device 0 takes 9 J to θ = 1,
    device 1 the last 3 J: θ = 0.1 + 3/20 = 0.25.
    """
    problem = RoundProblem(
        tau=1,
        sigma2=1,
        g2=1,
        mu=np.ones(2),
        alpha=np.zeros(2),
        nu=np.full(2, 10.0),
        power=np.array([1.0, 2.0]),
        cluster=np.zeros(2, dtype=int),
        time_cap=np.array([np.inf]),
        energy_cap=15,
        theta_min=np.full(2, 0.1),
    )
    assert solve_theta(problem, find_feasible_limits(problem), np.full(2, 0.5)) == pytest.approx([1.0, 0.25])


def test_rho_is_filled_like_water() -> None:
    """Two devices, θ = 1, σ² = 0, G² = 1: minimise 3ρ² − 5ρ each; ρ = 5/6 without limits.

    A step costs 1 and 2 J, an upload nothing, and 1.5 J are there: ρ = (5 − λ)/6 and (5 − 2λ)/6 with
    (5 − λ) + 2(5 − 2λ) = 9, so λ = 6/5 and ρ = 19/30 and 13/30.
    """
    problem = RoundProblem(
        tau=1,
        sigma2=0,
        g2=1,
        mu=np.ones(2),
        alpha=np.array([1.0, 2.0]),
        nu=np.zeros(2),
        power=np.zeros(2),
        cluster=np.zeros(2, dtype=int),
        time_cap=np.array([np.inf]),
        energy_cap=1.5,
    )
    assert solve_rho(problem, find_feasible_limits(problem), np.ones(2)) == pytest.approx([19 / 30, 13 / 30])


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("ratio", "share", "seed"), [(0.2, 0.6, 1), (1.0, 0.5, 2), (3.0, 0.8, 3)])
def test_alternation_agrees_with_cvxpy(name: str, ratio: float, share: float, seed: int) -> None:
    problem = paper_problem(seed, PRESETS[name], devices=12, clusters=3, ratio=ratio, share=share)
    start = random_start(problem, seed)
    ours = solve(problem, "alternating", start=start)
    rho, theta = reference.cvxpy_alternation(problem, start, passes=40)
    assert ours.objective == pytest.approx(reference.objective(problem, rho, theta), rel=1e-5)


def test_result_of_algorithm_3_depends_on_its_start() -> None:
    """64 devices, σ²/G² = 0.2, 60 % budgets: a device whose time is used up keeps whatever split it has."""
    problem = paper_problem(1, FEMNIST, ratio=0.2, share=0.6)
    starts = (1.0, 0.6, 0.3, 0.05)
    objectives = [solve(problem, "alternating", start=(rho, 1.0)).objective for rho in starts]
    joint = solve(problem)
    assert max(objectives) > 1.05 * min(objectives)
    assert joint.objective <= min(objectives) * (1 + 1e-9)
    assert joint.gap <= 1e-3


@given(SEEDS)
@settings(max_examples=25)
def test_a_pass_of_algorithm_3_never_makes_a_plan_worse(seed: int) -> None:
    problem = paper_problem(seed, CIFAR, devices=20, ratio=0.5)
    start = random_start(problem, seed)
    limits = find_feasible_limits(problem)
    theta = solve_theta(problem, limits, start[0])
    last = reference.objective(problem, start[0], theta)
    for passes in (1, 2, 5):
        stopping = Stopping(tolerance=0.0, most_iterations=passes)
        found = solve(problem, "alternating", start=start, stopping=stopping)
        assert found.iterations <= passes
        assert found.objective <= last * (1 + 1e-7)
        last = found.objective


@given(SEEDS)
@settings(max_examples=25)
def test_start_is_brought_within_the_limits(seed: int) -> None:
    """From the upper bounds, which break a 30 % budget, to a ρ that leaves room for θ_min."""
    problem = paper_problem(seed, FEMNIST, devices=10, share=0.3)
    limits = find_feasible_limits(problem)
    rho, _ = make_start_feasible(problem, limits, (np.full(10, 7.0), np.full(10, -3.0)))
    least = problem.theta_min
    used = reference.seconds(problem, rho, least)
    assert reference.worst_excess(used, limits.seconds) <= 1e-9
    spent = np.array([reference.joules(problem, rho, least).sum()])
    assert reference.worst_excess(spent, np.array([limits.joules])) <= 1e-9


def test_start_within_the_limits_is_kept() -> None:
    problem = paper_problem(3, CIFAR, devices=4, share=1.2)
    given_start = (np.full(4, 0.5), np.full(4, 0.25))
    rho, theta = make_start_feasible(problem, find_feasible_limits(problem), given_start)
    assert rho == pytest.approx(given_start[0], rel=1e-12)
    assert theta.tolist() == given_start[1].tolist()


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (([0.5, 0.5], 1.0), "rho₀"),
        ((0.5, np.nan), "theta₀"),
        ((np.inf, 0.5), "rho₀"),
        ((1.5, 0.5), r"rho₀\[0\] = 1.5: must lie in \[0, 1\]"),
        ((0.5, [0.5, -0.1, 1.0]), r"theta₀\[1\] = -0.1:"),
    ],
)
def test_bad_start_is_rejected(start: tuple[object, object], words: str) -> None:
    problem = paper_problem(0, devices=3)
    with pytest.raises(InputError, match=words):
        solve(problem, "alternating", start=start)  # type: ignore[arg-type]


def test_only_algorithm_3_takes_a_start() -> None:
    problem = paper_problem(0, devices=3)
    with pytest.raises(InputError, match="alternating"):
        solve(problem, start=(0.5, 0.5))
    with pytest.raises(InputError, match="alternating"):
        solve(problem, stopping=Stopping())


def test_unknown_method_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'joint'"):
        solve(paper_problem(0, devices=3), "joined")  # type: ignore[arg-type]
