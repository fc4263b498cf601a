"""Notebooks run from top to bottom, and show what they did."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
pages = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read_cells(path: Path) -> list[dict[str, Any]]:
    """The code cells."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_there_are_six_and_each_is_a_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = [f"notebooks/{path.stem}\n" in index for path in NOTEBOOKS]
    assert listed == [True] * 6
    assert [path.stem for path in sorted((ROOT / "docs" / "notebooks").iterdir())] == [
        path.stem for path in NOTEBOOKS
    ]


@pages
def test_outputs_are_stored_with_pictures_and_without_errors(path: Path) -> None:
    outputs = [output for cell in read_cells(path) for output in cell["outputs"]]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert {"image/svg+xml", "image/png"} & set(kinds)
    assert [output for output in outputs if output["output_type"] == "error"] == []
    # Nothing about the machine they were made on.
    assert "/home/" not in str(outputs)
    assert [output for output in outputs if output.get("name") == "stderr"] == []


@pytest.mark.long
@pytest.mark.timeout(600)
@pages
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells in order, as a kernel executes them; without one, so that no Jupyter is needed."""
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    # Those of the report pages, which other tests draw; figures that a notebook shows are drawn.
    monkeypatch.setattr("cfel.report.page.draw_pictures", lambda *_: ())
    plt.switch_backend("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for number, cell in enumerate(read_cells(path)):
            code = compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec")
            exec(code, names)  # noqa: S102 — the notebook is ours
    finally:
        plt.close("all")
