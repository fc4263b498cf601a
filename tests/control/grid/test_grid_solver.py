"""The progress problem: against brute force, within its limits, with a prove gap."""

import numpy as np
import pytest

from cfel.arrays import FloatArray
from cfel.control import RoundProblem
from cfel.control.grid.grid_solver import solve_on_grid
from cfel.control.grid.theta_grid import Objective, ThetaGrid
from cfel.control.solver.feasible_limits import find_feasible_limits

THETA = np.array([0.05, 0.2, 1.0])


def _objective(left_out: float = 0.3, least_speed: float = 0.5) -> Objective:
    return Objective(THETA, np.array([-0.6, -0.85, -1.0]), left_out, least_speed)


def _problem(devices: int, seed: int, share: float = 0.5, **changes: object) -> RoundProblem:
    draw = np.random.default_rng(seed)
    clock = draw.uniform(1, 2, devices)
    mu, alpha = 150 / clock, 1.5 * clock**2
    nu, power = draw.uniform(1, 300, devices), draw.uniform(0.1, 1.0, devices)
    energy = share * float((5 * alpha + power * nu).sum())
    fields = {
        "tau": 5, "sigma2": 1.0, "g2": 1.0, "mu": mu, "alpha": alpha, "nu": nu, "power": power,
        "cluster": np.arange(devices) % 2, "time_cap": [450.0, 500.0], "energy_cap": energy,
        "theta_min": 0.05,
    }  # fmt: skip
    return RoundProblem(**(fields | changes))  # type: ignore[arg-type]


def _brute_force(problem: RoundProblem, objective: Objective, points: int = 4001) -> float:
    """The least objective of two devices on a fine grid of ρ, every θ and the least possible clock."""
    rho = np.linspace(0.1, 1.0, points)
    options = []
    for n in range(2):
        limit = problem.time_cap[problem.cluster[n]]
        joules, costs = [], []
        for theta, per_step in zip(objective.theta, objective.per_step, strict=True):
            speed = np.maximum(
                rho * 5 * problem.mu[n] / (limit - theta * problem.nu[n]), objective.least_speed
            )
            sent = theta * problem.nu[n] * problem.power[n]
            spent = np.where(speed <= 1 + 1e-12, rho * 5 * problem.alpha[n] * speed**2 + sent, np.inf)
            joules.append(spent)
            costs.append(per_step * rho + objective.left_out * (1 - rho) ** 2)
        order = np.argsort(np.concatenate(joules))
        spent = np.concatenate(joules)[order]
        options.append((spent, np.minimum.accumulate(np.concatenate(costs)[order])))
    (first, first_cost), (second, second_cost) = options
    within = np.searchsorted(second, problem.energy_cap - first, side="right") - 1
    total = np.where(within >= 0, first_cost + second_cost[np.maximum(within, 0)], np.inf)
    return float(total[np.isfinite(first)].min())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("least_speed", [0.5, 1.0])
def test_two_devices_against_every_plan_there_is(seed: int, least_speed: float) -> None:
    """The bound is never above the best of a fine grid; the plan is as good as its gap says."""
    problem, objective = _problem(2, seed, share=0.25), _objective(least_speed=least_speed)
    best, solution = _brute_force(problem, objective), solve_on_grid(problem, objective)
    assert solution.lower_bound <= best + 1e-6
    assert solution.objective - best <= solution.gap * abs(solution.lower_bound) + 1e-3


def test_large_fleets_have_small_gaps() -> None:
    """A jump of one device in 512 is all that stands between plan and bound."""
    gaps = [solve_on_grid(_problem(512, seed, share=0.25), _objective()).gap for seed in range(5)]
    assert max(gaps) < 1e-3
    assert solve_on_grid(_problem(20_000, 0, share=0.25), _objective()).gap < 1e-4


def test_energy_and_time_are_kept_and_energy_is_used_up() -> None:
    problem = _problem(64, 3, share=0.25)
    solution = solve_on_grid(problem, _objective())
    assert solution.device_joules.sum() == pytest.approx(problem.energy_cap, rel=5e-3)
    assert (solution.device_seconds <= problem.time_cap[problem.cluster] * (1 + 1e-8)).all()
    assert solution.feasible


def test_with_plenty_of_energy_everybody_fills_the_time_there_is() -> None:
    """Cap 450 s, μ = 100, ν = 0: ρ = 450/500 = 0.9 at full clock."""
    problem = _problem(1, 0, mu=[100.0], nu=[0.0], cluster=[0], time_cap=[450.0], energy_cap=np.inf)
    solution = solve_on_grid(problem, _objective())
    assert (solution.rho[0], solution.theta[0], solution.speed[0]) == pytest.approx((0.9, 1.0, 1.0))


def test_a_device_that_would_wait_turns_its_clock_down() -> None:
    """Cap 450 s, τμ = 300, nothing to send: ρ = 1 at 300/450 of the clock, for 4/9 of the energy."""
    problem = _problem(
        1, 0, mu=[60.0], alpha=[2.0], nu=[0.0], cluster=[0], time_cap=[450.0], energy_cap=np.inf
    )
    solution = solve_on_grid(problem, _objective())
    assert solution.rho[0] == 1.0
    assert solution.speed[0] == pytest.approx(2 / 3)
    assert solution.device_joules[0] == pytest.approx(10 * 4 / 9)


def test_a_fixed_clock_stays_fixed() -> None:
    solution = solve_on_grid(_problem(64, 1), _objective(least_speed=1.0))
    assert (solution.speed == 1.0).all()


def test_turning_clocks_down_is_never_worse() -> None:
    for seed in range(5):
        free, fixed = (solve_on_grid(_problem(64, seed), _objective(least_speed=s)) for s in (0.5, 1.0))
        assert free.objective <= fixed.objective + 1e-9


def test_batteries_are_kept() -> None:
    battery = np.full(16, 6.0)
    solution = solve_on_grid(_problem(16, 2, battery=battery, energy_cap=np.inf), _objective())
    least = find_feasible_limits(_problem(16, 2, battery=battery)).battery
    assert least is not None
    assert (solution.device_joules <= least * (1 + 1e-8)).all()


def test_an_energy_cap_out_of_reach_gives_the_lower_bounds_and_says_so() -> None:
    solution = solve_on_grid(_problem(8, 0, energy_cap=0.1), _objective())
    assert (solution.rho == 0.1).all()
    assert (solution.theta == 0.05).all()
    assert not solution.feasible
    assert "energy cap" in solution.violations[-1]


def test_answers_to_a_price_are_stationary() -> None:
    """No small step of ρ at the chosen θ is better, at any price."""
    problem, objective = _problem(200, 5), _objective()
    grid = ThetaGrid.from_problem(problem, find_feasible_limits(problem), objective)

    def total(rho: FloatArray, price: float, choice: np.ndarray) -> FloatArray:
        return objective.costs(choice, rho) + price * grid.joules(choice, rho)

    for price in (0.0, 1e-3, 1e-2, 0.05, 0.2):
        found = grid.respond(price)
        seconds = problem.seconds(found.rho, objective.theta[found.choice])
        inside = seconds < problem.time_cap[problem.cluster] - 1e-6
        for step in (-1e-4, 1e-4):
            moved = np.clip(found.rho + step, 0.1, 1.0)
            worse = total(moved, price, found.choice) >= total(found.rho, price, found.choice) - 1e-9
            assert worse[inside | (step < 0)].all()


def test_more_energy_is_never_worse() -> None:
    costs = [
        solve_on_grid(_problem(64, 7, share=share), _objective()).objective for share in (0.1, 0.2, 0.3, 0.5)
    ]
    assert costs == sorted(costs, reverse=True)
