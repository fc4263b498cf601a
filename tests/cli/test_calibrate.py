"""`cfel calibrate`: the class it writes can be used, and what is missing is an error."""

from pathlib import Path

from cfel.experiment.sections import read_class_file
from tests.cli.conftest import Run

TINY = str(Path(__file__).parents[2] / "examples" / "tiny.toml")


def test_writes_a_class(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "me.toml"
    options = ("--seconds", "0.01", "--name", "me", "--watts", "6.5", "--like", "raspberry-pi-4")
    answer = run("calibrate", TINY, *options, "--out", str(out), "--json")
    assert answer.code == 0, answer.err
    (found,) = read_class_file(out)
    assert (found.name, found.compute_watts) == ("me", 6.5)
    document = answer.document
    per_step = document["batch"] * document["flops_per_sample"] / found.flops_per_second
    assert abs(per_step / document["seconds_per_step"] - 1) < 1e-9
    assert "no host was named" in document["not_measured"]["uplink_bits_per_second"]


def test_what_is_missing_is_an_error(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "me.toml"
    answer = run("calibrate", TINY, "--seconds", "0.01", "--uplink", "1e6", "--out", str(out))
    assert (answer.code, out.exists()) == (2, False)
    assert "s per local step" in answer.out
    assert "not measured: radio_watts: no host was named" in answer.out
    assert "--like" in answer.err


def test_wrong_usage(run: Run) -> None:
    assert "EXPERIMENT.toml: is needed" in run("calibrate").err
    assert "did you mean 'raspberry-pi-4'" in run("calibrate", TINY, "--like", "raspberry-pi4").err
    assert "--to = 'x': must be a host and a port" in run("calibrate", TINY, "--to", "x").err
    assert "--listen = ':1': must be" in run("calibrate", "--listen", ":1").err
