"""kill -9 for real: at random moments, many times, and the directory is always whole."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cfel.runlog import RunDirectory, RunWriter, holds_run

pytestmark = pytest.mark.long

ROUNDS = 9

# Every round adds its number to a vector of 100 kB in four shards, so that a wrong or mixed checkpoint shows.
CHILD = """
import sys
from pathlib import Path
import numpy as np
from cfel.runlog import *
from cfel.runlog import checkpoint as checkpoints

checkpoints.SHARD_BYTES = 30_000

path = Path(sys.argv[1])
if holds_run(path):
    writer, checkpoint = RunWriter.resume(path)
else:
    fleet = FleetDescription(cluster=(0,), edges=(), mixing=((1.0,),))
    writer, checkpoint = RunWriter.create(path, experiment_toml="", fleet=fleet,
        environment=describe_environment()), None
number = checkpoint.round if checkpoint else 0
tensors = dict(checkpoint.tensors) if checkpoint else {f"w{i}": np.zeros(3200) for i in range(4)}
total = checkpoint.state["total"] if checkpoint else 0
sys.stdout.write("ready\\n")
sys.stdout.flush()
while True:
    number, total = number + 1, total + number + 1
    for value in tensors.values():
        value += number
    numbers = ("seconds", "joules", "seconds_expected", "joules_expected", "seconds_realised",
               "joules_realised", "rho_mean", "theta_mean", "sigma2", "g2", "wall_seconds")
    record = RoundRecord(round=number, loss=float(total), accuracy=None, gap=None, feasible=True,
                         wire_bytes=0, model_sha256="0" * 64, **dict.fromkeys(numbers, number))
    columns = ("edge_round", "device", "cluster", "rho", "theta", "mu", "alpha", "nu", "power", "steps",
               "seconds", "joules")
    writer.append(record, PlanTable(round=number, **dict.fromkeys(columns, np.ones(2))))
    if number % 3 == 0:
        writer.save_checkpoint(Checkpoint(number, tensors, {"total": total}))
    sys.stdout.write("round\\n")
    sys.stdout.flush()
"""


def run_and_kill(path: Path, seconds: float, rounds: int | None) -> None:
    """Starts the child and kills it some time after that many rounds of its loop, or after its start.

    Rounds, not seconds, because a busy machine or a slow disk gets through few of them in a second.
    """
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    if rounds is not None:
        expected = ["ready\n", *["round\n"] * rounds]
        assert [child.stdout.readline() for _ in expected] == expected
    time.sleep(seconds)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()


def check_whole(path: Path) -> int:
    """Log, tables and checkpoint agree; returns the checkpoint's round."""
    if not holds_run(path):
        return 0
    run = RunDirectory.open(path)
    records = run.records()
    assert [record.round for record in records] == [*range(1, len(records) + 1)]
    assert [record.loss for record in records] == [n * (n + 1) / 2 for n in range(1, len(records) + 1)]
    assert set(run.plan_rounds()) >= {record.round for record in records}
    checkpoint = run.checkpoint()
    if checkpoint is None:
        return 0
    assert checkpoint.round <= len(records)
    total = checkpoint.round * (checkpoint.round + 1) // 2
    assert checkpoint.state == {"total": total}
    assert all(np.all(value == total) for value in checkpoint.tensors.values())
    return checkpoint.round


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [12, pytest.param(24, marks=pytest.mark.long)])
def test_a_killed_run_is_consistent_and_resumes(tmp_path: Path, kills: int) -> None:
    """After n rounds every entry is 1 + … + n = n(n+1)/2, in the log, the state and all four shards."""
    random = np.random.default_rng(0)
    rounds: list[int] = []
    while len(rounds) < kills or rounds[-1] < ROUNDS:
        if len(rounds) % 3 == 0:  # while it starts: making the directory, resuming, sweeping up
            run_and_kill(tmp_path / "run", random.uniform(0.1, 0.6), None)
        else:
            run_and_kill(tmp_path / "run", random.uniform(0.0, 0.05), int(random.integers(0, 7)))
        rounds.append(check_whole(tmp_path / "run"))
    assert rounds == sorted(rounds)
    writer, checkpoint = RunWriter.resume(tmp_path / "run")
    with writer:
        assert checkpoint is not None
        assert writer.last_round == checkpoint.round == rounds[-1]
    files = {path.name.split("-")[0] for path in (tmp_path / "run" / "checkpoint").iterdir()}
    assert files == {"generation", "manifest.json"}
    assert RunDirectory.open(tmp_path / "run").plan_rounds() == tuple(range(1, rounds[-1] + 1))
