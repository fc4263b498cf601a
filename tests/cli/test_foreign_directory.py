"""Directories that somebody else sent: reading one runs no code."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

MODULE = "left_in_a_directory"
SPY = """
from pathlib import Path

Path(__file__).with_name("ran").touch()

def build(parameters):
    from cfel.control.schemes.cef import cef
    return cef(parameters)

def model(input_shape, classes):
    from cfel.learning.models.builders import mlp
    return mlp(input_shape, classes)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one round."""
    from cfel.api.runs import RunOptions, run_experiment
    from cfel.experiment import preset_experiment

    out = tmp_path_factory.mktemp("foreign") / "run"
    changes = ("rounds.global=1", "rounds.edge=1", "rounds.local=1", "fleet.devices=4", "fleet.clusters=2")
    run_experiment(preset_experiment("demo", (*changes, "topology.kind=line")), out, RunOptions())
    return out


@pytest.fixture
def foreign(finished: Path, tmp_path: Path) -> Path:
    """The same with a module in it, which leaves a file behind when it is imported."""
    directory = Path(shutil.copytree(finished, tmp_path / "foreign"))
    (directory / f"{MODULE}.py").write_text(SPY)
    return directory


def name_code(directory: Path, section: str, key: str, name: str) -> None:
    """Changes one key of the directory's experiment."""
    file = directory / "experiment.toml"
    text = re.sub(rf'(?ms)(^\[{section}\]$.*?^{key} = )"[^"]*"', rf'\1"{name}"', file.read_text(), count=1)
    assert name in text
    file.write_text(text)


KEYS = [
    ("scheme", "name", f"{MODULE}:build"),
    ("model", "name", f"{MODULE}:model"),
    ("compression", "kind", f"{MODULE}:build"),
    ("data", "augment", f"{MODULE}:build"),
]


@pytest.mark.parametrize(("section", "key", "name"), KEYS)
def test_code_named_by_a_directory_is_not_run(
    run: Run, foreign: Path, tmp_path: Path, section: str, key: str, name: str
) -> None:
    name_code(foreign, section, key, name)
    for command in (("theory", foreign), ("export", foreign, "--to", tmp_path / "model.safetensors")):
        answer = run(*command)
        assert answer.code == 2
        assert f"{name!r} is not built in" in answer.err
        assert "if you trust it, add --trust" in answer.err
    assert not (foreign / "ran").exists()
    assert str(foreign) not in sys.path


@pytest.mark.parametrize(("key", "name"), [("kind", f"{MODULE}:build")])
def test_nor_that_of_a_folder_without_a_run(run: Run, foreign: Path, key: str, name: str) -> None:
    name_code(foreign, "topology", key, name)
    (foreign / "rounds.jsonl").unlink()
    answer = run("theory", foreign)
    assert answer.code == 2
    assert "add --trust" in answer.err
    assert not (foreign / "ran").exists()


@pytest.mark.parametrize("name", [f"{MODULE}:build", "hf:some/name"])
def test_data_is_not_fetched_by_foreign_code(run: Run, foreign: Path, tmp_path: Path, name: str) -> None:
    name_code(foreign, "data", "name", name)
    answer = run("export", foreign, "--to", tmp_path / "model.safetensors")
    assert answer.code == 2
    assert "add --trust" in answer.err
    assert not (foreign / "ran").exists()


def test_the_directory_is_not_searched_even_if_it_is_trusted(run: Run, foreign: Path) -> None:
    name_code(foreign, "scheme", "name", f"{MODULE}:build")
    answer = run("theory", foreign, "--trust")
    assert answer.code == 2
    assert f"No module named '{MODULE}'" in answer.err
    assert not (foreign / "ran").exists()


def test_code_of_a_trusted_directory_comes_from_the_current_folder(
    run: Run, foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = "mine_for_a_trusted_directory"
    (tmp_path / f"{mine}.py").write_text(SPY)
    monkeypatch.chdir(tmp_path)
    name_code(foreign, "scheme", "name", f"{mine}:build")
    name_code(foreign, "model", "name", f"{mine}:model")
    assert run("theory", foreign, "--json", "--trust").code == 0
    assert run("export", foreign, "--to", tmp_path / "model.safetensors", "--trust").code == 0
    assert (tmp_path / "ran").exists()


@pytest.mark.usefixtures("no_figures")
def test_reports_need_no_code(run: Run, foreign: Path) -> None:
    for section, key, name in KEYS:
        name_code(foreign, section, key, name)
    assert run("report", foreign).code == 0
    assert not (foreign / "ran").exists()
