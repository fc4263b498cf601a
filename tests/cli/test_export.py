"""`cfel export`: the consensus model of a run, and one edge server's."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from cfel.extras import EXTRAS
from cfel.learning.data import digits
from cfel.learning.models import files as onnx_files
from cfel.learning.models.builders import mlp
from tests.cli.conftest import Run

CHANGES = (
    "rounds.global=2",
    "rounds.edge=1",
    "rounds.local=1",
    "fleet.devices=5",
    "fleet.clusters=2",
    "topology.kind=line",
    "budget.share_of_cef=0.9",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds: three devices in the first cluster, two in the second."""
    from cfel.api.runs import RunOptions, run_experiment
    from cfel.experiment import preset_experiment

    out = tmp_path_factory.mktemp("export") / "run"
    run_experiment(preset_experiment("demo", CHANGES), out, RunOptions())
    return out


def test_the_mean_counts_every_device_alike(run: Run, finished: Path, tmp_path: Path) -> None:
    """Clusters of three and two devices: 0.6 of the first edge model and 0.4 of the second."""
    files = []
    for number, more in enumerate(([], ["--edge", 0], ["--edge", 1])):
        files.append(tmp_path / f"{number}.safetensors")
        answer = run("export", finished, "--to", files[-1], *more)
        assert (answer.code, answer.err) == (0, "")
        assert "after global round 2" in answer.out
    mean, one, two = (load_file(file) for file in files)
    assert set(mean) == set(dict(mlp((1, 8, 8), 10).named_parameters()))
    for name, value in mean.items():
        np.testing.assert_allclose(value, 0.6 * one[name] + 0.4 * two[name], rtol=1e-5, atol=1e-7)


def test_the_mean_counts_the_devices_of_today(run: Run, tmp_path: Path) -> None:
    """An edge server joins, another leaves: one device of three is with edge-1, two are with edge-2."""
    from cfel.api.runs import RunOptions, Simulation, run_experiment
    from cfel.experiment import preset_experiment

    changes = (
        {"round": 2, "what": "add edge", "edge": 2},
        {"round": 2, "what": "move device", "device": [0, 1], "edge": 2},
        {"round": 2, "what": "remove device", "device": [2, 4]},
        {"round": 3, "what": "remove edge", "edge": 0},
    )
    experiment = preset_experiment("demo", (*CHANGES, "rounds.global=3")).change({"fleet.changes": changes})
    run_experiment(experiment, tmp_path / "run", RunOptions())
    simulated = Simulation(experiment)
    assert len(list(simulated)) == 3
    files = [tmp_path / f"{name}.safetensors" for name in ("mean", "one", "two")]
    for file, more in zip(files, ([], ["--edge", 1], ["--edge", 2]), strict=True):
        assert run("export", tmp_path / "run", "--to", file, *more).code == 0
    answer = run("export", tmp_path / "run", "--to", tmp_path / "no.safetensors", "--edge", 0)
    assert "edge = 0: the run has edge servers 1, 2" in answer.err
    mean, one, two = (load_file(file) for file in files)
    for name, value in simulated.model().named_parameters():
        np.testing.assert_allclose(mean[name], (one[name] + 2 * two[name]) / 3, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(mean[name], value.detach().numpy())


def test_what_comes_out_goes_in(run: Run, finished: Path, tmp_path: Path) -> None:
    """The file loads into the bare torch module, and is a starting point for another experiment."""
    from cfel.experiment import preset_experiment

    file = tmp_path / "model.safetensors"
    assert run("export", finished, "--to", file, "--json").document == {
        "file": str(file),
        "round": 2,
        "edge": None,
        "device": None,
    }
    module = mlp((1, 8, 8), 10)
    module.load_state_dict({name: torch.from_numpy(value) for name, value in load_file(file).items()})
    start = preset_experiment("demo", (*CHANGES, f'model.init="{file}"')).build_world().start
    assert start.parameters.numel() == sum(value.numel() for value in module.parameters())


@pytest.mark.long
def test_onnx_gives_the_same_scores(run: Run, finished: Path, tmp_path: Path) -> None:
    """By ONNX's own reference, on more samples than the graph was traced with."""
    pytest.importorskip("onnxscript", reason="ONNX needs pip install 'cfel[onnx]'")
    reference = pytest.importorskip("onnx.reference")
    graph, tensors = tmp_path / "model.onnx", tmp_path / "model.safetensors"
    for file in (graph, tensors):
        answer = run("export", finished, "--to", file)
        assert (answer.code, answer.err) == (0, "")
    module = mlp((1, 8, 8), 10)
    module.load_state_dict({name: torch.from_numpy(value) for name, value in load_file(tensors).items()})
    data = digits()
    inputs = data.scale(data.test_inputs[:7])
    (found,) = reference.ReferenceEvaluator(str(graph)).run(None, {"inputs": inputs.numpy()})
    np.testing.assert_allclose(found, module(inputs).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.safetensors"]


def test_without_the_packages(
    run: Run, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_files, "find_spec", lambda _: None)
    answer = run("export", finished, "--to", tmp_path / "model.onnx")
    assert answer.code == 2
    assert "pip install 'cfel[onnx]'" in answer.err.replace("\n", " ")


def test_a_simulated_run_needs_no_deployment_packages(finished: Path, tmp_path: Path) -> None:
    """As without the extra `deploy`: importing any of its packages fails."""
    blocked = {name: None for name, extra in EXTRAS.items() if extra == "deploy"}
    words = ["export", str(finished), "--to", str(tmp_path / "model.safetensors")]
    code = f"import sys; sys.modules.update({blocked}); from cfel.cli import main; sys.exit(main({words}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "consensus model after global round 2" in done.stdout


def test_what_cannot_be_exported(run: Run, finished: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for arguments, code, words in (
        ((finished, "--to", tmp_path / "model.pt"), 2, "unknown '.pt'"),
        ((finished, "--to", file, "--edge", 2), 2, "edge servers 0, 1"),
        ((finished, "--to", tmp_path / "no" / "model.safetensors"), 2, "cannot write"),
        ((tmp_path, "--to", file), 1, "holds no run"),
    ):
        answer = run("export", *arguments)
        assert (answer.code, answer.out) == (code, "")
        assert words in answer.err
