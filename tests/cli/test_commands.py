"""The other commands, the help of all of them, and the installed script."""

import json
import math
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from cfel import __version__
from cfel.cli.dispatch import COMMANDS
from tests.cli.conftest import Run, Write


def script() -> Path:
    return Path(sysconfig.get_path("scripts")) / "cfel"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(run: Run, command: str) -> None:
    answer = run(command, "--help")
    assert (answer.code, answer.err) == (0, "")
    options, mark, example = answer.out.partition("example:\n")
    assert mark
    assert f"cfel {command}" in example
    assert max(len(line) for line in options.splitlines() if line.startswith(" ")) <= 80


def test_help_names_every_command(run: Run) -> None:
    answer = run("--help")
    assert answer.code == 0
    assert all(f"\n    {command} " in answer.out for command in COMMANDS)
    assert "\n    reproduce   reproduce a table" in answer.out
    titles = [
        line.strip(" :") for line in answer.out.splitlines() if line.startswith("  ") and line.endswith(":")
    ]
    assert titles == ["try and simulate", "plan", "deploy", "tools"]
    assert "example" in answer.out


def test_version(run: Run) -> None:
    answer = run("--version")
    assert (answer.code, answer.out) == (0, f"cfel {__version__}\n")


@pytest.mark.parametrize("arguments", [[], ["pln"], ["run"]])
def test_wrong_usage(run: Run, arguments: list[str]) -> None:
    answer = run(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("usage: cfel")


def test_a_misspelt_command(run: Run) -> None:
    assert "error: COMMAND: unknown 'rnu'; did you mean 'run'?" in run("rnu", "any.toml").err


def test_a_fleet_in_place_of_an_experiment(run: Run, fleet: Path) -> None:
    answer = run("run", fleet)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"error: {fleet}: is not an experiment file (.toml)\n"


def test_a_second_key_after_set(run: Run) -> None:
    answer = run("run", "any.toml", "--set", "rounds.global=2", "fleet.devices=16")
    assert answer.code == 2
    assert "unrecognized arguments: fleet.devices=16 (write --set before each of them)" in answer.err


def test_the_script(fleet: Path) -> None:
    done = subprocess.run(
        [script(), "plan", fleet, "--time-cap", "400", "--json"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["rho"]) == 20
    done = subprocess.run([script(), "plan", "none.csv"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: none.csv: cannot be read")


def test_a_reader_that_leaves_early(fleet: Path) -> None:
    """As with `cfel plan … --json | head -0`: no traceback, and not a success."""
    code = f"import sys; from cfel.cli import main; sys.exit(main(['plan', {str(fleet)!r}, '--json']))"
    started = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    started.stdout.close()
    started.stdout = None
    _, errors = started.communicate(timeout=60)
    assert (started.returncode, errors) == (1, "")


def test_interrupted_while_it_loads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cfel.cli.dispatch.import_module", interrupted)
    answer = run("plan", "--help")
    assert (answer.code, answer.out, answer.err) == (130, "", "interrupted\n")


def test_nothing_slow_is_loaded_before_ctrl_c_is_handled() -> None:
    code = "import sys, cfel.cli; sys.exit(len({'numpy', 'rich', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_theory(run: Run, write: Write) -> None:
    """Ring of 8, every weight 1/3: ζ = 1/3 + 2/3 · cos 45° = 0.8047, and Ω₁ from its formula.

    L = 1/(2η) = 25 and (qτ)² = 625, so the backhaul allows η ≤ 1/(4 · 25 · 625 · Ω₁).
    """
    zeta = 1 / 3 + math.sqrt(2) / 3
    omega = 1 / (1 - zeta**2) + 2 / (1 - zeta) + zeta / (1 - zeta) ** 2
    file = write(
        "experiment.toml", 'preset = "demo"\nname = "[/x]"\nscheme.name = "hcef"\n[rounds]\nglobal = 2\n'
    )
    found = run("theory", file, "--json").document
    assert found["zeta"] == pytest.approx(zeta)
    assert found["omega1"] == pytest.approx(omega)
    assert found["edge_rounds"] == 10
    assert found["bound"]["topology_limit"] == pytest.approx(1 / (4 * 25 * 625 * omega))
    assert found["bound"]["progress"] == pytest.approx(4 * math.log(10) / (0.02 * 2 * 25))
    assert found["bound"]["total"] == sum(found["bound"][name] for name in ("progress", "noise", "skipped"))
    answer = run("theory", file)
    assert (answer.code, answer.err) == (0, "")
    for words in ("[/x]: hcef", "0.8047", f"{omega:.4g}", "progress", "is violated", "the plans allow none"):
        assert words in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "…" not in answer.out
    assert run("theory", file.parent).out == answer.out


@pytest.mark.usefixtures("no_figures")
def test_theory_of_a_run(run: Run, tmp_path: Path) -> None:
    """Logged plans and estimates instead of a dry run, round by round."""
    tiny = Path(__file__).parents[2] / "examples" / "tiny.toml"
    path = tmp_path / "r"
    changes = ("--set", "rounds.global=2", "--set", "scheme.name=hcef")
    assert run("run", tiny, "--out", path, *changes).code == 0
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    found = run("theory", path, "--json").document
    assert [(row["sigma2"], row["g2"]) for row in found["rounds"]] == [(x["sigma2"], x["g2"]) for x in lines]
    assert (found["source"], found["edge_rounds"], found["violating_rounds"]) == ("logged", 4, 2)
    answer = run("theory", path)
    assert (answer.code, answer.err) == (0, "")
    assert "4 edge rounds in 2 logged rounds" in answer.out
    assert "violated in 2 of 2 rounds: by the plans in 2" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80
    rejected = run("theory", path, "--set", "rounds.edge=1")
    assert (rejected.code, rejected.out) == (2, "")


def test_theory_when_the_condition_holds(run: Run, write: Write) -> None:
    """CEF on one cluster with one step: Ω₁ = 3, η ≤ 1/(12 L) and η ≤ 1/(2 L); L = 1, η = 0.02."""
    text = '[rounds]\nglobal = 1\nedge = 1\nlocal = 1\n[fleet]\nclusters = 1\n[scheme]\nname = "cef"\n'
    answer = run("theory", write("e.toml", text), "--smoothness", 1)
    assert "the backhaul allows η ≤ 0.0833, the plans allow η ≤ 0.5" in answer.out
    assert "the step-size condition holds" in answer.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "rounds.glbal=3"], "[rounds]: unknown 'glbal'; did you mean 'global'?"),
        (["--set", "rounds"], "--set 'rounds': must look like section.key=value"),
        (["--learning-rate", 0], "learning_rate = 0.0: must be a finite number > 0"),
        (["--learning-rate", -1], "learning_rate = -1.0: must be a finite number > 0"),
        (["--g2", -1], "g2 = -1.0: must be a finite number ≥ 0"),
        (["--set", "scheme.name=hcef_plus"], "scheme.name = 'hcef_plus': devices take smaller steps"),
        (["--set", "scheme.steps=small_batches"], "scheme.steps: devices take smaller steps (small_batches)"),
        (["--set", "local.steps=small_batches"], "local.steps: devices take smaller steps (small_batches)"),
        (["--set", "scheme.name=hcf"], "scheme: unknown 'hcf'; did you mean 'hcef'?"),
    ],
)
def test_theory_rejects(run: Run, write: Write, options: list[object], message: str) -> None:
    answer = run("theory", write("e.toml", 'rounds.edge = 1\nscheme.name = "hcef"\n'), *options)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_theory_without_a_file(run: Run, tmp_path: Path) -> None:
    assert "none.toml: cannot be read" in run("theory", tmp_path / "none.toml").err
    assert "experiment.toml: cannot be read" in run("theory", tmp_path).err
