"""The fleet: clusters, and conditions with absences and batteries on top."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfel.errors import InputError
from cfel.system.conditions import RandomConditions
from cfel.system.device_classes import HardwareConditions
from cfel.system.device_tables import TraceParameters
from cfel.system.fleet import Availability, FleetParameters, build_fleet, cluster_sizes


def test_paper_fleet() -> None:
    fleet = build_fleet(FleetParameters())
    assert fleet.sizes.tolist() == [8] * 8
    assert fleet.cluster[:9].tolist() == [0] * 8 + [1]
    assert (fleet.devices, fleet.clusters) == (64, 8)


@given(devices=st.integers(1, 300), data=st.data())
def test_clusters_are_as_even_as_can_be(devices: int, data: st.DataObject) -> None:
    clusters = data.draw(st.integers(1, devices))
    sizes = cluster_sizes(devices, clusters)
    assert sizes.sum() == devices
    assert sizes.max() - sizes.min() <= 1
    fleet = build_fleet(FleetParameters(devices=devices, clusters=clusters))
    assert (np.diff(fleet.cluster) >= 0).all()
    assert np.array_equal(np.bincount(fleet.cluster), sizes)


def test_given_sizes() -> None:
    fleet = build_fleet(FleetParameters(devices=6, clusters=(1, 3, 2)))
    assert fleet.cluster.tolist() == [0, 1, 1, 1, 2, 2]


def test_conditions_are_the_models() -> None:
    fleet = build_fleet(FleetParameters(devices=5, clusters=2))
    found = fleet.conditions(3, 1, 2, 1e6)
    assert np.array_equal(found.nu, RandomConditions().conditions(3, 1, 2, 5, 1e6).nu)
    assert found.available.all()


def test_absences_and_empty_batteries_add_up() -> None:
    """Device 0 is away in round 1; device 2 has spent its 10 J; device 3 has 0.5 J left."""
    parameters = FleetParameters(
        devices=4, clusters=1, availability=Availability(away=((0, 1, 1),)), battery_joules=10.0
    )
    fleet = build_fleet(parameters)
    spent = [0, 0, 10, 9.5]
    assert fleet.conditions(0, 1, 0, 1e6, spent).available.tolist() == [False, True, False, True]
    assert fleet.conditions(0, 1, 0, 1e6).available.tolist() == [False, True, True, True]
    assert fleet.conditions(0, 2, 0, 1e6, spent).available.tolist() == [True, True, False, True]


def test_battery_per_device() -> None:
    fleet = build_fleet(FleetParameters(devices=2, clusters=1, battery_joules=(1.0, np.inf)))
    assert fleet.conditions(0, 0, 0, 1e6, [2, 2]).available.tolist() == [False, True]


def test_batteries_of_classes_follow_the_seed() -> None:
    """The phone may use 0.01 of 37,260 J; the Raspberry Pi has no battery."""
    conditions = HardwareConditions({"iphone-x": 1, "raspberry-pi-5": 1}, 1e6, battery_share=0.01)
    for seed in range(4):
        fleet = build_fleet(FleetParameters(devices=2, clusters=1, conditions=conditions), seed)
        phone = int(np.argmin(conditions.class_of(seed, 2)))
        assert fleet.battery_joules is not None
        assert fleet.battery_joules[phone] == pytest.approx(372.6)
        assert np.isinf(fleet.battery_joules[1 - phone])


def test_trace_is_read_once_and_followed(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("device,mu,alpha,nu,power\n0,1,2,3,4\n1,5,6,7,8\n")
    fleet = build_fleet(FleetParameters(devices=2, clusters=2, conditions=TraceParameters(str(file))))
    file.unlink()
    assert fleet.conditions(0, 4, 4, 1e6).nu.tolist() == [3, 7]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"devices": 0}, r"fleet\.devices = 0"),
        ({"clusters": 0}, r"fleet\.clusters = 0"),
        ({"clusters": 65}, r"fleet\.clusters = 65:"),
        ({"clusters": (32, 0, 32)}, r"fleet\.clusters\[1\] = 0"),
        ({"clusters": (32, 31)}, r"fleet\.clusters: .* 63, .*fleet\.devices = 64"),
        ({"estimate_error": 1.0}, r"fleet\.estimate_error = 1\.0:"),
        ({"battery_joules": -1.0}, r"fleet\.battery_joules = -1\.0:"),
        ({"battery_joules": (1.0, 2.0)}, r"fleet\.battery_joules: .* 64 .* 2"),
        ({"availability": Availability(away=((64, 0, 1),))}, "unknown device 64"),
        (
            {"conditions": HardwareConditions({"iphone-x": 1}, 1e6, battery_share=0.5), "battery_joules": 1},
            r"fleet\.battery_joules: not together with conditions\.battery_share",
        ),
        ({"conditions": HardwareConditions({"iphone-x": 63}, 1e6)}, r"sum to 63, must be 1 \(shares\) or 64"),
    ],
)
def test_bad_parameters_are_rejected(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        FleetParameters(**fields)  # type: ignore[arg-type]


def test_model_bits_must_be_a_size() -> None:
    with pytest.raises(InputError, match=r"model_bits = -1\.0"):
        build_fleet(FleetParameters()).conditions(0, 0, 0, -1.0)


def test_a_million_devices_at_memory_speed() -> None:
    """About a quarter of a second on a quiet machine; nothing here loops over devices."""
    fleet = build_fleet(FleetParameters(devices=10**6, clusters=1000, availability=Availability(0.1)))
    found = fleet.conditions(0, 0, 0, 1e6)
    assert found.available.mean() == pytest.approx(0.9, abs=0.005)


def test_plans_may_be_wrong_about_devices() -> None:
    """Factors from 0.7 to 1.3, one per device and quantity; the same in every round and in any fleet."""
    fleet = build_fleet(FleetParameters(devices=100, estimate_error=0.3))
    factors = []
    for edge_round in range(2):
        true = fleet.conditions(4, 0, edge_round, 1e6)
        seen = fleet.misjudge(4, true)
        assert seen.power.tolist() == true.power.tolist()
        factors.append(
            np.stack([getattr(seen, name) / getattr(true, name) for name in ("mu", "alpha", "nu")])
        )
    assert factors[0] == pytest.approx(factors[1])
    assert 0.7 <= factors[0].min() < 0.72
    assert 1.28 < factors[0].max() <= 1.3
    assert factors[0].mean() == pytest.approx(1.0, abs=0.03)
    few = build_fleet(FleetParameters(devices=8, estimate_error=0.3))
    known = few.conditions(4, 0, 0, 1e6)
    assert (few.misjudge(4, known).mu / known.mu).tolist() == pytest.approx(factors[0][0, :8])
    assert build_fleet(FleetParameters()).misjudge(4, true) is true
