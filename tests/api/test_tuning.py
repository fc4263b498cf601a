"""`cfel.tune`: what is searched, what is scored, and that a tuning continues."""

from collections.abc import Callable
from pathlib import Path

import pytest

import cfel
from cfel.api.tuning import parse_range
from cfel.errors import InputError, StorageError
from cfel.report.load import load_run
from cfel.report.summary import find_quality_within_budgets
from cfel.runlog import RoundRecord
from tests.api.test_runs import make_experiment
from tests.report.conftest import make_record, make_run

__all__ = ["make_record", "make_run"]


def test_a_run_is_scored_within_its_budgets(
    tmp_path: Path, make_run: Callable[..., None], make_record: Callable[..., RoundRecord]
) -> None:
    """Budgets of 1000 s and 100 J: the third round is too late, the second counts; the first is no better."""
    records = [
        make_record(1, 0.6, 400.0, 40.0),
        make_record(2, 0.5, 1000.0, 100.0),
        make_record(3, 0.9, 1100.0, 90.0),
    ]
    make_run(tmp_path / "run", "cef", 0, records)
    assert find_quality_within_budgets(load_run(tmp_path / "run")) == 0.5
    make_run(tmp_path / "late", "cef", 0, records[2:])
    assert find_quality_within_budgets(load_run(tmp_path / "late")) is None


def test_the_experiments_own_seed_is_kept_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="seed 0 is the experiment's own"):
        cfel.tune(make_experiment(), {"rounds.local": [1, 2]}, seeds=[0, 1], out=tmp_path / "tuned")
    assert not (tmp_path / "tuned").exists()


def test_ranges() -> None:
    pytest.importorskip("optuna")
    assert str(parse_range("a", "1..5")) == "IntDistribution(high=5, log=False, low=1, step=1)"
    assert (
        str(parse_range("a", "0.001..1:log")) == "FloatDistribution(high=1.0, log=True, low=0.001, step=None)"
    )
    assert str(parse_range("a", ["x", "y"])) == "CategoricalDistribution(choices=('x', 'y'))"
    for wrong in ("1", "1..x", "2..1", "0..1:log", "1..2:exp"):
        with pytest.raises(InputError, match=f"learning_rate: '{wrong}' is "):
            parse_range("local.learning_rate", wrong)


@pytest.mark.long
def test_a_tuning_continues(tmp_path: Path) -> None:
    """Three trials, then two more; every run holds samples out and has another seed than the experiment."""
    pytest.importorskip("optuna")
    out = tmp_path / "runs" / "tuned"
    over = {"local.learning_rate": "0.001..0.5:log", "rounds.local": [1, 3]}
    first = cfel.tune(make_experiment(), over, trials=3, seeds=[5, 6], out=out, progress=False)
    assert len(first.trials) == 3
    assert first.trials[0].score == max(each.score for each in first.trials)
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/seed-*/rounds.jsonl")}
    assert len(before) == 6
    more = cfel.tune(make_experiment(), over, trials=5, seeds=[5, 6], out=out, progress=False)
    assert len({str(each.values) for each in more.trials}) == len(more.trials) == 5
    assert {path: path.stat().st_mtime_ns for path in before} == before
    for path in out.glob("*/seed-*"):
        text = (path / "experiment.toml").read_text()
        assert "held_out = 0.1" in text
        assert f"seed = {path.name.removeprefix('seed-')}\n" in text
    assert more.table.num_rows == len(more.runs) == 10
    best = more.table.to_pylist()[0]
    assert {key: best[key] for key in over} == more.best
    assert more.report() == out / "report.html"
    assert make_experiment().change(more.best).local.learning_rate == more.best["local.learning_rate"]
    with pytest.raises(InputError, match="has trials with another over"):
        cfel.tune(make_experiment(), {"rounds.local": [1]}, trials=5, seeds=[5, 6], out=out)


@pytest.mark.parametrize("name", ["study.db", "study.db-journal", "study.db-wal"])
def test_links_in_the_directory_of_a_tuning_are_not_followed(tmp_path: Path, name: str) -> None:
    """SQLite would write wherever they point."""
    pytest.importorskip("optuna")
    out, elsewhere = tmp_path / "tuned", tmp_path / "elsewhere"
    out.mkdir()
    (out / name).symlink_to(elsewhere)
    with pytest.raises(StorageError, match=f"{name}: it is a link"):
        cfel.tune(make_experiment(), {"rounds.local": [1, 2]}, trials=1, out=out, progress=False)
    assert not elsewhere.exists()


@pytest.mark.parametrize("content", [b"garbage" * 1000, None])
def test_a_study_that_is_none_is_named(tmp_path: Path, content: bytes | None) -> None:
    pytest.importorskip("optuna")
    study = tmp_path / "tuned" / "study.db"
    study.parent.mkdir()
    study.mkdir() if content is None else study.write_bytes(content)
    with pytest.raises(StorageError, match=r"cannot use .*tuned/study.db: "):
        cfel.tune(make_experiment(), {"rounds.local": [1, 2]}, trials=1, out=study.parent, progress=False)


def test_a_directory_that_optuna_would_misread(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(InputError, match="must not contain"):
        cfel.tune(make_experiment(), {"rounds.local": [1, 2]}, trials=1, out=tmp_path / "a?b", progress=False)
