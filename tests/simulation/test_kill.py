"""`cfel run` killed and interrupted for real, in processes of its own, and resumed."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cfel.experiment import load_experiment
from cfel.runlog import RunDirectory, holds_run
from cfel.studies.runs import Doing, run_experiment

from .drive import timeless

ROUNDS = 40
KILLS = 4
CHANGES = [
    f"rounds.global={ROUNDS}",
    "compression.error_feedback=true",
    "local.momentum_state=keep",
    "simulation.checkpoint_every=3",
]
"""The tiny example with more rounds, and with everything there is to remember."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny.toml"


def start(out: Path, *options: str) -> "subprocess.Popen[str]":
    code = "import sys; from cfel.cli import main; sys.exit(main(sys.argv[1:]))"
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


@pytest.mark.timeout(110)
def test_killed_at_random_and_resumed(tmp_path: Path) -> None:
    """The log of a run killed again and again is that of one never killed, wall-clock fields aside."""
    draw, out = np.random.default_rng(0), tmp_path / "run"
    killed = 0
    for number in range(KILLS):
        process = start(out, "--resume")
        if number:  # the first is killed while it starts
            wait_for(process, out, min(ROUNDS - 5, lines(out) % ROUNDS + int(draw.integers(1, 8))))
        time.sleep(draw.uniform(0, 0.05) if number else 1.5)
        killed += end(process, signal.SIGKILL)[0] == -signal.SIGKILL
    code, text, _ = end(start(out, "--resume", "--json"), signal.SIGWINCH)
    assert (code, json.loads(text)["rounds"]) == (0, ROUNDS)
    assert killed >= KILLS - 1
    undisturbed = run_experiment(load_experiment(EXAMPLE, CHANGES), tmp_path / "undisturbed", Doing())
    found = RunDirectory.open(out)
    assert timeless(found.records()) == timeless(undisturbed)
    assert found.plan_rounds() == tuple(range(1, ROUNDS + 1))


@pytest.mark.timeout(110)
def test_interrupted_and_resumed(tmp_path: Path) -> None:
    """Ctrl-C: exit code 130, a checkpoint of the last logged round, and the rest later."""
    out = tmp_path / "run"
    process = start(out)
    wait_for(process, out, 4)
    code, text, errors = end(process, signal.SIGINT)
    assert (code, text) == (130, "")
    assert "stopping after this round, with a checkpoint; Ctrl-C again stops at once" in errors
    assert errors.rstrip().endswith("interrupted")
    assert "Traceback" not in errors
    checkpoint = RunDirectory.open(out).checkpoint()
    assert checkpoint is not None
    assert 4 <= checkpoint.round == lines(out) < ROUNDS
    code, text, _ = end(start(out, "--resume", "--json"), signal.SIGWINCH)
    assert (code, json.loads(text)["rounds"]) == (0, ROUNDS)


@pytest.mark.timeout(110)
def test_interrupted_twice(tmp_path: Path) -> None:
    """In a round of thousands of steps nobody wants to wait for the end of."""
    out = tmp_path / "run"
    process = start(out, "--set", "rounds.local=2000", "--set", "rounds.edge=50")
    deadline = time.monotonic() + 60
    while not holds_run(out) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    began = time.monotonic()
    code, _, errors = end(process, signal.SIGINT)
    assert code == 130
    assert time.monotonic() - began < 30
    assert "Traceback" not in errors
    assert lines(out) == 0
