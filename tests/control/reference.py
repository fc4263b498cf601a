"""Slow and obvious counterparts of the controller's fast paths.

Nothing here is taken from `cfel.control` but the problem's data: objective and limits are written out device
by device, P2.1 and P2.2 go to CVXPY, and small instances of P2 are searched by brute force.
"""

from math import fsum
from typing import Any

import cvxpy
import numpy as np

from cfel.arrays import BoolArray, FloatArray
from cfel.control import RoundProblem

Plan = tuple[FloatArray, FloatArray]

# Half of CVXPY is annotated; it is used here as if none of it were.
cp: Any = cvxpy


def objective(problem: RoundProblem, rho: FloatArray, theta: FloatArray) -> float:
    """P2's sum, term by term with exact summation; written in the form σ²(2−θ)ρ + G²((2−θ)ρ + 3(1−ρ)²)."""
    w, sigma2, g2 = problem.noise_weight, problem.sigma2, problem.g2
    terms = []
    for r, t in zip(rho.tolist(), theta.tolist(), strict=True):
        terms += [w * sigma2 * (2 - t) * r, w * g2 * (2 - t) * r, 3 * g2 * (1 - r) ** 2]
    return fsum(terms)


def seconds(problem: RoundProblem, rho: FloatArray, theta: FloatArray) -> FloatArray:
    """ρτμ + θν of every device."""
    return np.array(
        [r * problem.tau * m + t * n for r, t, m, n in zip(rho, theta, problem.mu, problem.nu, strict=True)]
    )


def joules(problem: RoundProblem, rho: FloatArray, theta: FloatArray) -> FloatArray:
    """ρτα + pθν of every device."""
    return np.array(
        [
            r * problem.tau * a + p * t * n
            for r, t, a, p, n in zip(rho, theta, problem.alpha, problem.power, problem.nu, strict=True)
        ]
    )


def worst_excess(used: FloatArray, allowed: FloatArray) -> float:
    """By how much the worst entry exceeds what is allowed, relative to that; ≤ 0 when all is well."""
    limited = np.isfinite(allowed)
    over = used[limited] - allowed[limited]
    scale = np.where(allowed[limited] > 0, allowed[limited], 1.0)
    return float((over / scale).max(initial=-np.inf))


# --- CVXPY --------------------------------------------------------------------------------------------------


def cvxpy_theta(problem: RoundProblem, rho: FloatArray) -> FloatArray:
    """P2.1 as the paper prints it, with batteries where there are any."""
    theta = cp.Variable(problem.devices)
    send = problem.power * problem.nu
    compute = rho * problem.tau * problem.alpha
    limits = [theta >= problem.theta_min, theta <= problem.theta_max]
    _limit(limits, cp.multiply(problem.nu, theta), _caps(problem) - rho * problem.tau * problem.mu)
    if problem.battery is not None:
        _limit(limits, cp.multiply(send, theta), problem.battery - compute)
    if np.isfinite(problem.energy_cap):
        scale = max(problem.energy_cap, 1e-300)
        limits.append((send / scale) @ theta <= (problem.energy_cap - compute.sum()) / scale)
    cp.Problem(cp.Minimize(rho @ (2 - theta)), limits).solve(solver=cp.CLARABEL)
    return np.asarray(theta.value)


def cvxpy_rho(problem: RoundProblem, theta: FloatArray) -> FloatArray:
    """P2.2 as the paper prints it, 3G²ρ² + Cρ with C = (2−θ)σ² − (4+θ)G² (for w = 1)."""
    rho = cp.Variable(problem.devices)
    send = problem.power * problem.nu * theta
    compute = problem.tau * problem.alpha
    limits = [rho >= problem.rho_min, rho <= problem.rho_max]
    _limit(limits, cp.multiply(problem.tau * problem.mu, rho), _caps(problem) - theta * problem.nu)
    if problem.battery is not None:
        _limit(limits, cp.multiply(compute, rho), problem.battery - send)
    if np.isfinite(problem.energy_cap):
        scale = max(problem.energy_cap, 1e-300)
        limits.append((compute / scale) @ rho <= (problem.energy_cap - send.sum()) / scale)
    linear = (2 - theta) * problem.sigma2 - (4 + theta) * problem.g2
    cost = 3 * problem.g2 * cp.sum_squares(rho) + linear @ rho
    cp.Problem(cp.Minimize(cost), limits).solve(solver=cp.CLARABEL)
    return np.asarray(rho.value)


def cvxpy_alternation(problem: RoundProblem, start: Plan, tolerance: float = 1e-6, passes: int = 100) -> Plan:
    """Algorithm 3, lines 4–10, with a general solver in both steps."""
    rho, theta = start
    for _ in range(passes):
        new_theta = cvxpy_theta(problem, rho)
        new_rho = cvxpy_rho(problem, new_theta)
        moved = np.hypot(np.linalg.norm(new_rho - rho), np.linalg.norm(new_theta - theta))
        rho, theta = new_rho, new_theta
        if moved <= tolerance:
            break
    return rho, theta


def _caps(problem: RoundProblem) -> FloatArray:
    return problem.time_cap[problem.cluster]


def _limit(limits: list[Any], used: Any, allowed: FloatArray) -> None:
    limited = np.flatnonzero(np.isfinite(allowed))
    if limited.size:
        limits.append(used[limited] <= allowed[limited])


# --- brute force --------------------------------------------------------------------------------------------


def value_of_energy(
    problem: RoundProblem, device: int, budgets: FloatArray, places: int = 2001
) -> FloatArray:
    """One device's least cost for each energy budget, by trying many ρ with the largest θ each allows.

    The cost falls with θ, so nothing is lost by taking the largest. +inf where no ρ fits.
    """
    rho = np.linspace(problem.rho_min[device], problem.rho_max[device], places)
    theta, fits = _largest_theta(problem, device, rho, budgets[:, np.newaxis])
    cost = _cost(problem, rho, theta)
    return np.asarray(np.where(fits, cost, np.inf).min(axis=1))


def brute_force(problem: RoundProblem) -> float:
    """Least objective found for one to three devices; every point tried keeps all limits.

    One device: a grid over ρ. Two: a grid over the division of the energy, finer and finer around its best
    places, each device solved by a grid over ρ. Three: the same around its best place.
    """
    if problem.devices == 1:
        budget = np.array([problem.energy_cap])
        return float(value_of_energy(problem, 0, budget, places=200_001)[0])
    if problem.devices == 2:
        return _two_devices(problem)
    return _three_devices(problem)


def _two_devices(problem: RoundProblem) -> float:
    """Grid over the first device's energy, refined around the best few of its places."""
    low, high = _energy_range(problem, 0), _energy_range(problem, 1)
    least, most = low[0], min(low[1], problem.energy_cap - high[0])
    shares = np.linspace(least, max(least, most), 201)
    step, best = shares[1] - shares[0], np.inf
    for _ in range(3):
        left = problem.energy_cap - shares
        cost = value_of_energy(problem, 0, shares) + value_of_energy(problem, 1, left)
        best = min(best, float(cost.min()))
        nearby = np.linspace(-step, step, 21)
        around = shares[np.argsort(cost)[:15], np.newaxis] + nearby
        shares, step = np.clip(around.ravel(), least, max(least, most)), step / 10
    return best


def _three_devices(problem: RoundProblem, parts: int = 200) -> float:
    """Every division of what the lower bounds leave into equal parts, then finer around the best one."""
    least = [_energy_range(problem, device)[0] for device in range(3)]
    spare = max(0.0, problem.energy_cap - sum(least))
    centre, reach, best = np.array([0.5, 0.5]), 0.5, np.inf
    for _ in range(4):
        first, second = (np.clip(np.linspace(c - reach, c + reach, parts + 1), 0, 1) for c in centre)
        third = np.clip(1 - first[:, np.newaxis] - second, 0, None)
        values = [
            value_of_energy(problem, n, least[n] + spare * shares, places=2001)
            for n, shares in enumerate((first, second, np.linspace(0, 1, 4 * parts + 1)))
        ]
        # The third device's value is looked up at the next smaller budget, which it can certainly keep to.
        rest = values[2][np.floor(third * 4 * parts).astype(int)]
        fits = first[:, np.newaxis] + second <= 1 + 1e-12
        cost = np.where(fits, values[0][:, np.newaxis] + values[1] + rest, np.inf)
        place = np.unravel_index(np.argmin(cost), cost.shape)
        best, centre = min(best, float(cost[place])), np.array([first[place[0]], second[place[1]]])
        reach = reach / 10
    return best


def _energy_range(problem: RoundProblem, device: int) -> tuple[float, float]:
    steps, upload = problem.tau * problem.alpha[device], problem.power[device] * problem.nu[device]
    low = problem.rho_min[device] * steps + problem.theta_min[device] * upload
    return float(low), float(problem.rho_max[device] * steps + problem.theta_max[device] * upload)


def _largest_theta(
    problem: RoundProblem, device: int, rho: FloatArray, budget: FloatArray
) -> tuple[FloatArray, BoolArray]:
    """θ as large as bounds, time, battery and energy allow, and whether that is at least θ_min."""
    steps, upload = problem.tau * problem.alpha[device], problem.power[device] * problem.nu[device]
    own = np.inf if problem.battery is None else problem.battery[device]
    theta = np.broadcast_to(problem.theta_max[device], np.broadcast_shapes(rho.shape, budget.shape))
    cap = problem.time_cap[problem.cluster[device]]
    for left, unit in (
        (cap - rho * problem.tau * problem.mu[device], problem.nu[device]),
        (np.minimum(budget, own) - rho * steps, upload),
    ):
        most = left / unit if unit > 0 else np.where(left >= 0, np.inf, -np.inf)
        theta = np.minimum(theta, most)
    low = problem.theta_min[device]
    return np.maximum(theta, low), theta >= low * (1 - 1e-12)


def _cost(problem: RoundProblem, rho: FloatArray, theta: FloatArray) -> FloatArray:
    w, scale = problem.noise_weight, problem.sigma2 + problem.g2
    return np.asarray(w * (2 - theta) * rho * scale + 3 * (1 - rho) ** 2 * problem.g2)


# --- feasible plans -----------------------------------------------------------------------------------------


def feasible_plans(
    problem: RoundProblem,
    seconds_allowed: FloatArray,
    joules_allowed: float,
    draw: np.random.Generator,
    count: int,
) -> list[Plan]:
    """Random plans within given limits, all of which the lower bounds keep.

    A random point of the box is drawn towards the lower bounds: each device by its own factor until time and
    battery suffice, then all by one factor until the energy does.
    """
    low = np.array([problem.rho_min, problem.theta_min])
    room = np.array([problem.rho_max, problem.theta_max]) - low
    least_seconds, least_joules = seconds(problem, *low), joules(problem, *low)
    battery = np.full(problem.devices, np.inf) if problem.battery is None else problem.battery
    plans = []
    for _ in range(count):
        offset = room * draw.choice([0.0, 1.0, draw.random()], room.shape)
        for used, floor, limit in (
            (seconds(problem, *(low + offset)), least_seconds, seconds_allowed),
            (joules(problem, *(low + offset)), least_joules, np.maximum(battery, least_joules)),
        ):
            offset = offset * _shrink(used - floor, limit - floor)
        extra = fsum(joules(problem, *(low + offset)) - least_joules)
        share = _shrink(np.array([extra]), np.array([joules_allowed - fsum(least_joules)]))
        rho, theta = low + offset * share
        plans.append((rho, theta))
    return plans


def _shrink(extra: FloatArray, room: FloatArray) -> FloatArray:
    """The factor that brings each extra within its room."""
    room = np.maximum(room, 0.0)
    return np.minimum(1.0, np.divide(room, extra, out=np.ones_like(extra), where=extra > room))
