"""Device classes: the formulas, and how a fleet is mixed from classes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfel.errors import InputError
from cfel.system.device_classes import DEVICE_CLASSES, DeviceClass, HardwareConditions

OWN = DeviceClass("own", 1e9, 5.0, 2.0, 1e6, "made up")


def test_paper_phone_takes_nine_milliseconds() -> None:
    """50 · 123.9e6 / 691.2e9 = 8.96 ms per step."""
    model = HardwareConditions({"iphone-x": 1}, flops_per_sample=123.9e6, batch=50)
    assert model.conditions(0, 0, 0, 1, 1e6).mu[0] == pytest.approx(8.9627e-3, rel=1e-4)


def test_formulas_by_hand() -> None:
    """μ = 10·1e6/(1e9·0.5) = 0.02 s, α = 0.02·5 = 0.1 J, ν = 3e6/1e6 = 3 s, p = 2 W."""
    model = HardwareConditions({"own": 1.0}, 1e6, batch=10, utilisation=0.5, extra_classes=(OWN,))
    found = model.conditions(0, 0, 0, 2, 3e6)
    assert found.mu == pytest.approx([0.02, 0.02])
    assert found.alpha == pytest.approx([0.1, 0.1])
    assert found.nu == pytest.approx([3, 3])
    assert found.power.tolist() == [2, 2]


def test_counts_are_met_exactly() -> None:
    model = HardwareConditions({"iphone-x": 3, "raspberry-pi-4": 5}, 1e6)
    assert np.bincount(model.class_of(4, 8)).tolist() == [3, 5]


@given(seed=st.integers(0, 10**6), devices=st.integers(8, 500))
def test_shares_are_met_nearly_and_devices_keep_their_class(seed: int, devices: int) -> None:
    model = HardwareConditions({"iphone-x": 0.25, "raspberry-pi-4": 0.75}, 1e6)
    kinds = model.class_of(seed, devices)
    assert np.array_equal(kinds[: devices // 2], model.class_of(seed, devices)[: devices // 2])
    assert np.array_equal(kinds, model.class_of(seed, devices + 7)[:devices])
    assert abs((kinds == 0).sum() - devices / 4) < 4


def test_jitter_stays_in_its_band_and_follows_the_round() -> None:
    steady = HardwareConditions({"iphone-x": 1.0}, 1e6)
    shaky = HardwareConditions({"iphone-x": 1.0}, 1e6, jitter=0.2)
    base, first, second = (
        model.conditions(0, 0, r, 1000, 1e6) for model, r in ((steady, 0), (shaky, 0), (shaky, 1))
    )
    ratio = first.mu / base.mu
    assert 0.8 <= ratio.min() < 0.81 < 1.19 < ratio.max() <= 1.2
    assert first.alpha / first.mu == pytest.approx(np.full(1000, DEVICE_CLASSES["iphone-x"].compute_watts))
    assert (first.nu != second.nu).all()
    assert not np.allclose(first.mu / base.mu, first.nu / base.nu)


def test_the_papers_phone_is_in_the_library() -> None:
    assert DEVICE_CLASSES["iphone-x"].flops_per_second == 691.2e9


def test_batteries_are_those_of_the_classes() -> None:
    """Half of 100 J for the first class, no limit for the second, and none at all without a share."""
    phone = DeviceClass("phone", 1e9, 5.0, 2.0, 1e6, "made up", battery_joules=100.0)
    model = HardwareConditions({"phone": 2, "own": 1}, 1e6, extra_classes=(phone, OWN), battery_share=0.5)
    kinds = model.class_of(3, 3)
    assert model.battery_joules(3, 3) == pytest.approx(np.where(kinds == 0, 50.0, np.inf))
    assert HardwareConditions({"own": 1}, 1e6, extra_classes=(OWN,)).battery_joules(3, 1) is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"classes": {"iphone": 1}}, r"conditions\.classes: unknown 'iphone'"),
        ({"classes": {"iphone-x": 0}}, r"conditions\.classes\['iphone-x'\] = 0"),
        ({"flops_per_sample": 0}, r"conditions\.flops_per_sample = 0"),
        ({"batch": 0}, r"conditions\.batch = 0"),
        ({"utilisation": 1.5}, r"conditions\.utilisation = 1\.5:"),
        ({"jitter": 1.0}, r"conditions\.jitter = 1\.0"),
        ({"battery_share": 1.5}, r"conditions\.battery_share = 1\.5"),
        ({"redraw": "always"}, r"conditions\.redraw: unknown 'always'"),
    ],
)
def test_bad_parameters_are_rejected(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        HardwareConditions(**{"classes": {"iphone-x": 1}, "flops_per_sample": 1e6, **fields})  # type: ignore[arg-type]


def test_amounts_must_be_shares_or_counts() -> None:
    model = HardwareConditions({"iphone-x": 3, "raspberry-pi-4": 5}, 1e6)
    with pytest.raises(InputError, match=r"conditions\.classes: .* 8, .* 9 "):
        model.class_of(0, 9)


def test_bad_class_is_rejected() -> None:
    with pytest.raises(InputError, match=r"'slow'\.flops_per_second = 0: "):
        DeviceClass("slow", 0, 1, 1, 1, "made up")
