"""The paper's random conditions: ranges, formulas, keys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfel.errors import InputError
from cfel.seeding import draw_uniforms
from cfel.system.conditions import Conditions, RandomConditions, Redraw

RESNET_BITS = 32 * 269_722


def test_first_device_by_hand() -> None:
    """μ = 150/f, α = 0.15 f², ν = bits/(B log2(1 + p h / 0.01)), h = −ln(1 − u), from the stream's draws."""
    frequency, bandwidth, watts, gain = draw_uniforms(7, "conditions", (3, 2), 1, 4)[0]
    f, megahertz, p, h = 1 + frequency, 1 + 4 * bandwidth, 0.1 + 0.9 * watts, max(-np.log(1 - gain), 0.01)
    found = RandomConditions().conditions(7, 3, 2, 5, RESNET_BITS)
    assert found.mu[0] == pytest.approx(150 / f)
    assert found.alpha[0] == pytest.approx(0.15 * f**2)
    assert found.nu[0] == pytest.approx(RESNET_BITS / (megahertz * 1e6 * np.log2(1 + p * h / 0.01)))
    assert found.power[0] == pytest.approx(p)
    assert found.available.all()


def test_ranges_of_the_paper() -> None:
    """75–150 s, 1.5–6 J with 1.5 f², 0.1–1 W; mean frequency and power in the middle of their ranges."""
    found = RandomConditions(alpha_joules=1.5).conditions(0, 0, 0, 100_000, RESNET_BITS)
    assert 75 < found.mu.min() < found.mu.max() <= 150
    assert 1.5 <= found.alpha.min() < found.alpha.max() < 6
    assert (150 / found.mu).mean() == pytest.approx(1.5, abs=0.005)
    assert found.power.mean() == pytest.approx(0.55, abs=0.005)


def test_floor_bounds_the_longest_upload() -> None:
    """At worst B = 1 MHz, p = 0.1 W, h = 0.01: rate 10⁶ log2(1.1) = 137,504 bit/s."""
    found = RandomConditions().conditions(0, 0, 0, 100_000, 137_503.5)
    assert 0.5 < found.nu.max() <= 1.0
    literal = RandomConditions(channel_floor=0.0).conditions(0, 0, 0, 100_000, 137_503.5)
    assert literal.nu.max() > 10
    assert np.isfinite(literal.nu).all()


@given(seed=st.integers(0, 2**40), small=st.integers(1, 20), more=st.integers(0, 20))
def test_a_larger_fleet_has_the_same_first_devices(seed: int, small: int, more: int) -> None:
    model = RandomConditions()
    few, many = (model.conditions(seed, 1, 2, devices, 1e6) for devices in (small, small + more))
    for field in ("mu", "alpha", "nu", "power"):
        assert np.array_equal(getattr(few, field), getattr(many, field)[:small])


@pytest.mark.parametrize(
    ("redraw", "next_edge_round", "next_global_round"),
    [("edge_round", True, True), ("global_round", False, True), ("never", False, False)],
)
def test_redraw(redraw: Redraw, next_edge_round: bool, next_global_round: bool) -> None:
    model = RandomConditions(redraw=redraw)
    now, edge, later = (model.conditions(0, *at, 9, 1e6).mu for at in ((0, 0), (0, 1), (1, 0)))
    assert (now != edge).any() == next_edge_round
    assert (now != later).any() == next_global_round


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"gigahertz": (2.0, 1.0)}, r"conditions\.gigahertz = \[2\.0, 1\.0\]"),
        ({"watts": (0.0, 1.0)}, r"conditions\.watts\[0\] = 0\.0:"),
        ({"noise_watts": -1.0}, r"conditions\.noise_watts = -1\.0:"),
        ({"channel_floor": -0.1}, r"conditions\.channel_floor = -0\.1:"),
        ({"redraw": "edge"}, r"conditions\.redraw: unknown 'edge'"),
    ],
)
def test_bad_parameters_are_rejected(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        RandomConditions(**fields)  # type: ignore[arg-type]


def ones(devices: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.ones(devices)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("mu", [1.0, 0.0], r"mu\[1\] = 0\.0:"),
        ("nu", [1.0, -2.0], r"nu\[1\] = -2\.0:"),
        ("alpha", [1.0, np.nan], r"alpha\[1\] = nan"),
        ("power", [1.0], "power: must have 2 entries, got 1"),
        ("available", [1.0, 0.0], "available: must be truth values"),
    ],
)
def test_bad_conditions_are_rejected(field: str, value: list[float], reason: str) -> None:
    good = {"mu": ones(2), "alpha": ones(2), "nu": ones(2), "power": ones(2), "available": ones(2) > 0}
    with pytest.raises(InputError, match=reason):
        Conditions(**{**good, field: np.array(value)})


def test_without_only_takes_away() -> None:
    base = Conditions(ones(3), ones(3), ones(3), ones(3), np.array([True, True, False]))
    assert base.without([True, False, False]).available.tolist() == [False, True, False]
    assert base.available.tolist() == [True, True, False]
    assert base.devices == 3
