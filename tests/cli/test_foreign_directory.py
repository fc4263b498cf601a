"""Directories that somebody else sent: they run no code, write to no other file and are rejected by name."""

import json
import os
import re
import resource
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cfel.runlog import RunDirectory, write_checkpoint
from tests.cli.conftest import Run

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
MODULE = "left_in_a_directory"
SPY = """
from pathlib import Path

Path(__file__).with_name("ran").touch()

def build(parameters):
    from cfel.control import SCHEMES
    return SCHEMES["cef"](parameters)

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
    # Theorem 1, which many of these tests ask for, is not about the small batches of the default scheme.
    changes = (
        *("rounds.global=1", "rounds.edge=1", "rounds.local=1", "fleet.devices=4", "fleet.clusters=2"),
        *("topology.kind=line", "scheme.name=hcef"),
    )
    run_experiment(preset_experiment("demo", changes), out, RunOptions())
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
    ("data", "partition", f"{MODULE}:build"),
    ("aggregation", "kind", f"{MODULE}:build"),
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
def test_data_is_not_fetched_by_code_from_outside(run: Run, foreign: Path, tmp_path: Path, name: str) -> None:
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


def test_or_from_beside_the_experiment_that_was_run(
    run: Run, foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `cfel run lab/e.toml` found it; an experiment file inside the directory adds nothing."""
    mine = "mine_beside_the_experiment"
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / f"{mine}.py").write_text(SPY)
    (tmp_path / "lab" / "e.toml").touch()
    monkeypatch.chdir(tmp_path)
    name_code(foreign, "model", "name", f"{mine}:model")
    file = foreign / "environment.json"
    environment = json.loads(file.read_text())
    command = ["cfel", "run", "lab/e.toml", "--resume", str(foreign / "experiment.toml")]
    file.write_text(json.dumps({**environment, "command": command}))
    answer = run("export", foreign, "--to", tmp_path / "model.safetensors", "--trust")
    assert answer.code == 0, answer.err
    assert (tmp_path / "lab" / "ran").exists()
    assert str(foreign) not in sys.path


@pytest.mark.usefixtures("no_figures")
def test_reports_need_no_code(run: Run, foreign: Path) -> None:
    for section, key, name in KEYS:
        name_code(foreign, section, key, name)
    assert run("report", foreign).code == 0
    assert not (foreign / "ran").exists()


def elsewhere(tmp_path: Path) -> Path:
    """A directory of the user's that nothing may be written to."""
    place = tmp_path / "elsewhere"
    place.mkdir(exist_ok=True)
    return place


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    "name", ["figures", "tensorboard", "tensorboard/hcef_plus", "tensorboard/hcef_plus/seed-0"]
)
def test_nothing_is_written_through_a_linked_directory(
    run: Run, foreign: Path, tmp_path: Path, name: str
) -> None:
    name_code(foreign, "scheme", "name", "hcef_plus")
    place = elsewhere(tmp_path)
    (foreign / name).parent.mkdir(parents=True, exist_ok=True)
    (foreign / name).symlink_to(place)
    answer = run("report", foreign, "--tensorboard")
    assert (answer.code, answer.out) == (1, "")
    assert f"{name} is a link, which is not followed" in answer.err
    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("no_figures")
def test_nothing_is_written_through_linked_files(run: Run, foreign: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("report.html", ".report.html.tmp", ".report.html.part"):
        (foreign / name).symlink_to(victim)
    assert run("report", foreign).code == 0
    assert victim.read_text() == "precious"
    assert not (foreign / "report.html").is_symlink()


@pytest.mark.usefixtures("no_figures")
def test_half_a_character_is_rejected_by_name(run: Run, foreign: Path) -> None:
    """It can be read, but no page can be written with it."""
    file = foreign / "environment.json"
    file.write_text(file.read_text().replace('"cpu": "', '"cpu": "\\ud800'))
    answer = run("report", foreign)
    assert answer.code == 1
    assert "environment.json is damaged: not JSON: 'utf-8' codec can't encode" in answer.err


FILES = ["experiment.toml", "environment.json", "fleet.json", "rounds.jsonl", "plans/round-00001.parquet"]
EXPORTED = ["checkpoint/manifest.json", "checkpoint/generation-00000-state.json"]


@pytest.mark.parametrize("name", [*FILES, *EXPORTED])
@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "huge"])
def test_nothing_but_regular_files_is_read(
    run: Run, foreign: Path, tmp_path: Path, name: str, kind: str
) -> None:
    """None of them hangs, and each is named."""
    file = foreign / name
    file.rename(tmp_path / "moved")
    if kind == "link":
        file.symlink_to(tmp_path / "moved")
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    else:
        with file.open("wb") as sparse:
            sparse.truncate(2**40)
    commands: list[tuple[object, ...]] = [("export", foreign, "--to", tmp_path / "model.safetensors")]
    if name in FILES:
        reads_it = name not in ("fleet.json", "plans/round-00001.parquet")
        commands = [("theory", foreign), ("report", foreign), *(commands if reads_it else [])]
    for command in commands:
        answer = run(*command)
        assert answer.code in (1, 2), command
        assert Path(name).name in answer.err
        assert "Traceback" not in answer.err


@pytest.mark.parametrize("name", ["plans", "checkpoint"])
def test_nothing_is_read_through_a_linked_directory(
    run: Run, foreign: Path, tmp_path: Path, name: str
) -> None:
    (foreign / name).rename(tmp_path / name)
    (foreign / name).symlink_to(tmp_path / name)
    commands = {
        "plans": ("theory", foreign),
        "checkpoint": ("export", foreign, "--to", tmp_path / "m.safetensors"),
    }
    answer = run(*commands[name])
    assert answer.code == 1
    assert f"{name} is a link, which is not followed" in answer.err


def test_a_linked_log_is_not_written_to(run: Run, foreign: Path, tmp_path: Path) -> None:
    """Resumed with the experiment that it holds."""
    experiment = Path(shutil.copy(foreign / "experiment.toml", tmp_path / "mine.toml"))
    (foreign / "rounds.jsonl").rename(tmp_path / "moved")
    (foreign / "rounds.jsonl").symlink_to(tmp_path / "moved")
    before = (tmp_path / "moved").read_bytes()
    for more in ([], ["--resume"]):
        answer = run("run", experiment, "--out", foreign, *more)
        assert answer.code == 1
    assert "rounds.jsonl: it is a link" in answer.err
    assert (tmp_path / "moved").read_bytes() == before


def test_the_directory_itself_may_be_a_link(run: Run, foreign: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(foreign)
    assert run("theory", tmp_path / "latest", "--json").code == 0


def test_models_are_for_their_owner(finished: Path) -> None:
    """They, and what devices remember, can reveal training data; logs and reports cannot."""
    assert stat.S_IMODE((finished / "checkpoint").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (finished / "checkpoint").iterdir()} == {0o600}
    mask = os.umask(0o022)
    os.umask(mask)
    assert stat.S_IMODE((finished / "rounds.jsonl").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "rounds.edge=100000000000000000000000",
            "rounds.edge = 100000000000000000000000: must be a whole number",
        ),
        ("rounds.global=600000", "at most 1,000,000 edge rounds in all"),
        ("rounds.local=100000000000000000000000", "rounds.local"),
        ("fleet.devices=100000000000000000000000", "fleet.devices"),
        ("fleet.clusters=100000000000000000000000", "fleet.clusters"),
        ("simulation.workers=100000000000000000000000", "simulation.workers"),
        ("local.learning_rate=1" + "0" * 400, "local.learning_rate: must be a finite number"),
        ("budget.seconds=0x" + "f" * 5000, "budget.seconds"),
        ("data.batch=0x" + "f" * 5000, "data.batch = a huge int"),
        ('name="a\\u001b[31mb"', "name = 'a\\x1b[31mb': must not contain control characters"),
    ],
)
def test_huge_numbers_are_rejected(run: Run, change: str, message: str) -> None:
    answer = run("theory", TINY, "--set", change)
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err) < len(change) + 300


@pytest.mark.long
def test_a_small_plan_table_is_not_unpacked_to_gigabytes(run: Run, foreign: Path) -> None:
    """Three million rows of equal numbers, in a file of some ten kilobytes."""
    path = foreign / "plans" / "round-00001.parquet"
    schema = pq.read_schema(path)
    columns = {field.name: pa.repeat(pa.scalar(0, field.type), 3_000_000) for field in schema}
    pq.write_table(pa.table(columns), path, compression="zstd")
    assert path.stat().st_size < 200_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = run("theory", foreign)
    assert answer.code == 1
    assert "its 3,000,000 rows would take more than" in answer.err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 100_000


@pytest.mark.parametrize(
    ("name", "size"), [("edge/0/parameters", 10), ("edge/0/parameters", 0), ("edge/1/buffers", 3)]
)
def test_a_checkpoint_of_another_model(run: Run, foreign: Path, tmp_path: Path, name: str, size: int) -> None:
    checkpoint = RunDirectory.open(foreign).checkpoint()
    assert checkpoint is not None
    tensors = {**checkpoint.tensors, name: np.zeros(size, np.float32)}
    write_checkpoint(foreign / "checkpoint", replace(checkpoint, tensors=tensors))
    experiment = Path(shutil.copy(foreign / "experiment.toml", tmp_path / "mine.toml"))
    for command in (
        ("export", foreign, "--to", tmp_path / "model.safetensors"),
        ("run", experiment, "--out", foreign, "--resume"),
    ):
        answer = run(*command)
        assert answer.code == 1
        assert f"checkpoint is damaged: tensor {name!r} is float32 of shape ({size},)" in answer.err
