"""A run whose training diverges: who is named, what is kept, and what a resume meets."""

from pathlib import Path

import pytest

from cfel.api.models import export_model
from cfel.api.runs import RunOptions, run_experiment
from cfel.errors import DivergedError
from cfel.runlog import RunDirectory
from tests.simulation.drive import timeless, tiny


@pytest.mark.parametrize("engine", ["threads", "batched"])
def test_a_learning_rate_out_of_all_reason(tmp_path: Path, engine: str) -> None:
    """Steps of 10³⁰ overflow at once: device 0 is asked first, and no round is finished."""
    experiment = tiny(local={"learning_rate": 1e30}, scheme={"name": "cef"}, simulation={"engine": engine})
    with pytest.raises(DivergedError, match=r"device 0 of cluster 0 .* 1, .* 0"):
        run_experiment(experiment, tmp_path / "run", RunOptions())
    run = RunDirectory.open(tmp_path / "run")
    assert (run.records(), run.plan_rounds(), run.checkpoint()) == ((), (), None)


@pytest.mark.parametrize("every", [0, 1, 5])
def test_what_was_good_is_kept(tmp_path: Path, every: int) -> None:
    """One round goes well, the second does not: log, plans and checkpoint are the first one's."""
    experiment = tiny(
        rounds={"edge": 1, "local": 1},
        local={"learning_rate": 1e25, "momentum": 0.0},
        compression={"kind": "none"},
        scheme={"name": "cef"},
        simulation={"checkpoint_every": every},
    )
    path = tmp_path / "run"
    with pytest.raises(DivergedError, match="in global round 2, edge round 0") as caught:
        run_experiment(experiment, path, RunOptions())
    assert f". 1 round and a checkpoint are kept in {path}; --resume would only meet" in str(caught.value)
    run = RunDirectory.open(path)
    checkpoint = run.checkpoint()
    assert checkpoint is not None
    assert (checkpoint.round, run.plan_rounds(), [each.round for each in run.records()]) == (1, (1,), [1])
    before = timeless(run.records())
    with pytest.raises(DivergedError, match="in global round 2, edge round 0"):
        run_experiment(experiment, path, RunOptions(resume=True))
    assert timeless(RunDirectory.open(path).records()) == before
    assert export_model(path, tmp_path / "good.safetensors").round == 1
