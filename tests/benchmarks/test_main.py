"""The command line of the benchmarks."""

import pytest

from benchmarks import solver
from benchmarks.__main__ import BENCHMARKS, main
from cfel.errors import DeploymentError, InputError


@pytest.mark.parametrize(
    "words", [[], ["solvr"], ["solver", "--only", "mlp"], ["deployment", "--only", "mlp"]]
)
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: python -m benchmarks")


def test_the_help_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"\n    {name}" in shown for name in BENCHMARKS)


@pytest.mark.parametrize(
    ("error", "code"),
    [(InputError("x: wrong"), 2), (DeploymentError("x: wrong"), 1), (KeyboardInterrupt(), 130)],
)
def test_errors_are_one_line(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(**_: object) -> None:
        raise error

    monkeypatch.setattr(solver, "measure", measure)
    assert main(["solver"]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1
