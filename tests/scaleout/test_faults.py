"""A real cluster of two nodes writes the same log as threads, whatever fails."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cfel.api.runs import RunOptions, compare, run_experiment
from cfel.experiment import load_experiment
from cfel.plugins import ANY_CODE
from cfel.runlog import RoundRecord, RunDirectory, holds_run
from tests.scaleout.conftest import Nodes, cluster
from tests.simulation.drive import timeless

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny.toml"
# A process begun in the background of a shell ignores Ctrl-C, and so would its children.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
CLI = ("-c", f"{HEED}; import sys; from cfel.cli import main; sys.exit(main(sys.argv[1:]))")
REMEMBERING = ["compression.error_feedback=true", "local.momentum_state=keep", "local.momentum=0.9"]
LONG = [*REMEMBERING, "rounds.global=12", "rounds.local=40"]


def options(changes: list[str]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def lines(out: Path) -> int:
    return (out / "rounds.jsonl").read_bytes().count(b"\n") if holds_run(out) else 0


def wait_for(process: "subprocess.Popen[str]", out: Path, count: int) -> None:
    """Returns when the log has that many lines."""
    deadline = time.monotonic() + 200
    while lines(out) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=250)
    return process.returncode, out, errors


def run_on(nodes: Nodes, out: Path, changes: list[str], *more: str) -> "subprocess.Popen[str]":
    where = ("--engine", "ray", "--ray-address", nodes.address, "--out", str(out))
    return nodes.start(*CLI, "run", str(EXAMPLE), *where, *options(changes), *more)


def read_log(out: Path) -> list[dict[str, Any]]:
    return timeless(RunDirectory.open(out).records())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[RoundRecord]:
    """The long experiment on threads."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    return run_experiment(load_experiment(EXAMPLE, LONG), out, RunOptions())


@pytest.mark.timeout(300)
@pytest.mark.long
def test_two_nodes_give_the_log_of_threads(two_nodes: Nodes, tmp_path: Path) -> None:
    """Momentum and residuals included."""
    script = str(Path(__file__).with_name("on_cluster.py"))
    process = two_nodes.start(script, str(EXAMPLE), two_nodes.address, *REMEMBERING)
    code, text, errors = wait_for_end(process)
    assert code == 0, errors
    document = json.loads(text)
    assert document["nodes"] == 2
    threads = run_experiment(load_experiment(EXAMPLE, REMEMBERING), tmp_path / "run", RunOptions())
    assert timeless([RoundRecord(**each) for each in document["records"]]) == timeless(threads)


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_worker_is_killed_during_a_round(
    two_nodes: Nodes, tmp_path: Path, undisturbed: list[RoundRecord]
) -> None:
    out = tmp_path / "run"
    process = run_on(two_nodes, out, LONG)
    wait_for(process, out, 2)
    assert two_nodes.send(do="kill", name="ray::DeviceWorker", count=1) == {"killed": 1}
    code, _, errors = wait_for_end(process)
    assert code == 0, errors
    assert read_log(out) == timeless(undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_driver_killed_and_resumed(
    two_nodes: Nodes, tmp_path: Path, undisturbed: list[RoundRecord]
) -> None:
    """On the cluster again, and at last on threads: the engine may change where the bits do not."""
    out = tmp_path / "run"
    for count in (2, 6):
        process = run_on(two_nodes, out, LONG, "--resume")
        wait_for(process, out, count)
        two_nodes.send(do="kill", name=f"--out {out}")
        wait_for_end(process)
    assert 6 <= lines(out) < 12
    finished = run_experiment(load_experiment(EXAMPLE, LONG), out, RunOptions(resume=True))
    assert timeless(finished) == timeless(undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_is_removed_during_a_run(tmp_path: Path, undisturbed: list[RoundRecord]) -> None:
    out = tmp_path / "run"
    with cluster(2) as nodes:
        process = run_on(nodes, out, LONG)
        wait_for(process, out, 2)
        nodes.send(do="remove")
        code, _, errors = wait_for_end(process)
    assert code == 0, errors
    assert read_log(out) == timeless(undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_is_removed_during_a_comparison(tmp_path: Path) -> None:
    """Whole runs on three nodes; those of the lost one resume from their checkpoints."""
    out, schemes, seeds = tmp_path / "table", ["hcef", "cef"], [0, 1]
    words = ("--schemes", ",".join(schemes), "--seeds", "0,1", "--out", str(out), *options(LONG))
    with cluster(3) as nodes:
        process = nodes.start(
            *CLI, "compare", str(EXAMPLE), "--engine", "ray", "--ray-address", nodes.address, *words
        )
        wait_for(process, out / "hcef" / "seed-1", 2)
        nodes.send(do="remove")
        code, _, errors = wait_for_end(process)
    assert code == 0, errors
    assert "is lost; its runs resume elsewhere" in errors
    experiment = load_experiment(EXAMPLE, LONG)
    compare(experiment, schemes, seeds, out=tmp_path / "threads", progress=False)
    for run in (f"{scheme}/seed-{seed}" for scheme in schemes for seed in seeds):
        assert read_log(out / run) == read_log(tmp_path / "threads" / run), run
    assert (out / "summary.json").exists()
    assert not list(out.glob(".*"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_during_a_comparison(two_nodes: Nodes, tmp_path: Path) -> None:
    out = tmp_path / "table"
    words = ("--schemes", "hcef,cef", "--seeds", "0,1", "--out", str(out), *options(LONG))
    where = ("--engine", "ray", "--ray-address", two_nodes.address)
    process = two_nodes.start(*CLI, "compare", str(EXAMPLE), *where, *words)
    wait_for(process, out / "hcef" / "seed-0", 2)
    two_nodes.send(do="kill", name=f"--out {out}", signal=int(signal.SIGINT))
    code, _, errors = wait_for_end(process)
    assert code == 130, errors
    begun = [path.parent for path in out.glob("*/*/rounds.jsonl")]
    assert begun
    for run in begun:
        checkpoint = RunDirectory.open(run).checkpoint()
        assert checkpoint is not None
        assert checkpoint.round == lines(run)


WIDE_MODEL = """from torch import nn


def build(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, classes))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_object_store_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clear error, and a checkpoint to resume from; the model is user-defined, beside the file."""
    (tmp_path / "wide_model.py").write_text(WIDE_MODEL)
    experiment = tmp_path / "wide.toml"
    experiment.write_text(EXAMPLE.read_text() + '\n[model]\nname = "wide_model:build"\n')
    changes = ["rounds.global=40", "rounds.local=20"]
    out = tmp_path / "run"
    with cluster(1, system={"local_fs_capacity_threshold": 0.01}) as nodes:
        where = ("--engine", "ray", "--ray-address", nodes.address, "--out", str(out))
        process = nodes.start(*CLI, "run", str(experiment), *where, *options(changes))
        wait_for(process, out, 2)
        filling = nodes.start(str(Path(__file__).with_name("fill_store.py")), nodes.address)
        code, _, errors = wait_for_end(process)
        filling.communicate(timeout=60)
    assert code == 1, errors
    assert "the cluster's object store is full" in " ".join(errors.split())
    assert "Traceback" not in errors
    reached = lines(out)
    assert 2 <= reached < 40
    monkeypatch.syspath_prepend(tmp_path)
    finished = run_experiment(load_experiment(experiment, changes, ANY_CODE), out, RunOptions(resume=True))
    threads = run_experiment(
        load_experiment(experiment, changes, ANY_CODE), tmp_path / "threads", RunOptions()
    )
    assert timeless(finished) == timeless(threads)
