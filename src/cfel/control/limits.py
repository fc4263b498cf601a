"""Which caps a fleet can meet at all, and what to do about those it cannot.

A cap can be out of reach even at the lower bounds: late in a run, with a bad channel, or when ρ is pinned at
1. Training must continue all the same, so `find_feasible_limits` relaxes the caps until they can be met, and
reports in words what it had to relax. The paper does not say what happens in that case.
"""

from dataclasses import dataclass

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.problem import RoundProblem

# Rounding slack when a cap is compared with what the lower bounds need, and how many sentences are kept.
SLACK = 1e-9
MOST_SENTENCES = 20


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """Caps that every device can meet.

    Attributes:
        seconds: per device.
        battery: joules per device, or `None` where no device has a limit.
        joules: for all devices together.
        time_cap: seconds per cluster after stretching; as asked for with `on_unreachable="minimum"`.
        violations: what was asked for and cannot be met.
        forced: the energy cap is out of reach, so all devices must take the lower bounds.
    """

    seconds: FloatArray
    battery: FloatArray | None
    joules: float
    time_cap: FloatArray
    violations: tuple[str, ...]
    forced: bool


def find_feasible_limits(problem: RoundProblem) -> Limits:
    """Raises the problem's caps where even the lower bounds break them."""
    least_seconds = problem.seconds(problem.rho_min, problem.theta_min)
    least_joules = problem.joules(problem.rho_min, problem.theta_min)
    seconds, time_cap, words = _relax_time_caps(problem, least_seconds)
    battery = problem.battery
    if battery is not None:
        words += _describe_batteries(problem, battery, least_joules)
        battery = np.maximum(battery, least_joules)
    total = float(least_joules.sum())
    forced = problem.energy_cap < total * (1 - SLACK)
    if forced:
        words.append(
            f"energy cap {problem.energy_cap:.6g} J is below the {total:.6g} J that the lower bounds need; "
            "all devices get the lower bounds"
        )
    joules = max(problem.energy_cap, total)
    return Limits(seconds, battery, joules, time_cap, tuple(words), forced)


def _relax_time_caps(problem: RoundProblem, least: FloatArray) -> tuple[FloatArray, FloatArray, list[str]]:
    asked = problem.time_cap[problem.cluster]
    late = least > asked + SLACK * np.abs(least)
    if not late.any():
        return np.maximum(asked, least), problem.time_cap, []
    makespan = np.full(problem.clusters, -np.inf)
    np.maximum.at(makespan, problem.cluster[late], least[late])
    if problem.on_unreachable == "stretch":
        cap = np.maximum(problem.time_cap, makespan)
        return np.maximum(cap[problem.cluster], least), cap, _describe_stretching(problem, makespan)
    return np.maximum(asked, least), problem.time_cap, _describe_minimum(problem, late, makespan)


def _describe_stretching(problem: RoundProblem, makespan: FloatArray) -> list[str]:
    clusters = np.flatnonzero(np.isfinite(makespan))
    words = [
        f"cluster {i}: time cap {problem.time_cap[i]:.6g} s is out of reach, stretched to the least makespan "
        f"{makespan[i]:.6g} s"
        for i in clusters[:MOST_SENTENCES]
    ]
    return _shorten(words, len(clusters), "clusters")


def _describe_minimum(problem: RoundProblem, late: np.ndarray, makespan: FloatArray) -> list[str]:
    counts = np.bincount(problem.cluster[late], minlength=problem.clusters)
    clusters = np.flatnonzero(counts)
    words = [
        f"cluster {i}: {counts[i]} of its devices cannot meet the time cap {problem.time_cap[i]:.6g} s and "
        f"drop to their lower bounds (slowest: {makespan[i]:.6g} s)"
        for i in clusters[:MOST_SENTENCES]
    ]
    return _shorten(words, len(clusters), "clusters")


def _describe_batteries(problem: RoundProblem, battery: FloatArray, least: FloatArray) -> list[str]:
    empty = np.flatnonzero(least > battery + SLACK * least)
    named = empty if problem.device is None else problem.device[empty]
    words = [
        f"device {name}: battery allows {battery[n]:.6g} J in this round, below the {least[n]:.6g} J of its "
        "lower bounds"
        for name, n in zip(named[:MOST_SENTENCES], empty[:MOST_SENTENCES], strict=True)
    ]
    return _shorten(words, len(empty), "devices")


def _shorten(words: list[str], total: int, what: str) -> list[str]:
    left_out = total - len(words)
    return [*words, f"… and {left_out} more {what}"] if left_out else words
