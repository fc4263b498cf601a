"""`cfel run`: what it leaves behind, what it prints, and how it fails."""

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from cfel.runlog import RunDirectory
from tests.cli.conftest import Run, Write

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = EXAMPLES / "tiny.toml"
SHORT = ("--set", "rounds.global=2", "--set", "rounds.edge=1")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run to look at; nobody may change it."""
    from cfel.cli import main

    out = tmp_path_factory.mktemp("done") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        assert main(["run", str(TINY), "--out", str(out), *SHORT]) == 0
    return out


def test_the_directory_is_complete(done: Path) -> None:
    """As the layout promises, and every default spelled out."""
    assert {file.name for file in done.iterdir()} == {
        "experiment.toml",
        "environment.json",
        "fleet.json",
        "rounds.jsonl",
        "plans",
        "checkpoint",
        "report.html",
        "figures",
    }
    resolved = tomllib.loads((done / "experiment.toml").read_text())
    assert (resolved["preset"], resolved["rounds"]["global"]) == ("none", 2)
    lines = [json.loads(line) for line in (done / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    promised = "round seconds joules accuracy loss rho_mean theta_mean sigma2 g2 gap feasible wire_bytes"
    assert {*promised.split(), "wall_seconds", "model_sha256"} <= lines[0].keys()
    assert sorted(file.name for file in (done / "plans").iterdir()) == [
        "round-00001.parquet",
        "round-00002.parquet",
    ]
    fleet = json.loads((done / "fleet.json").read_text())
    assert fleet["cluster"] == [0, 0, 1, 1, 2, 2]
    assert "<html" in (done / "report.html").read_text()
    assert RunDirectory.open(done).environment().command[0] == Path(sys.argv[0]).name


@pytest.mark.usefixtures("no_figures")
def test_what_is_printed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result on standard output, the progress on standard error; by default below runs/.

    The budget cannot be kept, and that is part of the result.
    """
    monkeypatch.chdir(tmp_path)
    answer = run("run", TINY, *SHORT, "--set", "budget.seconds=1")
    assert answer.code == 0
    first, warning, second = answer.out.splitlines()
    costs = r"[\d,.]+ s simulated \([\d,.]+ % of the budget\), [\d,.]+ J \([\d.]+ %\)"
    within = "; within the budgets: accuracy –"
    assert re.fullmatch(rf"2 global rounds: test accuracy [\d.]+ %, {costs}{within}", first)
    assert warning.startswith("warning: time exceeds its budget by ")
    assert "of 1 s), since round 1: caps could not be met in 2 rounds, first in round 1: " in warning
    assert "is out of reach, needs at least " in warning
    assert "on_unreachable = 'stretch'" in warning
    assert "time exceeds its budget by " in (tmp_path / "runs" / "tiny" / "report.html").read_text()
    assert second == "report: runs/tiny/report.html"
    assert (tmp_path / "runs" / "tiny" / "report.html").is_file()
    assert "tiny" in answer.err
    assert "2/2" in answer.err
    assert max(map(len, answer.err.splitlines())) <= 80


@pytest.mark.usefixtures("no_figures")
def test_one_document(run: Run, tmp_path: Path) -> None:
    """And the same run again from its own resolved file, by way of --engine."""
    hcef = ("--set", "scheme.name=hcef")
    first = run("run", TINY, "--out", tmp_path / "one", *SHORT, *hcef, "--json").document
    names = "directory rounds quality_within_budgets accuracy seconds joules model_sha256 metrics over_budget"
    assert list(first) == names.split()
    assert [each["resource"] for each in first["over_budget"]["overruns"]] == ["seconds", "joules"]
    assert (first["directory"], first["rounds"]) == (str(tmp_path / "one"), 2)
    resolved = tmp_path / "one" / "experiment.toml"
    again = run("run", resolved, "--out", tmp_path / "two", "--engine", "threads", "--json").document
    assert {**again, "directory": ""} == {**first, "directory": ""}
    assert (tmp_path / "two" / "experiment.toml").read_text() == resolved.read_text()


@pytest.mark.usefixtures("no_figures")
def test_a_run_in_the_way(run: Run, done: Path, tmp_path: Path) -> None:
    """Left as it is without --resume; with it, nothing is left to do; another experiment is rejected."""
    out = shutil.copytree(done, tmp_path / "run")
    log = (out / "rounds.jsonl").read_bytes()
    answer = run("run", TINY, "--out", out, *SHORT)
    assert (answer.code, answer.out) == (1, "")
    assert "already holds a finished run: 2 of 2 rounds done" in answer.err
    answer = run("run", TINY, "--out", out, *SHORT, "--set", "seed=7", "--resume")
    assert (answer.code, answer.out) == (1, "")
    assert "holds a run with seed = 0, not 7" in answer.err
    answer = run("run", TINY, "--out", out, *SHORT, "--resume", "--json")
    assert answer.document["rounds"] == 2
    assert f"{out} is already finished: 2 of 2 rounds done. rounds.global cannot" in answer.err
    assert (out / "rounds.jsonl").read_bytes() == log


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rounds.glbal=3", "[rounds]: unknown 'glbal'; did you mean 'global'?"),
        ("local.batch=3", "local.batch: belongs in [data]"),
        ("scheme.name=hcf", "scheme: unknown 'hcf'; did you mean 'hcef'?"),
        ("model.name=mpl", "model: unknown 'mpl'; did you mean 'mlp'?"),
        ("data.name=digit", "data: unknown 'digit'; did you mean 'digits'?"),
        ("topology.kind=rng", "topology: unknown 'rng'; did you mean 'ring'?"),
        ("scheme.name=nowhere_to_be:found", "scheme: cannot load 'nowhere_to_be:found': No module named"),
        (
            "model.name=custom_model:nothing",
            "model: cannot load 'custom_model:nothing': module 'custom_model' has no",
        ),
        ("data.task=custom_data:spirals", "task 'custom_data:spirals' returned a DataSet, not a Task"),
        ("simulation.device=nonsense", "simulation.device = 'nonsense': cannot be used here"),
        ("fleet.devices=2000", "1438 samples of 'digits' are too few for 2000 devices"),
    ],
)
def test_wrong_configuration(run: Run, tmp_path: Path, change: str, message: str) -> None:
    """Exit code 2, words on standard error, and no directory left behind."""
    answer = run("run", TINY, "--out", tmp_path / "r", "--set", change)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert not (tmp_path / "r").exists()


def test_wrong_usage(run: Run, tmp_path: Path) -> None:
    assert run("run").code == 2
    answer = run("run", TINY, "--engine", "steam")
    assert answer.code == 2
    assert "invalid choice: 'steam'" in answer.err
    assert "cannot be read" in run("run", tmp_path / "none.toml").err


@pytest.mark.usefixtures("no_figures")
def test_a_run_that_can_be_resumed(run: Run, tmp_path: Path) -> None:
    """It stopped at its target. A message says so and how to continue; then it continues."""
    out = tmp_path / "r"
    early = ("--set", "rounds.stop=target", "--set", "rounds.target=0.01")
    assert run("run", TINY, "--out", out, *SHORT, *early, "--json").document["rounds"] == 1
    answer = run("run", TINY, "--out", out, *SHORT, *early)
    assert "already holds a run, 1 of 2 rounds done: add --resume to continue it" in answer.err
    answer = run("run", TINY, "--out", out, *SHORT, *early, "--resume")
    assert answer.code == 0
    assert "it stopped at its target after 1 of 2 rounds. To continue, add --resume" in answer.err
    answer = run("run", TINY, "--out", out, *SHORT, "--resume", "--json")
    assert answer.document["rounds"] == 2
    assert "finished already" not in answer.err


def test_training_that_diverges(run: Run, tmp_path: Path) -> None:
    """A failure, not wrong usage; it names the place and the likely cause, and says what to do."""
    answer = run("run", TINY, "--out", tmp_path / "r", *SHORT, "--set", "local.learning_rate=1e30")
    assert (answer.code, answer.out) == (1, "")
    assert "failed: training diverged at device " in answer.err
    for words in (" of cluster ", " in global round 1, edge round 0", "local.learning_rate = 1e+30", "--out"):
        assert words in answer.err


def test_a_directory_that_cannot_be_made(run: Run, write: Write) -> None:
    answer = run("run", TINY, "--out", write("file", "in the way") / "run", *SHORT)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.count("failed: cannot create") == 1


@pytest.mark.usefixtures("no_figures")
def test_code_beside_the_experiment(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module:function is found beside the experiment file, and in the current folder."""
    name = "mine_alone"
    text = (EXAMPLES / "custom_scheme.py").read_text(encoding="utf-8")
    for folder in ("beside", "here"):
        (tmp_path / folder).mkdir()
    (tmp_path / "beside" / f"{name}_beside.py").write_text(text, encoding="utf-8")
    (tmp_path / "here" / f"{name}_here.py").write_text(text, encoding="utf-8")
    experiment = shutil.copy(TINY, tmp_path / "beside" / "e.toml")
    monkeypatch.chdir(tmp_path / "here")
    for place in ("beside", "here"):
        answer = run("theory", experiment, "--set", f"scheme.name={name}_{place}:build", "--json")
        assert answer.code == 0, answer.err
    found = run(
        "run", experiment, "--set", f"scheme.name={name}_beside:build", "--set", "rounds.global=1", "--json"
    )
    assert found.document["rounds"] == 1
