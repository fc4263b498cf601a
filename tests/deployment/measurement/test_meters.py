"""Speed and energy of a device on hosts made of ordinary files."""

from pathlib import Path

import pytest

from cfel.deployment.measurement.energy_counters import EnergyCounter, find_counter
from cfel.deployment.measurement.meters import DeviceCosts, DeviceMeter, Measurements, RunningRatio
from cfel.errors import InputError
from tests.support.clock import Clock

MODEL = DeviceCosts(mu=100.0, alpha=0.3, nu=20.0, power=0.5)


def write(directory: Path, **content: object) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, value in content.items():
        (directory / name).write_text(f"{value}\n")


def zone(sysfs: Path, place: str, name: str, microjoules: int) -> Path:
    directory = sysfs / "powercap" / place
    write(directory, name=name, energy_uj=microjoules, max_energy_range_uj=1_000_000)
    return directory


def counter(sysfs: Path, power_file: Path | None = None) -> EnergyCounter:
    found = find_counter(sysfs, power_file)
    assert found is not None
    return found


def test_packages_and_memory_are_counted_once(tmp_path: Path) -> None:
    """Package 0.2 J and memory 0.1 J more; cores and the platform are within or around them."""
    package = zone(tmp_path, "intel-rapl:0", "package-0", 100_000)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 500_000)
    inner = [zone(tmp_path, "intel-rapl:0:0", "core", 0), zone(tmp_path, "intel-rapl:1", "psys", 0)]
    found = counter(tmp_path)
    assert found.source == "rapl"
    assert found.joules(0.0) is None
    write(package, energy_uj=300_000)
    write(memory, energy_uj=600_000)
    for directory in inner:
        write(directory, energy_uj=900_000)
    assert found.joules(1.0) == pytest.approx(0.3)
    assert found.joules(2.0) == 0.0


def test_a_counter_that_wrapped_around_continues(tmp_path: Path) -> None:
    """From 0.9 J through the turn at 1 J to 0.2 J: 0.3 J."""
    package = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    found = counter(tmp_path)
    found.joules(0.0)
    write(package, energy_uj=200_000)
    assert found.joules(1.0) == pytest.approx(0.3)


def test_a_counter_that_vanishes_is_unknown_and_not_zero(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 100_000)
    found = counter(tmp_path)
    found.joules(0.0)
    (package / "energy_uj").unlink()
    assert found.joules(1.0) is None
    write(package, energy_uj=150_000)
    assert found.joules(2.0) is None
    write(package, energy_uj=180_000)
    assert found.joules(3.0) == pytest.approx(0.03)


def test_a_battery_counts_watts_while_it_discharges(tmp_path: Path) -> None:
    """6 W, then 10 W two seconds later: 16 J; on the charger nothing is known, and the gap is left out."""
    battery = tmp_path / "power_supply" / "BAT0"
    write(tmp_path / "power_supply" / "AC", type="Mains", online=1)
    write(battery, type="Battery", status="Discharging", power_now=6_000_000)
    found = counter(tmp_path)
    assert found.source == "battery power"
    assert found.joules(10.0) is None
    write(battery, power_now=10_000_000)
    assert found.joules(12.0) == 16.0
    write(battery, status="Charging")
    assert found.joules(13.0) is None
    write(battery, status="Discharging")
    assert found.joules(14.0) is None
    assert found.joules(15.0) == 10.0


def test_a_battery_with_volts_and_amperes(tmp_path: Path) -> None:
    """4 V times 0.5 A, shown negative while discharging, for 3 s: 6 J."""
    battery = tmp_path / "power_supply" / "axp20x-battery"
    write(battery, type="Battery", status="Discharging", voltage_now=4_000_000, current_now=-500_000)
    found = counter(tmp_path)
    found.joules(0.0)
    assert found.joules(3.0) == pytest.approx(6.0)


def test_a_battery_that_only_shows_its_charge(tmp_path: Path) -> None:
    """10 mWh less are 36 J."""
    battery = tmp_path / "power_supply" / "BAT1"
    write(battery, type="Battery", status="Discharging", energy_now=40_000_000)
    found = counter(tmp_path)
    assert found.source == "battery charge"
    found.joules(0.0)
    write(battery, energy_now=39_990_000)
    assert found.joules(60.0) == pytest.approx(36.0)


def test_a_power_file_goes_first(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    write(tmp_path, power1_input=2_500_000)
    found = counter(tmp_path, tmp_path / "power1_input")
    found.joules(0.0)
    assert (found.source, found.joules(4.0)) == ("power file", 10.0)
    with pytest.raises(InputError, match="power_file"):
        find_counter(tmp_path, tmp_path / "missing")


def test_a_host_without_any_counter_has_none(tmp_path: Path) -> None:
    assert find_counter(tmp_path) is None
    write(tmp_path / "power_supply" / "BAT0", type="Battery", status="Discharging", energy_now="unknown")
    assert find_counter(tmp_path) is None


def test_costs_are_measured_where_they_can_be_and_say_so(tmp_path: Path) -> None:
    """Five steps in 10 s and 0.5 J; 1,000 bits in 2 s and 0.2 J; a full upload is 4,000 bits."""
    package, clock = zone(tmp_path, "intel-rapl:0", "package-0", 0), Clock(50.0)
    meter = DeviceMeter(clock, find_counter(tmp_path))
    mark = meter.begin()
    clock.seconds += 10
    write(package, energy_uj=500_000)
    meter.add_training(mark, 5)
    mark = meter.begin()
    clock.seconds += 2
    write(package, energy_uj=700_000)
    meter.add_upload(mark, 1000)

    costs = meter.measured.costs(MODEL, 4000.0)
    assert (costs.mu, costs.alpha, costs.nu, costs.power) == pytest.approx((2.0, 0.1, 8.0, 0.1))
    sources = (costs.mu_source, costs.alpha_source, costs.nu_source, costs.power_source)
    assert sources == ("clock", "rapl", "clock", "rapl")


def test_without_a_counter_energy_is_the_models() -> None:
    clock = Clock(50.0)
    meter = DeviceMeter(clock, None)
    assert meter.measured.costs(MODEL, 4000.0) == MODEL
    mark = meter.begin()
    clock.seconds += 3
    meter.add_training(mark, 0)
    assert meter.measured.costs(MODEL, 4000.0) == MODEL
    meter.add_training(mark, 2)
    words = meter.measured.costs(MODEL, 4000.0).in_words()
    assert words == "1.5 s/step (clock), 0.3 J/step (model), 20 s/upload (model), 0.5 W sending (model)"


def test_what_any_call_takes_is_not_the_bits_doing() -> None:
    """A bare call takes 0.4 s, an upload of 1,000 bits 0.5 s: 0.1 s is the bits', and never below a tenth."""
    clock = Clock(50.0)
    meter = DeviceMeter(clock, None)
    for seconds in (0.7, 0.4, 0.6):
        mark = meter.begin()
        clock.seconds += seconds
        meter.add_call(mark)
    mark = meter.begin()
    clock.seconds += 0.5
    meter.add_upload(mark, 1000)
    assert meter.measured.bits_per_second.value == pytest.approx(10_000)
    quick = DeviceMeter(clock, None, Measurements(call_seconds=0.4))
    mark = quick.begin()
    clock.seconds += 0.2
    quick.add_upload(mark, 1000)
    assert quick.measured.bits_per_second.value == pytest.approx(50_000)


def test_recent_rounds_count_more_and_larger_ones_too() -> None:
    """10 s for 10 steps, then 60 s for 20: (0.7·10 + 60) / (0.7·10 + 20)."""
    assert RunningRatio().value is None
    assert RunningRatio().add(10, 10).add(60, 20).value == pytest.approx(67 / 27)
    settled = RunningRatio()
    for _ in range(200):
        settled = settled.add(6.0, 2)
    assert settled.value == pytest.approx(3.0)


def test_what_was_measured_before_a_restart_is_kept() -> None:
    before = Measurements(seconds_per_step=RunningRatio(8.0, 4.0))
    assert DeviceMeter(Clock(50.0), None, before).measured.costs(MODEL, 1.0).mu == 2.0


def test_a_clock_that_runs_backwards_is_an_error() -> None:
    clock = Clock(50.0)
    meter = DeviceMeter(clock, None)
    mark = meter.begin()
    clock.seconds -= 1
    with pytest.raises(InputError, match="ran backwards"):
        meter.add_training(mark, 1)
