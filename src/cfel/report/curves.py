"""Curves over time, energy and rounds: one line per scheme with a band over its seeds.

Seeds are combined round by round: the line shows the mean, the band reaches from the smallest to the largest
value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    EngFormatter,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
)

from cfel.arrays import FloatArray
from cfel.report.load import Run
from cfel.report.style import GRID, MUTED, Drawing, SchemeStyle, new_figure
from cfel.runlog import RoundRecord

Value = Callable[[RoundRecord, Run], float | None]
_MAX_DRAWN = 1e100
_LABEL_DISTANCE = 0.085

MAX_PLAIN_SPAN = 100.0
"""A logarithmic axis has plain numbers as labels up to this ratio of its ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The line of one scheme.

    Attributes:
        style: colour, marker and dash.
        x: means over seeds.
        y: means over seeds.
        low: smallest y over seeds.
        high: largest y over seeds.
        seeds: how many seeds there are.
    """

    style: SchemeStyle
    x: FloatArray
    y: FloatArray
    low: FloatArray
    high: FloatArray
    seeds: int


RANGE = ("mean", "least", "most", "seeds")
"""Columns of what a curve shows over seeds."""


def tabulate_curves(curves: Sequence[Curve], *cells: object) -> list[tuple[object, ...]]:
    """The points of curves as rows: `cells`, the name of the line, x, and the columns of `RANGE`."""
    return [
        (*cells, line.style.label, *map(float, point), line.seeds)
        for line in curves
        for point in zip(line.x, line.y, line.low, line.high, strict=True)
    ]


def build_curve(style: SchemeStyle, runs: Sequence[Run], x: Value, y: Value) -> Curve | None:
    """The line of one scheme; None if no round has a value for every seed.

    Args:
        style: colour, marker and dash.
        runs: one run per seed.
        x: horizontal value of a record; rounds where it is None are left out.
        y: vertical value, likewise.
    """
    points = [_collect_points(run, x, y) for run in runs]
    # Runs that stop at a budget differ in length; a mean over fewer seeds would bend the line.
    rounds = sorted(set.intersection(*(set(seed) for seed in points)))
    if not rounds:
        return None
    table = np.array([[seed[number] for number in rounds] for seed in points])
    xs, ys = table[..., 0], table[..., 1]
    return Curve(style, xs.mean(axis=0), ys.mean(axis=0), ys.min(axis=0), ys.max(axis=0), len(runs))


def _collect_points(run: Run, x: Value, y: Value) -> dict[int, tuple[float, float]]:
    found = {}
    for record in run.records:
        right, up = x(record, run), y(record, run)
        # Beyond this the axes overflow; NaN and infinity fail the comparison as well.
        if right is not None and up is not None and abs(right) <= _MAX_DRAWN and abs(up) <= _MAX_DRAWN:
            found[record.round] = (right, up)
    return found


def read_field(name: str, record: RoundRecord, _run: Run) -> float:
    """A field of a record; with `partial`, a `Value`."""
    return float(getattr(record, name))


def draw_curves(axes: Axes, curves: Sequence[Curve], *, named: bool = True) -> None:
    """Draws lines and bands, each with its name at the end unless there is only one anyway."""
    for line in curves:
        style = line.style
        axes.fill_between(line.x, line.low, line.high, color=style.colour, alpha=0.16, linewidth=0)
        axes.plot(line.x, line.y, color=style.colour, linestyle=style.dash)
        axes.plot(line.x[-1:], line.y[-1:], color=style.colour, marker=style.marker)
    if named:
        _name_ends(axes, curves)


def _name_ends(axes: Axes, curves: Sequence[Curve]) -> None:
    """Writes the names to the right of the panel, in the order of the line ends and without overlap."""
    to_axes = (axes.transData + axes.transAxes.inverted()).transform
    ends = sorted(((to_axes((c.x[-1], c.y[-1])), c) for c in curves), key=lambda end: float(end[0][1]))
    heights = space_apart([float(end[1]) for end, _ in ends], _LABEL_DISTANCE)
    for (end, line), height in zip(ends, heights, strict=True):
        axes.annotate(
            line.style.short,
            xy=(float(end[0]), float(end[1])),
            xytext=(1.03, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=line.style.colour,
            fontweight="bold",
            va="center",
            parse_math=False,
            arrowprops={
                "arrowstyle": "-",
                "color": line.style.colour,
                "alpha": 0.45,
                "linewidth": 0.8,
                "relpos": (0.0, 0.5),
            },
        )


def space_apart(heights: Sequence[float], distance: float) -> list[float]:
    """Moves sorted heights at least `distance` apart, around their mean, within [0, 1] if they fit."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + distance) if moved else height)
    if not moved:
        return []
    # The loop above only moves up; shift everything back down by as much on average.
    shift = (sum(moved) - sum(heights)) / len(moved)
    risen = [max(height - shift, place * distance) for place, height in enumerate(moved)]
    return [min(height, 1.0 - place * distance) for place, height in enumerate(risen[::-1])][::-1]


def draw_accuracy(
    groups: Mapping[str, tuple[Run, ...]],
    styles: Mapping[str, SchemeStyle],
    x: Value,
    x_label: str,
    target: float | None,
    right: float = 0.0,
) -> Drawing | None:
    """Draws accuracy over time, energy or rounds; None if no round was evaluated.

    Args:
        groups: runs of each scheme.
        styles: style of each scheme.
        x: horizontal value of a record.
        x_label: label of the horizontal axis.
        target: accuracy to mark, or None.
        right: minimum right end of the horizontal axis.
    """
    curves = _build_curves(groups, styles, x, lambda record, _: record.accuracy)
    if not curves:
        return None
    figure, (axes,) = new_figure(1, 3.5)
    if target is not None:
        axes.axhline(target, color=MUTED, linewidth=1.0, linestyle=(0, (2, 2)))
        axes.set_title(
            f"dotted: target {target:g}", color=MUTED
        )  # inside the panel it would hide the ends of lines
    axes.margins(x=0.01)
    _set_limits(axes, curves, target, right)
    axes.set_ylabel("accuracy")
    _format_x_axis(axes, x_label)
    draw_curves(axes, curves)
    return Drawing(figure, ("line", x_label, *RANGE), tabulate_curves(curves))


def _set_limits(axes: Axes, curves: Sequence[Curve], target: float | None, right: float = 0.0) -> None:
    """Sets both axes. Must happen before names are placed, as their heights depend on it."""
    values = np.concatenate([part for line in curves for part in (line.low, line.high)])
    values = np.append(values, target) if target is not None else values
    room = 0.05 * float(np.ptp(values)) or 0.05
    axes.set_ylim(float(values.min()) - room, float(values.max()) + room)
    rights = np.append(np.concatenate([line.x for line in curves]), right)
    axes.set_xlim(min(0.0, float(rights.min())), float(rights.max()) * 1.02 or 1.0)


def _format_x_axis(axes: Axes, label: str) -> None:
    axes.set_xlabel(label)
    if label == "global round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(6))


def _build_curves(
    groups: Mapping[str, tuple[Run, ...]], styles: Mapping[str, SchemeStyle], x: Value, y: Value
) -> list[Curve]:
    # A scheme without a single value gets no line.
    found = (build_curve(styles[scheme], runs, x, y) for scheme, runs in groups.items())
    return [line for line in found if line is not None]


def draw_budget(groups: Mapping[str, tuple[Run, ...]], styles: Mapping[str, SchemeStyle]) -> Drawing | None:
    """Draws the share of the time and energy budgets left after each round; None without budgets."""
    panels = [
        (title, curves)
        for title, left in (("time left", _share_of_seconds_left), ("energy left", _share_of_joules_left))
        if (curves := _build_curves(groups, styles, partial(read_field, "round"), left))
    ]
    if not panels:
        return None
    figure, all_axes = new_figure(len(panels), 2.6)
    for axes, (title, curves) in zip(all_axes, panels, strict=True):
        axes.set_title(f"{title}, share of the budget")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        _set_limits(axes, curves, 0.0)
        axes.axhline(0.0, color=MUTED, linewidth=1.2)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        draw_curves(axes, curves)
    all_axes[-1].set_xlabel("global round")
    return _tabulate_panels(figure, panels)


def _tabulate_panels(figure: Figure, panels: Sequence[tuple[str, Sequence[Curve]]]) -> Drawing:
    rows = [row for title, curves in panels for row in tabulate_curves(curves, title)]
    return Drawing(figure, ("panel", "line", "global round", *RANGE), rows)


def _share_of_seconds_left(record: RoundRecord, run: Run) -> float | None:
    return 1.0 - record.seconds / run.fleet.seconds_budget if run.fleet.seconds_budget else None


def _share_of_joules_left(record: RoundRecord, run: Run) -> float | None:
    return 1.0 - record.joules / run.fleet.joules_budget if run.fleet.joules_budget else None


def _use_plain_labels(axes: Axes, span: float) -> None:
    """Labels a logarithmic axis of few decades with numbers like 0.3 instead of 3 × 10⁻¹."""
    if span > MAX_PLAIN_SPAN:
        return
    marks = (1.0, 2.0, 5.0) if span > 3 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    axes.yaxis.set_major_locator(LogLocator(subs=marks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_estimates(
    groups: Mapping[str, tuple[Run, ...]], styles: Mapping[str, SchemeStyle]
) -> Drawing | None:
    """Draws σ² and G² over rounds on a logarithmic scale; values ≤ 0 are left out."""
    panels = [
        (title, curves)
        for title, value in (
            ("gradient noise σ²", lambda record, _: record.sigma2 if record.sigma2 > 0 else None),
            ("squared gradient norm G²", lambda record, _: record.g2 if record.g2 > 0 else None),
        )
        if (curves := _build_curves(groups, styles, partial(read_field, "round"), value))
    ]
    if not panels:
        return None
    figure, all_axes = new_figure(len(panels), 2.6)
    for axes, (title, curves) in zip(all_axes, panels, strict=True):
        axes.set_title(title)
        axes.set_yscale("log")
        axes.grid(visible=True, which="minor", color=GRID, linewidth=0.3)
        low, high = min(line.low.min() for line in curves), max(line.high.max() for line in curves)
        # Room above and below, in the proportions of a logarithmic axis.
        axes.set_ylim(low / 1.25, high * 1.25)
        _use_plain_labels(axes, high / low)
        axes.set_xlim(0.0, max(line.x.max() for line in curves) * 1.02 or 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        draw_curves(axes, curves)
    all_axes[-1].set_xlabel("global round")
    return _tabulate_panels(figure, panels)
