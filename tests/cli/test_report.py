"""`cfel report --export`: the figures of a run as files."""

from pathlib import Path

import pytest

from cfel.cli import main
from tests.cli.conftest import Run

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one round, without a page."""
    out = tmp_path_factory.mktemp("report") / "tiny"
    short = ("--set", "rounds.global=1", "--set", "rounds.edge=1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cfel.report.page.draw_pictures", lambda *_: ())
        assert main(["run", str(TINY), "--out", str(out), *short]) == 0
    return out


def test_figures_are_exported(run: Run, finished: Path, tmp_path: Path) -> None:
    before = sorted(finished.rglob("*"))
    answer = run("report", finished, "--export", tmp_path / "to", "--format", "png,csv")
    assert (answer.code, answer.err) == (0, "")
    files = [Path(line) for line in answer.out.splitlines()]
    assert sorted(files) == sorted((tmp_path / "to").iterdir())
    assert {file.suffix for file in files} == {".png", ".csv"}
    assert {file.stem for file in files} >= {"accuracy-seconds", "budget", "decisions-0", "backhaul"}
    assert sorted(finished.rglob("*")) == before


def test_all_formats_are_exported_by_default(run: Run, finished: Path, tmp_path: Path) -> None:
    found = run("report", finished, "--export", tmp_path / "to", "--json").document["files"]
    assert {Path(file).suffix for file in found} == {".svg", ".png", ".csv"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--export", "TO", "--format", "png,gif"),
            "format: unknown 'gif' (allowed: csv, latex, markdown, pdf, png, svg)",
        ),
        (("--export", "TO", "--format", ","), "format: give at least one of svg, png, csv"),
        (("--format", "png"), "--format: needs --export"),
        (("--export", "TO", "--tensorboard"), "--tensorboard: writes into DIR"),
    ],
)
def test_wrong_usage_of_an_export(
    run: Run, finished: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    words = [str(tmp_path / "to") if word == "TO" else word for word in options]
    answer = run("report", finished, *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert not (tmp_path / "to").exists()
    assert not (finished / "figures" / "budget.png").exists()


def test_the_help_has_an_example_of_an_export(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    assert "cfel report runs/table --export paper --format latex,pdf" in capsys.readouterr().out
