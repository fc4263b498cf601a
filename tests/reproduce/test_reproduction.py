"""Figures and pages that put measured values beside a paper's."""

from pathlib import Path
from typing import Any

from cfel.reproduce.reproduction import (
    Panel,
    Reproduction,
    TextTable,
    draw_gains,
    draw_sweep,
    write_reproduction,
)


def row(seconds: float | None, gain: float | None) -> dict[str, Any]:
    interval = {"gain_seconds": None, "gain_joules": None if gain is None else (gain / 1.1, gain * 1.1)}
    return {"seconds_to_target": seconds, "gain_seconds": gain, "gain_joules": gain, "interval": interval}


def test_the_papers_gains_are_marked() -> None:
    """Two schemes; the paper knows one of them: one hollow mark in each panel."""
    drawing = draw_gains({"hcef": row(10.0, 1.5), "own": row(9.0, 2.0)}, {"hcef": (1.95, 1.84)})
    assert drawing is not None
    for axes, wanted in zip(drawing.figure.axes, (1.95, 1.84), strict=True):
        hollow = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
        assert [float(line.get_xdata()[0]) for line in hollow] == [wanted]  # type: ignore[index,arg-type]


def test_nothing_gained_is_no_figure() -> None:
    assert draw_gains({"cef": row(None, None)}, {}) is None


def test_a_sweep_leaves_out_what_was_not_reached() -> None:
    times = ((2.0, 4e4), (4.0, None), (6.0, 6e4))
    values = {value: {"schemes": {"cef": row(seconds, 1.0)}} for value, seconds in times}
    panel = Panel("seconds_to_target", "time", 1e4)
    drawing = draw_sweep(values, "q", (panel,), {"seconds_to_target": {"cef": (2.0, 4.3)}})
    assert drawing is not None
    measured, paper = drawing.figure.axes[0].lines
    assert list(measured.get_xdata()) == [2, 6]  # type: ignore[arg-type]
    assert list(measured.get_ydata()) == [4.0, 6.0]  # type: ignore[arg-type]
    assert list(paper.get_ydata()) == [4.3]  # type: ignore[arg-type]
    nothing = {2.0: {"schemes": {"cef": row(None, None)}}}
    assert draw_sweep(nothing, "q", (panel,), {}) is None


def test_the_page_escapes_what_it_shows(tmp_path: Path) -> None:
    table = TextTable("a <b>", ("scheme", "s"), (("x<script>", "1"),))
    content = Reproduction("t & t", ("note <i>",), (table,), (), ())
    text = write_reproduction(tmp_path, content).read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "x&lt;script&gt;" in text
    assert "t &amp; t" in text
