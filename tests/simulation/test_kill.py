"""`cfel run` killed and interrupted for real, in processes of its own, and resumed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cfel.api.runs import RunOptions, run_experiment
from cfel.experiment import load_experiment
from cfel.runlog import RoundRecord, RunDirectory, holds_run
from tests.simulation.drive import timeless

pytestmark = pytest.mark.long

ROUNDS = 20
CHANGES = [
    f"rounds.global={ROUNDS}",
    "compression.error_feedback=true",
    "local.momentum_state=keep",
    "simulation.checkpoint_every=3",
]
"""The tiny example with more rounds, and with everything there is to remember."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny.toml"
# A process begun in the background of a shell ignores Ctrl-C, and so would its children.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


def start(out: Path, *options: str) -> "subprocess.Popen[str]":
    code = f"{HEED}; import sys; from cfel.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "run", str(EXAMPLE), "--out", str(out), *options]
    command += [word for change in CHANGES for word in ("--set", change)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(out: Path) -> int:
    return (out / "rounds.jsonl").read_bytes().count(b"\n") if holds_run(out) else 0


def wait_for(process: "subprocess.Popen[str]", out: Path, count: int) -> None:
    """Returns when the log has that many lines, or the process has ended."""
    deadline = time.monotonic() + 60
    while lines(out) < count and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def end(process: "subprocess.Popen[str]", number: signal.Signals) -> tuple[int, str, str]:
    if process.poll() is None:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[RoundRecord]:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    return run_experiment(load_experiment(EXAMPLE, CHANGES), out, RunOptions())


def finished(out: Path) -> list[RoundRecord]:
    """The log once the run has been resumed a last time, in this process."""
    return run_experiment(load_experiment(EXAMPLE, CHANGES), out, RunOptions(resume=True))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [2, pytest.param(15, marks=pytest.mark.slow)])
def test_killed_at_random_and_resumed(tmp_path: Path, undisturbed: list[RoundRecord], kills: int) -> None:
    """The log of a run killed again and again is that of one never killed, wall-clock fields aside."""
    draw, out = np.random.default_rng(kills), tmp_path / "run"
    for number in range(kills):
        process = start(out, "--resume")
        if number % 3 == 2:  # while it starts
            time.sleep(draw.uniform(0.5, 3))
        else:
            wait_for(process, out, lines(out) + int(draw.integers(1, 2 + ROUNDS // kills)))
            time.sleep(draw.uniform(0, 0.05))
        code, text, _ = end(process, signal.SIGKILL)
        assert (code, text) == (-signal.SIGKILL, "") or lines(out) == ROUNDS
    assert timeless(finished(out)) == timeless(undisturbed)
    assert RunDirectory.open(out).plan_rounds() == tuple(range(1, ROUNDS + 1))


@pytest.mark.timeout(110)
def test_interrupted_and_resumed(tmp_path: Path, undisturbed: list[RoundRecord]) -> None:
    """Ctrl-C: exit code 130, a checkpoint of the last logged round, and the rest later."""
    out = tmp_path / "run"
    process = start(out)
    wait_for(process, out, 2)
    code, text, errors = end(process, signal.SIGINT)
    assert (code, text) == (130, "")
    assert "stopping after this round; --resume continues from its checkpoint; press Ctrl-C again" in errors
    assert errors.rstrip().endswith("interrupted")
    assert "Traceback" not in errors
    checkpoint = RunDirectory.open(out).checkpoint()
    assert checkpoint is not None
    assert 2 <= checkpoint.round == lines(out) < ROUNDS
    assert timeless(finished(out)) == timeless(undisturbed)


@pytest.mark.timeout(110)
def test_interrupted_twice(tmp_path: Path) -> None:
    """In a round of thousands of steps nobody wants to wait for the end of."""
    out = tmp_path / "run"
    process = start(out, "--set", "rounds.local=2000", "--set", "rounds.edge=20")
    deadline = time.monotonic() + 60
    while not holds_run(out) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    code, text, errors = end(process, signal.SIGINT)
    assert (code, text, lines(out)) == (130, "", 0)
    assert "Traceback" not in errors
