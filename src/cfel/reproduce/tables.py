"""Tables, figures and the page of a reproduction: measured values beside those of the paper.

A scheme or setting that the paper does not report has no mark.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from cfel.durable import replace_file
from cfel.report.figures import Picture, Value, draw_accuracy, write_pictures
from cfel.report.load import Run, group_by_row
from cfel.report.page import render_cells, render_document, render_gallery, render_provenance, render_table
from cfel.report.style import INK, Drawing, SchemeStyle, assign_styles, new_figure
from cfel.reproduce.items import PaperValues

Marks = Mapping[str, tuple[float, float]]
"""The paper's points (x, y) by scheme."""
Summary = Mapping[str, Any]
"""From `summarise`."""

NOTHING = "–"
_PAPER_MARK: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "none", "markersize": 9}


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of text: title, headings and rows of cells."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of a sweep's figure: a key of the summary, the title, and the unit to divide by."""

    key: str
    title: str
    unit: float = 1.0


def draw_gains(schemes: Mapping[str, Mapping[str, Any]], paper: Marks) -> Drawing | None:
    """Draws measured gains over CEF, and those of the paper in time and energy; None if there are neither."""
    names = [name for name, row in schemes.items() if row["gain_seconds"] is not None or name in paper]
    if not names:
        return None
    styles = assign_styles(tuple(schemes))
    figure, panels = new_figure(2, 0.9 + 0.32 * len(names))
    both = (("gain_seconds", "gain in time over CEF"), ("gain_joules", "gain in energy over CEF"))
    for number, (axes, (key, title)) in enumerate(zip(panels, both, strict=True)):
        axes.set_title(title)
        axes.set_yticks(range(len(names)), [styles[name].label for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.axvline(1.0, color=INK, linewidth=0.8)
        for place, name in enumerate(names):
            _draw_gain(axes, place, schemes[name], key, styles[name])
            if name in paper:
                axes.plot(paper[name][number], place, marker="D", color=INK, **_PAPER_MARK)
    panels[-1].set_xlabel("filled: measured, with 95 % interval; hollow: paper")
    rows = [
        (title, styles[name].label, schemes[name][key], paper[name][number] if name in paper else None)
        for number, (key, title) in enumerate(both)
        for name in names
    ]
    return Drawing(figure, ("panel", "scheme", "measured", "paper"), rows)


def _draw_gain(axes: Axes, place: int, row: Mapping[str, Any], key: str, style: SchemeStyle) -> None:
    if row[key] is not None:
        low, high = row["interval"][key] or (row[key], row[key])
        reach = [[row[key] - low], [high - row[key]]]
        axes.errorbar(row[key], place, xerr=reach, color=style.colour, marker="o", capsize=3)


def draw_marked_accuracy(
    runs: tuple[Run, ...], x: Value, x_label: str, target: float | None, paper: Marks
) -> Drawing | None:
    """Draws accuracy curves with the paper's points."""
    groups = group_by_row(runs)
    styles = assign_styles(tuple(groups))
    marks = {name: point for name, point in paper.items() if name in styles}
    right = max((across for across, _ in marks.values()), default=0.0)
    drawing = draw_accuracy(groups, styles, x, x_label, target, right)
    if drawing is None:
        return None
    for name, (across, up) in marks.items():
        style = styles[name]
        drawing.figure.axes[0].plot(across, up, marker=style.marker, color=style.colour, **_PAPER_MARK)
    points = [(f"{styles[name].label}, paper", *point, None, None, None) for name, point in marks.items()]
    return Drawing(drawing.figure, drawing.columns, [*drawing.rows, *points])


def draw_sweep(
    values: Mapping[float, Summary], axis: str, panels: Sequence[Panel], paper: Mapping[str, Marks]
) -> Drawing | None:
    """Draws the results of every scheme over the swept key; settings that missed the target are left out.

    The paper's points are given by the key of the panel, in its unit.
    """
    names = tuple(dict.fromkeys(name for summary in values.values() for name in summary["schemes"]))
    styles = assign_styles(names)
    figure, all_axes = new_figure(len(panels), 2.9)
    for axes, panel in zip(all_axes, panels, strict=True):
        axes.set_title(panel.title)
        for name in names:
            style = styles[name]
            if found := _read_line(values, name, panel):
                line: dict[str, Any] = {
                    "color": style.colour,
                    "linestyle": style.dash,
                    "marker": style.marker,
                }
                axes.plot(list(found), list(found.values()), label=style.label, **line)
            if name in paper.get(panel.key, {}):
                axes.plot(*paper[panel.key][name], marker=style.marker, color=style.colour, **_PAPER_MARK)
        axes.set_xticks(sorted(values), [f"{value:g}" for value in sorted(values)])
    all_axes[-1].set_xlabel(axis)
    handles, labels = all_axes[0].get_legend_handles_labels()
    if labels:
        # Outside the panel, where no line crosses it.
        figure.legend(handles, labels, loc="outside upper left", fontsize=8, ncols=6, frameon=False)
    if not any(axes.lines for axes in all_axes):
        return None
    return Drawing(figure, ("panel", "scheme", axis, "value"), _tabulate_sweep(values, panels, paper))


def _read_line(values: Mapping[float, Summary], name: str, panel: Panel) -> dict[float, float]:
    """What a scheme reached, by setting."""
    rows = {value: summary["schemes"].get(name, {}).get(panel.key) for value, summary in values.items()}
    return {value: row / panel.unit for value, row in sorted(rows.items()) if row is not None}


def _tabulate_sweep(
    values: Mapping[float, Summary], panels: Sequence[Panel], paper: Mapping[str, Marks]
) -> list[tuple[object, ...]]:
    measured: list[tuple[object, ...]] = [
        (panel.title, name, value, row[panel.key] / panel.unit)
        for panel in panels
        for value, summary in sorted(values.items())
        for name, row in summary["schemes"].items()
        if row[panel.key] is not None
    ]
    return measured + [
        (panel.title, f"{name}, paper", *point)
        for panel in panels
        for name, point in paper.get(panel.key, {}).items()
    ]


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The content of a page: title, notes, tables, figures and runs."""

    title: str
    notes: tuple[str, ...]
    tables: tuple[TextTable, ...]
    pictures: tuple[Picture, ...]
    runs: tuple[Run, ...]


def write_reproduction(path: Path, content: Reproduction) -> Path:
    """Writes `report.html` and `figures/` into the directory `path`."""
    write_pictures(path / "figures", content.pictures)
    page = path / "report.html"
    replace_file(page, _render_page(content).encode())
    return page


def _render_page(content: Reproduction) -> str:
    styles = assign_styles(tuple(dict.fromkeys(run.scheme for run in content.runs)))
    return render_document(
        content.title,
        "cfel",
        f"{''.join(f'<p>{escape(note)}</p>' for note in content.notes)}"
        f"{''.join(map(_render_table, content.tables))}<h2>Figures</h2>{render_gallery(content.pictures)}"
        f"{render_provenance(content.runs, styles)}",
    )


def _render_table(table: TextTable) -> str:
    rows = [
        f'<th scope="row">{escape(row[0])}</th>{render_cells(table.headings[1:], row[1:])}'
        for row in table.rows
    ]
    return f'<h2>{escape(table.title)}</h2><div class="card">{render_table(table.headings, rows)}</div>'


_COLUMNS: Mapping[str, Callable[[Summary], str]] = {
    "10⁴ s": lambda row: format_number(row["seconds_to_target"], 1e4),
    "expected": lambda row: format_number(row["expected_seconds_to_target"], 1e4),
    "kJ": lambda row: format_number(row["joules_to_target"], 1e3),
    "time gain": lambda row: format_interval(row, "gain_seconds"),
    "energy gain": lambda row: format_interval(row, "gain_joules"),
    "acc %": lambda row: format_number(row["final_accuracy"], 0.01, digits=1),
}
"""What a table shows of a scheme, by its heading."""


def _format_cells(row: Summary, headings: Sequence[str]) -> tuple[str, ...]:
    return tuple(_COLUMNS[heading](row) for heading in headings)


def build_comparison_table(document: Summary, paper: PaperValues) -> TextTable:
    """Time, realised and expected, and energy of every scheme beside those of the paper's Table 1.

    The paper's values are for its own target, even if the measured ones are for another target.
    """
    rows = tuple(
        (
            name,
            *_format_cells(row, ("10⁴ s", "expected")),
            format_number(paper.seconds.get(name), 1e4, digits=1),
            *_format_cells(row, ("kJ",)),
            format_number(paper.joules.get(name), 1e3, digits=1),
            *_format_cells(row, ("acc %",)),
        )
        for name, row in document["schemes"].items()
    )
    headings = ("scheme", "10⁴ s", "expected", "paper", "kJ", "paper", "acc %")
    return TextTable(f"Time and energy to {_describe_targets(document, paper)}", headings, rows)


def build_gain_table(document: Summary, paper: PaperValues) -> TextTable:
    """The gain of every scheme over CEF beside that of the paper."""
    rows = tuple(
        (
            name,
            *_format_cells(row, ("time gain",)),
            format_number(paper.gain_seconds(name)),
            *_format_cells(row, ("energy gain",)),
            format_number(paper.gain_joules(name)),
        )
        for name, row in document["schemes"].items()
    )
    headings = ("scheme", "time gain", "paper", "energy gain", "paper")
    return TextTable(f"Gain over CEF, to {_describe_targets(document, paper)}", headings, rows)


def _describe_targets(document: Summary, paper: PaperValues) -> str:
    target = "no target" if document["target"] is None else f"{100 * document['target']:.4g} %"
    return f"{target} (paper: {100 * paper.target:g} %)"


def build_common_table(document: Summary) -> TextTable:
    """Time, energy and gain to the highest accuracy that every scheme reached with every seed."""
    common, headings = document["at_common_accuracy"], ("10⁴ s", "kJ", "time gain", "energy gain")
    rows = tuple((name, *_format_cells(row, headings)) for name, row in common["schemes"].items())
    title = f"Time and energy to {100 * common['target']:.1f} %, which every scheme reached with every seed"
    return TextTable(title, ("scheme", *headings), rows)


def build_sweep_table(document: Summary) -> TextTable:
    """Time, energy and gain to the target in every setting of a sweep."""
    headings = ("10⁴ s", "kJ", "time gain", "energy gain", "acc %")
    rows = tuple(
        (value, name, *_format_cells(row, headings))
        for value, summary in document["values"].items()
        for name, row in summary["schemes"].items()
    )
    target = "no target" if document["target"] is None else f"{100 * document['target']:g} %"
    title = f"Time and energy to {target}, and gain over CEF"
    return TextTable(title, (document["key"], "scheme", *headings), rows)


def build_rates_table(document: Summary) -> TextTable:
    """Held-out accuracy of every learning rate, and the rate selected."""
    grid = list(document["values"])
    rows = tuple(
        (
            name,
            *(format_number(tried.get(rate), 0.01, digits=1) for rate in grid),
            f"{document['chosen'][name]:g}",
        )
        for name, tried in document["held_out"].items()
    )
    title = "Accuracy on held-out training samples (%), by learning rate"
    return TextTable(title, ("scheme", *grid, "chosen"), rows)


def build_estimates_table(document: Summary) -> TextTable:
    rows = tuple(
        (name, f"{point['round']}", f"{point['sigma2']:.4g}", f"{point['g2']:.4g}")
        for name, points in document["estimates"].items()
        for point in points
    )
    return TextTable("σ² and G² (first seed)", ("scheme", "round", "σ²", "G²"), rows)


def format_number(value: float | None, unit: float = 1.0, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value / unit:.{digits}f}"


def format_interval(row: Summary, key: str) -> str:
    """A gain with the ends of its 95 % confidence interval, if it has one."""
    text, interval = format_number(row[key]), row["interval"][key]
    return text if interval is None else f"{text} ({interval[0]:.2f}–{interval[1]:.2f})"
