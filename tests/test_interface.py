"""`import cfel`: one list of names, imported on first use, and documents whose examples run."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cfel
from tests.page_trial import play_readme

ROOT = Path(__file__).parents[1]
PUBLIC = {
    *("BudgetWarning", "CfelError", "Comparison", "DataSet", "Experiment", "FleetPlan", "InputError"),
    *("Metric", "MissingExtraError", "Picture", "RoundProblem", "RoundRecord", "RunResult", "Simulation"),
    *("Solution", "Sweep", "Task", "Tuning", "compare", "load", "plan", "run", "simulate", "solve"),
    *("sweep", "tune"),
}


def test_the_public_names() -> None:
    """A change here is a change of the interface: it needs a line in CHANGELOG.md."""
    assert set(cfel.__all__) == PUBLIC
    assert set(dir(cfel)) >= PUBLIC
    for name in PUBLIC:
        assert getattr(cfel, name).__name__ == name


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs" / "guides" / "python.md").read_text(encoding="utf-8")
    results = {
        "CfelError",
        "MissingExtraError",
        "Comparison",
        "FleetPlan",
        "Picture",
        "RoundRecord",
        "RunResult",
        "Simulation",
    }
    assert [name for name in PUBLIC - results - {"Solution", "Sweep", "Tuning"} if name not in page] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'plann'"):
        cfel.plann  # type: ignore[attr-defined]  # noqa: B018


def python_blocks(page: Path) -> Iterator[str]:
    return iter(
        re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    )


def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(ROOT / "examples")
    assert play_readme(ROOT / "README.md").played >= 3


# `-W` cannot name a class of ours: it is read before packages can be imported.
IGNORE = "import warnings, cfel; warnings.simplefilter('ignore', cfel.BudgetWarning)"


@pytest.mark.long
def test_the_examples_of_the_guide_run(tmp_path: Path) -> None:
    """All blocks in one process, in order, as a reader would type them."""
    script = "\n".join(python_blocks(ROOT / "docs" / "guides" / "python.md"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{IGNORE}\n{script}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 3
    assert (tmp_path / "accuracy.png").exists()
    assert json.loads((tmp_path / "runs" / "compared" / "summary.json").read_text())["target"] == 0.8
