"""What choices about learning bring at equal cost: a table of the runs of `learning.sh`.

    python experiments/learning.py OUT TARGET [PLACE]

Accuracies are of held-out training samples when the first of both budgets is used up. Gains are in realised
time and energy to TARGET, over the same scheme without the change, as geometric means over seeds. With PLACE,
logs and table are copied there.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from cfel.report import Run, load_runs, write_summary
from cfel.report.summary import find_accuracy_at_budget, geometric_mean, measure
from cfel.reproduce.copy_results import copy_results

SCHEMES = ("cef", "hcef_plus")
COSTS = ("seconds_to_target", "joules_to_target")
Row = dict[str, dict[str, float | None]]


def compare_runs(plain: Sequence[Run], changed: Sequence[Run], target: float) -> dict[str, float | None]:
    """Final accuracy of the changed runs, and their gains over the plain ones with the same seeds."""
    before = {run.seed: measure(run, target) for run in plain}
    after = {run.seed: measure(run, target) for run in changed}
    found: dict[str, float | None] = {"accuracy_at_budget": mean(map(_find_accuracy, changed))}
    for cost in COSTS:
        ratios = [
            _divide(before[seed][cost], values[cost]) for seed, values in after.items() if seed in before
        ]
        found[cost.replace("_to_target", "_gain")] = geometric_mean(ratios)
    return found


def _find_accuracy(run: Run) -> float:
    seconds, joules = run.fleet.seconds_budget or math.inf, run.fleet.joules_budget or math.inf
    return find_accuracy_at_budget(run.records, seconds, joules)


def _divide(reference: float | None, own: float | None) -> float | None:
    return None if reference is None or own is None else reference / own


def build_rows(out: Path, target: float) -> dict[str, Row]:
    """For each change, what it does to each scheme."""
    changes = sorted(path.name for path in out.iterdir() if path.is_dir() and path.name != "figures")
    runs = {change: {name: _select(out / change, name) for name in SCHEMES} for change in changes}
    return {
        change: {
            name: compare_runs(runs["nothing"][name], members, target)
            for name, members in by_scheme.items()
            if members
        }
        for change, by_scheme in runs.items()
    }


def _select(change: Path, scheme: str) -> list[Run]:
    # By its folder: a scheme with variants has another name.
    return list(load_runs(change / scheme)) if (change / scheme).is_dir() else []


def format_table(rows: Mapping[str, Row]) -> str:
    """The table; schemes side by side."""
    lines = [
        "| Changed | CEF | gain in time, energy | HCEF+ | gain in time, energy |",
        "|---|---|---|---|---|",
    ]
    for change, row in rows.items():
        cells = [f"`{change}`"]
        for scheme in SCHEMES:
            values = row.get(scheme)
            accuracy = None if values is None else values["accuracy_at_budget"]
            cells.append("–" if accuracy is None else f"{100 * accuracy:.1f} %")
            gains = [None if values is None else values[f"{name}_gain"] for name in ("seconds", "joules")]
            cells.append(", ".join("–" if gain is None else f"{gain:.2f}×" for gain in gains))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(out: Path, target: float, place: Path | None) -> None:
    """Prints the table, and copies the results if there is a place."""
    rows = build_rows(out, target)
    print(format_table(rows))
    write_summary(out, {"item": "learning", "target": target, "changes": rows})
    if place is not None:
        copy_results(out, place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
