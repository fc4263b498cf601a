"""The final accuracy of a sweep by the values of one of its keys."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cfel.report.curves import Curve, draw_curves
from cfel.report.load import Run, name_setting
from cfel.report.style import assign_styles, new_figure
from cfel.report.summary import measure


def draw_by_key(runs: Sequence[Run], key: str) -> Figure | None:
    """Draws one line per combination of the other keys; None if the key has one value, or none is measured.

    Values are drawn at equal distances, in the order of the sweep: numbers of any scale, or names.
    """
    found = _collect(runs, key)
    values = list(dict.fromkeys(run.setting[key] for run in runs))
    if len(values) < 2 or not found:
        return None
    styles = assign_styles(tuple(found))
    figure, (axes,) = new_figure(1, 3.5)
    curves = []
    for name, by_value in found.items():
        there = [(place, by_value[value]) for place, value in enumerate(values) if value in by_value]
        columns = [
            np.array([function(seeds) for _, seeds in there], dtype=float) for function in (np.mean, min, max)
        ]
        curves.append(Curve(styles[name], np.array([float(place) for place, _ in there]), *columns))
    axes.set_xticks(range(len(values)), [str(value) for value in values], parse_math=False)
    axes.set_xlim(-0.2, len(values) - 0.8)
    ends = np.concatenate([part for curve in curves for part in (curve.low, curve.high)])
    room = 0.05 * float(np.ptp(ends)) or 0.05
    # Before the lines are named, as the places of names depend on it.
    axes.set_ylim(float(ends.min()) - room, float(ends.max()) + room)
    axes.set_xlabel(key)
    axes.set_ylabel("final accuracy")
    draw_curves(axes, curves)
    for curve in curves:
        axes.plot(curve.x, curve.y, color=curve.style.colour, marker=curve.style.marker, linestyle="none")
    return figure


def _collect(runs: Sequence[Run], key: str) -> dict[str, dict[Any, list[float]]]:
    """Final accuracies of all seeds by value of the key, for each combination of the other keys."""
    found: dict[str, dict[Any, list[float]]] = {}
    for run in runs:
        accuracy = measure(run, None)["final_accuracy"]
        if accuracy is not None:
            others = {name: value for name, value in run.setting.items() if name != key}
            line = found.setdefault(name_setting(others) or "all", {})
            line.setdefault(run.setting[key], []).append(accuracy)
    return found
