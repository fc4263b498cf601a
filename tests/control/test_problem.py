"""A round problem rejects bad numbers and says which, where and what is allowed."""

from typing import Any

import numpy as np
import pytest

from cfel.control import RoundProblem
from cfel.errors import CfelError, InputError


def problem(**fields: Any) -> RoundProblem:
    """Three devices in two clusters, all of it allowed, with some fields replaced."""
    good: dict[str, Any] = {
        "tau": 5,
        "sigma2": 1.0,
        "g2": 1.0,
        "mu": [1.0, 2.0, 3.0],
        "alpha": [1.0, 1.0, 1.0],
        "nu": [4.0, 5.0, 6.0],
        "power": [0.5, 0.5, 0.5],
        "cluster": [0, 1, 0],
        "time_cap": [10.0, 20.0],
        "energy_cap": 30.0,
    }
    return RoundProblem(**(good | fields))


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"tau": 0}, "tau = 0"),
    ({"tau": -3}, "tau = -3"),
    ({"tau": 2.5}, "tau = 2.5"),
    ({"tau": True}, "tau = True"),
    ({"sigma2": -1.0}, "sigma2 = -1"),
    ({"sigma2": np.nan}, "sigma2 = nan"),
    ({"sigma2": np.inf}, "sigma2 = inf"),
    ({"sigma2": "much"}, "sigma2 = 'much'"),
    ({"g2": -0.5}, "g2 = -0.5"),
    ({"g2": np.nan}, "g2 = nan"),
    ({"noise_weight": -1.0}, "noise_weight = -1"),
    ({"noise_weight": np.inf}, "noise_weight = inf"),
    ({"mu": [1.0, 0.0, 3.0]}, "mu[1] = 0.0"),
    ({"mu": [1.0, 2.0, -3.0]}, "mu[2] = -3.0"),
    ({"mu": [np.nan, 2.0, np.nan]}, "mu[0] = nan"),
    ({"mu": [1.0, 2.0, np.inf]}, "mu[2] = inf"),
    ({"mu": [1.0, "x", 2.0]}, "mu[1]"),
    ({"mu": [[1.0, 2.0, 3.0]]}, "mu: must be one row"),
    ({"alpha": [1.0, -1.0, 1.0]}, "alpha[1] = -1.0"),
    ({"alpha": [1.0, 1.0]}, "alpha: must have 3 entries, got 2"),
    ({"nu": [4.0, 5.0, np.nan]}, "nu[2] = nan"),
    ({"nu": [4.0, 5.0, 6.0, 7.0]}, "nu: must have 3 entries, got 4"),
    ({"power": [-0.5, 0.5, 0.5]}, "power[0] = -0.5"),
    ({"power": [0.5, np.inf, 0.5]}, "power[1] = inf"),
    ({"battery": [1.0, -1.0, 1.0]}, "battery[1] = -1.0"),
    ({"battery": [1.0, 1.0, np.nan]}, "battery[2] = nan"),
    ({"battery": [1.0]}, "battery: must have 3 entries, got 1"),
    ({"cluster": [0, 2, 0]}, "cluster[1] = 2: unknown cluster (allowed: 0 to 1"),
    ({"cluster": [0, 1, -1]}, "cluster[2] = -1: unknown cluster"),
    ({"cluster": [0, 1]}, "cluster: must be 3 whole numbers"),
    ({"cluster": [0.0, 1.0, 0.0]}, "cluster: must be 3 whole numbers, got float64"),
    ({"device": [4, 5]}, "device: must be 3 whole numbers"),
    ({"device": [4.0, 5.0, 6.0]}, "device: must be 3 whole numbers, got float64"),
    ({"time_cap": [10.0, np.nan]}, "time_cap[1] = nan"),
    ({"time_cap": [-np.inf, 20.0]}, "time_cap[0] = -inf"),
    ({"time_cap": np.nan}, "time_cap[0] = nan"),
    ({"time_cap": [10.0]}, "cluster[1] = 1: unknown cluster (allowed: 0 to 0"),
    ({"energy_cap": np.nan}, "energy_cap = nan"),
    ({"energy_cap": -np.inf}, "energy_cap = -inf"),
    ({"energy_cap": "30"}, "energy_cap = '30'"),
    ({"rho_min": -0.1}, "rho_min = -0.1"),
    ({"rho_min": np.nan}, "rho_min = nan"),
    ({"rho_max": 1.1}, "rho_max = 1.1"),
    ({"rho_max": [1.0, 1.0]}, "rho_max: must have 3 entries, got 2"),
    ({"rho_max": [1.0, 1.0, 2.0]}, "rho_max[2] = 2.0"),
    ({"theta_min": [0.1, -0.1, 0.1]}, "theta_min[1] = -0.1"),
    ({"theta_max": np.inf}, "theta_max = inf"),
    ({"rho_min": 0.6, "rho_max": 0.5}, "rho_min[0] = 0.6: must be ≤ rho_max, which is 0.5"),
    ({"theta_min": [0.1, 0.1, 0.9], "theta_max": 0.5}, "theta_min[2] = 0.9: must be ≤ theta_max"),
    ({"on_unreachable": "strech"}, "did you mean 'stretch'?"),
    ({"on_unreachable": None}, "on_unreachable: unknown None"),
]


@pytest.mark.parametrize(("fields", "words"), BAD_FIELDS, ids=[words for _, words in BAD_FIELDS])
def test_bad_field_is_named_with_its_place_and_value(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as raised:
        problem(**fields)
    assert words in str(raised.value)
    assert isinstance(raised.value, CfelError)


def test_a_round_needs_a_device() -> None:
    nothing: dict[str, Any] = {field: [] for field in ("mu", "alpha", "nu", "power")}
    with pytest.raises(InputError, match="at least one device"):
        problem(**nothing, cluster=np.array([], dtype=int))


def test_what_is_allowed_is_kept() -> None:
    """Negative and infinite caps, zero costs and pinned bounds all have a meaning."""
    kept = problem(
        alpha=[0, 0, 0],
        nu=[0, 0, 0],
        power=[0, 0, 0],
        time_cap=[-1.0, np.inf],
        energy_cap=-5,
        rho_min=1,
        theta_min=[0, 0.5, 1],
        battery=[0, 1, np.inf],
    )
    assert kept.time_cap.tolist() == [-1.0, np.inf]
    assert kept.energy_cap == -5.0
    assert kept.rho_min.tolist() == [1.0, 1.0, 1.0]
    assert (kept.devices, kept.clusters) == (3, 2)


def test_one_time_cap_stands_for_all_clusters() -> None:
    assert problem(time_cap=7).time_cap.tolist() == [7.0, 7.0]


def test_cluster_numbers_that_are_identifiers_cost_no_memory() -> None:
    """A cap for each of 10⁹ clusters would be 8 GB."""
    with pytest.raises(InputError, match=r"cluster\[1\] = 1000000000: .*1000000"):
        problem(cluster=[0, 10**9, 1], time_cap=7)
    assert problem(cluster=[0, 999_999, 1], time_cap=7).clusters == 1_000_000


def test_clusters_may_be_empty() -> None:
    assert problem(time_cap=[1.0, 2.0, 3.0]).clusters == 3


def test_arrays_cannot_be_written_to() -> None:
    kept = problem(battery=[1.0, 1.0, 1.0])
    for field in ("mu", "alpha", "nu", "power", "cluster", "time_cap", "rho_min", "theta_max", "battery"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(kept, field)[0] = 1


def test_costs_and_objective_by_hand() -> None:
    """ρ = ½ and θ = ¼ everywhere, τ = 5.

    Seconds: 2.5μ + ν/4 = 3.5, 6.25, 9. Joules: 2.5 + ν/8 = 3, 3.125, 3.25.
    Objective with w = 2, σ² = 3, G² = 1: 3 · (2 · 1.75 · 0.5 · 4 + 3 · 0.25) = 3 · 7.75 = 23.25.
    """
    asked = problem(sigma2=3.0, noise_weight=2.0)
    rho, theta = np.full(3, 0.5), np.full(3, 0.25)
    assert asked.seconds(rho, theta).tolist() == [3.5, 6.25, 9.0]
    assert asked.joules(rho, theta).tolist() == [3.0, 3.125, 3.25]
    assert asked.objective(rho, theta) == 23.25


def test_costs_at_half_the_clock_by_hand() -> None:
    """As above, but steps take twice as long and a quarter of the energy, of which half is static: 0.625.

    Seconds: 5μ + ν/4 = 6, 11.25, 16.5. Joules: 2.5 · 0.625 + ν/8 = 2.0625, 2.1875, 2.3125.
    """
    asked, rho, theta = problem(clock_static=0.5), np.full(3, 0.5), np.full(3, 0.25)
    assert asked.seconds(rho, theta, np.full(3, 0.5)).tolist() == [6.0, 11.25, 16.5]
    assert asked.joules(rho, theta, np.full(3, 0.5)).tolist() == [2.0625, 2.1875, 2.3125]
