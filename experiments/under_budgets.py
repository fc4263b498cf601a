"""Schemes and local algorithms under the same budgets: a table of the runs of `under_budgets.sh`.

    python experiments/under_budgets.py OUT TARGET [PLACE]

The first column of figures is the accuracy at the moment when the first of both budgets is used up,
interpolated between rounds; a run that ends before has its last one. Points are differences to CEF, paired by
seed. Costs to the target are realised, and
gains are geometric means over CEF with 95 % intervals. With PLACE, logs and table are copied there.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from cfel.report import Run, summarise, write_summary
from cfel.report.load import find_runs, load_run
from cfel.report.summary import confidence_half_width, find_accuracy_at_budget
from cfel.reproduce.copy_results import copy_results


def load_rows(out: Path) -> tuple[Run, ...]:
    """The runs, each with its folder's name in place of its scheme: a row may change more than that."""
    return tuple(replace(load_run(path), scheme=path.parent.name) for path in find_runs(out))


def find_accuracy(run: Run) -> float:
    """The accuracy when the first of both budgets is used up, or at the end of the run if none is."""
    seconds, joules = run.fleet.seconds_budget or np.inf, run.fleet.joules_budget or np.inf
    return find_accuracy_at_budget(run.records, seconds, joules)


def summarise_rows(runs: Sequence[Run], target: float) -> dict[str, Any]:
    """What `summarise` finds, with every row's accuracy at the budget by seed."""
    document = summarise(runs, target)
    for name, row in document["schemes"].items():
        row["accuracy_at_budget"] = {str(run.seed): find_accuracy(run) for run in runs if run.scheme == name}
    return document


def format_table(document: Mapping[str, Any]) -> str:
    """The rows, best accuracy first."""
    lines = [
        "| Row | Accuracy at the budget | Points | Reached | Time | Energy | Gain in time | Gain in energy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = document["schemes"].items()
    for name, row in sorted(rows, key=lambda item: -mean(item[1]["accuracy_at_budget"].values())):
        found = row["accuracy_at_budget"]
        points = _format_points(found, document["schemes"]["cef"]["accuracy_at_budget"])
        accuracy = f"{100 * mean(found.values()):.1f} %"
        cells = [f"`{name}`", accuracy, points, f"{row['reached']} of {len(found)}", *_format_costs(row)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _format_points(found: Mapping[str, float], reference: Mapping[str, float]) -> str:
    """The mean difference to the reference in percentage points, with half of its 95 % interval."""
    points = [100 * (found[seed] - reference[seed]) for seed in found if seed in reference]
    if not any(points):
        return ""
    width = confidence_half_width(points)
    text = f"{mean(points):+.1f}" + ("" if width is None else f" ± {width:.1f}")
    return text.replace("-", "−")


def _format_costs(row: Mapping[str, Any]) -> list[str]:
    # A mean over the seeds that reached the target would favour those that reach it only when it is easy.
    if row["reached"] < len(row["per_seed"]):
        return ["–"] * 4
    gains = []
    for name in ("gain_seconds", "gain_joules"):
        interval = row["interval"][name]
        ends = "" if interval is None else f" ({interval[0]:.2f}–{interval[1]:.2f})"
        gains.append("–" if row[name] is None else f"{row[name]:.2f}×{ends}")
    return [f"{row['seconds_to_target'] / 1e4:.2f}·10⁴ s", f"{row['joules_to_target'] / 1e3:.2f} kJ", *gains]


def main(out: Path, target: float, place: Path | None) -> None:
    """Prints the table, and copies the results if there is a place."""
    document = summarise_rows(load_rows(out), target)
    print(format_table(document))
    write_summary(out, {"item": "under_budgets", **document})
    if place is not None:
        copy_results(out, place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
