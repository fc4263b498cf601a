"""Ray is optional: what is said where it is missing, and that nothing else needs it."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import cfel.scaleout
from cfel.cli import main
from cfel.errors import InputError, ScaleoutError
from cfel.learning.local.algorithm import LocalAlgorithm, WholeResult

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cfel.scaleout, "find_spec", lambda _: None)


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize(
    "command",
    [["run", str(TINY)], ["compare", str(TINY)], ["demo"], ["sweep", str(TINY), "--over", "rounds.edge=1"]],
)
def test_the_message_names_the_command(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main([*command, "--engine", "ray", "--out", str(tmp_path / "out")]) == 2
    assert "Ray is not installed; install it with pip install 'cfel[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_ray")
def test_the_bench_says_so_too() -> None:
    from benchmarks.scaleout import measure_overhead

    with pytest.raises(InputError, match="install it with"):
        measure_overhead(1, 1)


@pytest.mark.usefixtures("no_ray")
def test_what_ray_could_not_train_is_said_first() -> None:
    """Installing Ray would be in vain."""
    algorithm = LocalAlgorithm(train=lambda run: WholeResult(run.module.state_dict(), 0.0))
    experiment = cfel.Experiment(
        local={"algorithm": lambda _: algorithm},
        fleet={"devices": 2, "clusters": 1},
        simulation={"engine": "ray"},
    )
    with pytest.raises(InputError, match="it has its own training loop"):
        list(cfel.simulate(experiment))


@pytest.mark.long
def test_nothing_else_loads_it(tmp_path: Path) -> None:
    """A comparison where importing ray fails; its figures are left out, as they take longest."""
    code = (
        "import sys; sys.modules['ray'] = None; import cfel.report.page as page; "
        "page.draw_pictures = lambda *_: (); from cfel.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [
        "compare",
        str(TINY),
        "--schemes",
        "cef",
        "--set",
        "rounds.global=1",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_cluster_started_here_gets_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cfel.scaleout, "find_spec", lambda _: object())
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    cfel.scaleout.prepare(None)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_a_cluster_that_is_joined_decides_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cfel.scaleout, "find_spec", lambda _: object())
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    cfel.scaleout.prepare("head:6379")
    assert "RAY_AUTH_MODE" not in os.environ
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    cfel.scaleout.prepare(None)
    assert "RAY_AUTH_MODE" not in os.environ


def test_too_late_for_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray reads the environment when it is loaded: a cluster without tokens is not started."""
    loaded = ModuleType("ray")
    monkeypatch.setattr(loaded, "is_initialized", lambda: False, raising=False)
    monkeypatch.setattr(cfel.scaleout, "find_spec", lambda _: object())
    monkeypatch.setitem(sys.modules, "ray", loaded)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ScaleoutError, match="RAY_AUTH_MODE=token"):
        cfel.scaleout.prepare(None)
