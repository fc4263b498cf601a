"""Classes from power profiles: the figures by hand, and the clock's curve."""

import math
from dataclasses import replace

import numpy as np
import pytest

from cfel.errors import InputError
from cfel.system.conditions import clock_energy
from cfel.system.device_classes import CpuCluster, PowerProfile, ProfileOptions, derive_class, fit_clock_curve

PHONE = PowerProfile(
    clusters=(CpuCluster(4, (5e5, 1e6), (8, 20), 3.0), CpuCluster(2, (1e6, 2e6), (50, 200), 7.0)),
    active_milliamps=10,
    cellular_milliamps=200,
    wifi_milliamps=None,
    battery_milliamp_hours=3000,
    volts=4.0,
)


def test_figures_by_hand() -> None:
    """4 V · (10 + 3 + 7 + 4·20 + 2·200) mA = 2 W; ½ · (4·1·8 + 2·2·16) = 48 GFLOP/s; 3 Ah · 4 V = 43.2 kJ."""
    found = derive_class(PHONE, "phone", "a phone", ProfileOptions(flops_per_cycle=(8, 16))).device
    assert (found.compute_watts, found.flops_per_second) == pytest.approx((2.0, 48e9))
    assert (found.radio_watts, found.uplink_bits_per_second) == pytest.approx((0.8, 6e6))
    assert found.battery_joules == pytest.approx(43200)


def test_what_the_profile_lacks_is_said() -> None:
    bare = replace(PHONE, battery_milliamp_hours=None, volts=None)
    found = derive_class(bare, "phone", "a phone", ProfileOptions())
    assert math.isinf(found.device.battery_joules)
    assert found.how["battery_joules"] == "not in the profile: no limit"
    assert "at 3.7 V, which the profile does not say" in found.how["compute_watts"]
    assert "LTE" in found.how["uplink_bits_per_second"]
    given = derive_class(bare, "phone", "a phone", ProfileOptions(volts=4.0, uplink_bits_per_second=1e6))
    assert given.device.compute_watts == pytest.approx(2.0)
    assert given.how["uplink_bits_per_second"] == "as given"


def test_curve_of_a_processor_that_follows_the_model_is_found() -> None:
    """A core whose energy per cycle is 0.4 + 0.6 s²: its current is that times s."""
    kilohertz = np.linspace(1e5, 1e6, 200)
    share = kilohertz / 1e6
    currents = tuple((100 * share * clock_energy(share, 0.4, 2.0)).tolist())
    core = CpuCluster(1, tuple(kilohertz.tolist()), currents, 0.0)
    static, exponent, error = fit_clock_curve(replace(PHONE, clusters=(core,), active_milliamps=0.0), (8,))
    assert (static, exponent) == pytest.approx((0.4, 2.0), abs=0.01)
    assert error < 1e-3


def test_one_speed_shows_no_saving() -> None:
    core = CpuCluster(1, (1e6,), (100,), 0.0)
    assert fit_clock_curve(replace(PHONE, clusters=(core,)), (8,))[0] == 1.0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"flops_per_cycle": (8,)}, "1 given, the profile has 2 clusters"),
        ({"flops_per_cycle": (0, 8)}, r"flops_per_cycle\[0\] = 0"),
        ({"radio": "wifi", "uplink_bits_per_second": 1e7}, "no such current; try 'cellular'"),
        ({"radio": "wifi"}, "is needed for Wi-Fi"),
        ({"radio": "lora"}, "radio: unknown 'lora'"),
        ({"volts": -1.0}, "volts = -1"),
    ],
)
def test_options_that_do_not_fit_are_rejected(options: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        derive_class(PHONE, "phone", "a phone", ProfileOptions(**options))  # type: ignore[arg-type]
