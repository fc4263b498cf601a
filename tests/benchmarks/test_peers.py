"""Systems that take turns: what all of them compute, the race, the peers' environment and the table."""

import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import peers
from benchmarks.__main__ import main
from benchmarks.peer_workers import (
    LEAF,
    SMALL,
    build_module,
    describe_setting,
    from_argument,
    make_images,
    to_argument,
)
from benchmarks.peers import PINS, Entrant, Standing, find_descendants, prepare_environment, run_race
from cfel.errors import DeploymentError, InputError

TINY = replace(SMALL, model="mlp", users=4, cohort=2, samples=4, batch=2)
OURS = Path(sys.executable)


def test_a_workload_survives_its_way_to_a_worker() -> None:
    assert from_argument(to_argument(SMALL)) == SMALL


def test_every_system_gets_the_same_model_and_data() -> None:
    few = replace(SMALL, users=3)
    for one, other in zip(build_module(few).parameters(), build_module(few).parameters(), strict=True):
        assert torch.equal(one, other)
    images, targets = make_images(few)
    assert images.shape == (3 * 50, 3, 32, 32)
    assert torch.equal(images, make_images(few)[0])
    assert targets.max() < few.classes


def test_cfel_runs_the_same_steps_as_its_peers() -> None:
    """One pass over the samples; a cohort on average, or everybody."""
    small, leaf = describe_setting(SMALL), describe_setting(LEAF)
    assert (small.local_steps, small.edge_rounds, small.present, small.devices) == (5, 1, 50, 1000)
    assert (leaf.local_steps, leaf.edge_rounds, leaf.present, leaf.devices) == (5, 1, None, 64)


@pytest.mark.long
def test_workers_take_turns_and_end() -> None:
    standings = run_race(TINY, [Entrant(name, OURS, "bare", 1) for name in ("one", "other")], rounds=3)
    assert [each.name for each in standings] == ["one", "other"]
    for each in standings:
        assert len(each.seconds) == 3
        assert 0 < each.median < each.start_seconds
        assert len(each.cpu_seconds) == 3
        assert each.peak_bytes > 2**20


@pytest.mark.parametrize(("python", "words"), [(Path("/bin/true"), "never connected"), (OURS, "nobody")])
def test_a_worker_that_fails_is_named_with_its_last_words(python: Path, words: str) -> None:
    with pytest.raises(DeploymentError, match="broken: ") as failure:
        run_race(TINY, [Entrant("broken", python, "nobody", 1)], rounds=1)
    assert words in str(failure.value)


def test_a_process_is_among_its_own_descendants() -> None:
    assert 1 in find_descendants(1)
    assert len(find_descendants(1)) > 1


def test_an_installed_environment_is_used_again(tmp_path: Path) -> None:
    torch_version = version("torch").partition("+")[0]
    (tmp_path / "installed.txt").write_text(f"torch=={torch_version}\n{PINS['pfl']}\n", encoding="utf-8")
    assert prepare_environment(tmp_path, ("pfl",)) == tmp_path / "bin" / "python"


@pytest.mark.long
def test_a_failed_installation_names_package_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(InputError, match="pfl==") as failure:
        prepare_environment(tmp_path / "peers", ("pfl",))
    assert str(tmp_path / "peers") in str(failure.value)
    assert not (tmp_path / "peers" / "installed.txt").exists()


def test_what_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With environment and race replaced: one row per system, relative to cfel."""
    monkeypatch.setenv("COLUMNS", "80")

    def race(_: object, entrants: list[Any], rounds: int) -> list[Standing]:
        return [
            Standing(each.name, 10.0, (1.0 + i,) * rounds, (2.0,) * rounds, 2**30 + i * 2**20)
            for i, each in enumerate(entrants)
        ]

    monkeypatch.setattr(peers, "prepare_environment", lambda *_: Path("python"))
    monkeypatch.setattr(peers, "run_race", race)
    assert main(["peers", "--only", "small_cnn", "--quick"]) == 0
    shown = capsys.readouterr()
    assert "flwr[simulation]==" in shown.err
    assert "small CNN, 50 of 1,000 users" in shown.out
    rows = [line.split()[0] for line in shown.out.splitlines()[2:9]]
    assert rows == ["cfel", "bare", "bare", "pfl,", "pfl,", "Flower,", "fluke,"]
    assert max(map(len, shown.out.splitlines())) <= 80


def test_a_peer_that_cannot_be_installed_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(_: Path, names: tuple[str, ...]) -> Path:
        if "fluke" in names:
            raise InputError("fluke: no such package")
        return Path("python")

    raced: list[str] = []

    def race(_: object, entrants: list[Entrant], __: int) -> list[Standing]:
        raced.extend(each.system for each in entrants)
        return []

    monkeypatch.setattr(peers, "prepare_environment", prepare)
    monkeypatch.setattr(peers, "run_race", race)
    peers.measure(quick=True, only="small_cnn")
    assert raced == ["cfel", "bare", "bare", "pfl", "pfl", "flower"]
    assert "left out: fluke: no such package" in capsys.readouterr().err
