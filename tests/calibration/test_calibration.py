"""Calibration: the class gives back what was measured, and what could not be measured is named."""

import math
import threading
from pathlib import Path

import numpy as np
import pytest

from cfel import calibration
from cfel.calibration import (
    BandwidthServer,
    CalibrationOptions,
    calibrate,
    find_host_energy,
    read_battery_joules,
)
from cfel.errors import InputError
from cfel.experiment import load_experiment
from cfel.experiment.experiment import Experiment
from cfel.system.device_classes import DEVICE_CLASSES, HardwareConditions

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
PI = DEVICE_CLASSES["raspberry-pi-4"]


@pytest.fixture(scope="module")
def tiny() -> Experiment:
    return load_experiment(TINY)


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_the_class_gives_back_the_measured_seconds(tiny: Experiment, tmp_path: Path) -> None:
    found = calibrate(tiny, CalibrationOptions("me", 0.05, like=PI, sysfs=tmp_path))
    board = found.build_class()
    conditions = HardwareConditions(
        {"me": 1}, found.flops_per_sample, found.batch, extra_classes=(board.device,)
    ).conditions(0, 0, 0, 1, 1e6)
    assert np.allclose(conditions.mu, found.seconds_per_step)
    assert found.steps.steps >= 1
    assert board.device.compute_watts == PI.compute_watts
    assert board.how["compute_watts"].endswith("as raspberry-pi-4")
    assert math.isinf(board.device.battery_joules)


def test_operations_are_those_of_the_model(tiny: Experiment, tmp_path: Path) -> None:
    """A dense layer a × b takes 2ab forward, 2ab for its weights and, after the first, 2ab for its inputs."""
    task = tiny.load_task()
    shapes = [
        tuple(parameter.shape) for parameter in task.build().module.parameters() if parameter.dim() == 2
    ]
    expected = sum(2 * a * b * (2 if i == 0 else 3) for i, (a, b) in enumerate(shapes))
    found = calibrate(tiny, CalibrationOptions("me", 0.01, sysfs=tmp_path))
    assert found.flops_per_sample == pytest.approx(expected)


def test_joules_and_uplink_where_a_power_monitor_is(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A monitor that always shows 5 W: the watts of training and of sending."""
    monkeypatch.setattr(calibration, "SENDING_SECONDS", 0.05)
    (tmp_path / "power1_input").write_text("5000000")
    with BandwidthServer("127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_one, daemon=True)
        thread.start()
        options = CalibrationOptions(
            "me", 0.05, ("127.0.0.1", server.port), power_file=tmp_path / "power1_input", sysfs=tmp_path
        )
        found = calibrate(tiny, options)
        thread.join(30)
    assert (found.figures["compute_watts"], found.figures["radio_watts"]) == pytest.approx((5, 5))
    assert found.figures["uplink_bits_per_second"] > 0
    assert set(found.missing) == {"clock_static", "clock_exponent"}
    assert found.build_class().how["clock_static"].startswith("default; ")


def test_without_counters_no_class_is_made_up(tiny: Experiment, tmp_path: Path) -> None:
    found = calibrate(tiny, CalibrationOptions("me", 0.01, given={"radio_watts": 1.0}, sysfs=tmp_path))
    with pytest.raises(InputError, match=r"unknown: compute_watts .*uplink"):
        found.build_class()
    assert found.how["radio_watts"] == "given on the command line"


def test_why_joules_are_unknown_and_what_includes_the_radio(tmp_path: Path) -> None:
    write(tmp_path / "a" / "powercap" / "intel-rapl:0", name="package-0")
    assert "this user may not read it" in find_host_energy(tmp_path / "a", None, "cpu").reason
    zone = {"name": "package-0", "energy_uj": "5", "max_energy_range_uj": "100"}
    write(tmp_path / "b" / "powercap" / "intel-rapl:0", **zone)
    rapl = find_host_energy(tmp_path / "b", None, "cpu")
    assert (rapl.source, rapl.reason, rapl.includes_radio) == ("rapl", "", False)
    assert "RAPL does not include the GPU" in find_host_energy(tmp_path / "b", None, "cuda").reason
    write(tmp_path / "c" / "power_supply" / "BAT0", type="Battery", status="Discharging", power_now="1")
    assert find_host_energy(tmp_path / "c", None, "cpu").includes_radio


def test_battery_capacity(tmp_path: Path) -> None:
    """50 Wh are 180 kJ; 4 Ah at 3.5 V are 50.4 kJ."""
    assert read_battery_joules(tmp_path) == (math.inf, "this host has no battery")
    write(tmp_path / "a" / "power_supply" / "BAT0", type="Battery", energy_full="50000000")
    assert read_battery_joules(tmp_path / "a")[0] == pytest.approx(180e3)
    write(
        tmp_path / "b" / "power_supply" / "BAT0",
        type="Battery",
        charge_full="4000000",
        voltage_min_design="3500000",
    )
    assert read_battery_joules(tmp_path / "b")[0] == pytest.approx(50.4e3)
    write(tmp_path / "c" / "power_supply" / "BAT0", type="Battery")
    assert read_battery_joules(tmp_path / "c") == "BAT0 does not show its capacity"


@pytest.mark.parametrize("seconds", [0, 31, math.nan])
def test_the_time_is_bounded(seconds: float) -> None:
    with pytest.raises(InputError, match="seconds = "):
        CalibrationOptions("me", seconds)
