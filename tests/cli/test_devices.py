"""`cfel devices`: the library, one class with its sources, and a class from a phone's profile."""

from pathlib import Path

from cfel.experiment.experiment import load_experiment
from cfel.system.device_classes import DEVICE_CLASSES, HardwareConditions
from tests.cli.conftest import Run
from tests.system.test_power_profile import PROFILE


def test_lists_every_class(run: Run) -> None:
    answer = run("devices")
    assert (answer.code, answer.err) == (0, "")
    assert all(f" {name} " in answer.out for name in DEVICE_CLASSES)
    assert [row["name"] for row in run("devices", "--json").document] == list(DEVICE_CLASSES)


def test_shows_where_figures_come_from(run: Run) -> None:
    answer = run("devices", "raspberry-pi-5")
    assert "compute_watts = 12.7\n  whole board during HPL [top500]\n" in answer.out
    assert "\n[top500] github.com/geerlingguy/top500-benchmark" in answer.out
    assert "[nano-modes]" not in answer.out
    document = run("devices", "raspberry-pi-5", "--json").document
    assert document["battery_joules"] is None
    assert set(document["sources"]) == {"top500", "sbc-reviews", "wifi-module", "default"}


def test_an_unknown_class_is_named(run: Run) -> None:
    answer = run("devices", "raspberry-pi5")
    assert answer.code == 2
    assert "did you mean 'raspberry-pi-5'?" in answer.err


def test_an_imported_phone_can_be_used_in_an_experiment(run: Run, tmp_path: Path) -> None:
    (tmp_path / "profile.xml").write_text(PROFILE, encoding="utf-8")
    to = tmp_path / "phone.toml"
    answer = run("devices", "--import", str(tmp_path / "profile.xml"), "--name", "phone", "--to", str(to))
    assert answer.code == 0, answer.err
    (tmp_path / "experiment.toml").write_text(
        """
        [fleet.conditions]
        kind = "classes"
        classes = {phone = 1}
        class_files = ["phone.toml"]
        flops_per_sample = 1e6
        battery_share = 0.5
        """
    )
    found = load_experiment(tmp_path / "experiment.toml").fleet.conditions
    assert isinstance(found, HardwareConditions)
    assert found.extra_classes[0].battery_joules == 3 * 4 * 3600


def test_import_needs_a_name_and_a_good_file(run: Run, tmp_path: Path) -> None:
    assert "--import: needs --name" in run("devices", "--import", "x.xml").err
    answer = run("devices", "--import", str(tmp_path / "none.xml"), "--name", "phone")
    assert answer.code == 2
    assert "none.xml: it does not exist" in answer.err
    rates = run("devices", "--import", "x.xml", "--name", "phone", "--flops-per-cycle", "a,b")
    assert "must be numbers separated by commas" in rates.err
