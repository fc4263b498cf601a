"""The results of a sweep by the values of one of its keys: final accuracy, and costs to the target."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from cfel.report.curves import RANGE, Curve, draw_curves, tabulate_curves
from cfel.report.load import Run, name_setting
from cfel.report.style import Drawing, SchemeStyle, assign_styles, new_figure
from cfel.report.summary import measure

MAX_LINES = 12
"""A figure of a sweep shows at most so many lines: more cannot be told apart."""

Measured = Callable[[Run], float | None]
Found = dict[str, dict[Any, list[float]]]
"""What was measured: by line, by value of the key, one number per seed."""


def draw_accuracy_by_key(runs: Sequence[Run], key: str) -> Drawing | None:
    """Draws the final accuracy; see `draw_by_key`."""
    return draw_by_key(runs, key, {"final accuracy": partial(_measure, "final_accuracy", None)})


def draw_costs_by_key(runs: Sequence[Run], key: str, target: float | None) -> Drawing | None:
    """Draws time and energy to the target, where all seeds reached it; see `draw_by_key`."""
    both = {"seconds to the target": "seconds_to_target", "joules to the target": "joules_to_target"}
    return draw_by_key(runs, key, {title: partial(_measure, name, target) for title, name in both.items()})


def _measure(name: str, target: float | None, run: Run) -> float | None:
    return measure(run, target)[name]


def draw_by_key(runs: Sequence[Run], key: str, panels: dict[str, Measured]) -> Drawing | None:
    """Draws one line per combination of the other keys; None if the key has one value, or none is measured.

    Values are drawn at equal distances, in the order of the sweep: numbers of any scale, or names.
    """
    values = list(dict.fromkeys(run.setting[key] for run in runs))
    styles = assign_styles(tuple(dict.fromkeys(_name_line(run, key) for run in choose_lines(runs))))
    drawn = {
        title: _build_lines(_collect(runs, key, value), values, styles) for title, value in panels.items()
    }
    drawn = {title: curves for title, curves in drawn.items() if curves}
    if len(values) < 2 or not drawn:
        return None
    figure, all_axes = new_figure(len(drawn), 3.5 if len(drawn) == 1 else 2.6)
    for axes, (title, curves) in zip(all_axes, drawn.items(), strict=True):
        axes.set_title(title)
        _draw_lines(axes, curves, values)
    all_axes[-1].set_xlabel(key, parse_math=False)
    rows = [row for title, curves in drawn.items() for row in tabulate_curves(curves, title)]
    named = [(title, line, values[round(float(place))], *rest) for title, line, place, *rest in rows]  # type: ignore[arg-type]
    return Drawing(figure, ("panel", "line", key, *RANGE), named)


def choose_lines(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs of the settings with the best final accuracy, at most `MAX_LINES`, in the order given."""
    best: dict[str, float] = {}
    for run in runs:
        accuracy = measure(run, None)["final_accuracy"]
        best[run.scheme] = max(best.get(run.scheme, -1.0), -1.0 if accuracy is None else accuracy)
    kept = sorted(best, key=lambda name: -best[name])[:MAX_LINES]
    return tuple(run for run in runs if run.scheme in kept)


def _name_line(run: Run, key: str) -> str:
    """The values of the other keys."""
    return name_setting({name: value for name, value in run.setting.items() if name != key}) or "all"


def _collect(runs: Sequence[Run], key: str, value: Measured) -> Found:
    """What was measured with all seeds, by value of the key, for each combination of the other keys."""
    found: dict[str, dict[Any, list[float | None]]] = {}
    for run in runs:
        found.setdefault(_name_line(run, key), {}).setdefault(run.setting[key], []).append(value(run))
    return {
        line: {
            at: [each for each in seeds if each is not None] for at, seeds in by.items() if None not in seeds
        }
        for line, by in found.items()
    }


def _build_lines(found: Found, values: Sequence[Any], styles: dict[str, SchemeStyle]) -> list[Curve]:
    curves = []
    for name, by_value in found.items():
        there = [(place, by_value[value]) for place, value in enumerate(values) if value in by_value]
        if there and name in styles:
            mean, least, most = (
                np.array([function(seeds) for _, seeds in there], dtype=float)
                for function in (np.mean, min, max)
            )
            places = np.array([float(place) for place, _ in there])
            curves.append(Curve(styles[name], places, mean, least, most, len(there[0][1])))
    return curves


def _draw_lines(axes: Axes, curves: Sequence[Curve], values: Sequence[Any]) -> None:
    axes.set_xticks(range(len(values)), [str(value) for value in values], parse_math=False)
    axes.set_xlim(-0.2, len(values) - 0.8)
    ends = np.concatenate([part for curve in curves for part in (curve.low, curve.high)])
    room = 0.05 * float(np.ptp(ends)) or 0.05 * max(abs(float(ends.max())), 1.0)
    # Before the lines are named, as the places of names depend on it.
    axes.set_ylim(float(ends.min()) - room, float(ends.max()) + room)
    draw_curves(axes, curves, named=len(curves) > 1)
    for curve in curves:
        axes.plot(curve.x, curve.y, color=curve.style.colour, marker=curve.style.marker, linestyle="none")
