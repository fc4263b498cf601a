"""What the gain over CEF depends on: a table of the runs of `differences.sh`.

    python experiments/differences.py OUT LOWEST HIGHEST [PLACE]

A gain is the time or energy of CEF to an accuracy divided by that of a scheme. The table shows geometric
means over accuracies from LOWEST to HIGHEST in steps of one point, as the gain to a single accuracy varies by
a whole round; accuracies that a run does not reach are left out. With several seeds it shows the range. With
PLACE, logs and table are copied there.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, mean

from cfel.report import Run, load_runs, write_summary
from cfel.report.summary import measure
from cfel.reproduce.copy_results import copy_results

SCHEMES = ("hcef", "hcef_plus")
NEEDS = ("seconds_to_target", "joules_to_target")
Gains = dict[str, tuple[float, float]]


def compute_gains(runs: Mapping[str, Run], targets: Sequence[float]) -> Gains:
    """The gain in time and in energy of each scheme over CEF."""
    needed = [{name: measure(run, target) for name, run in runs.items()} for target in targets]
    found: Gains = {}
    for scheme in SCHEMES:
        ratios = []
        for need in needed:
            pair = [_divide(need["cef"][what], need[scheme][what]) for what in NEEDS]
            if pair[0] is not None and pair[1] is not None:
                ratios.append((pair[0], pair[1]))
        found[scheme] = (geometric_mean(r[0] for r in ratios), geometric_mean(r[1] for r in ratios))
    return found


def _divide(reference: float | None, own: float | None) -> float | None:
    return None if reference is None or own is None else reference / own


def group_by_seed(change: Path) -> dict[int, dict[str, Run]]:
    """The runs of a change by seed; only seeds that all schemes have."""
    found: dict[int, dict[str, Run]] = {}
    for run in load_runs(change):
        found.setdefault(run.seed, {})[run.scheme] = run
    return {seed: runs for seed, runs in sorted(found.items()) if len(runs) == 1 + len(SCHEMES)}


def main(out: Path, lowest: float, highest: float, place: Path | None) -> None:
    """Prints the table, and copies the results if there is a place."""
    targets = [lowest + 0.01 * step for step in range(round(100 * (highest - lowest)) + 1)]
    print("| Changed | Seeds | HCEF: time | energy | ρ, θ | HCEF+: time | energy | ρ, θ |")
    print("|---|---|---|---|---|---|---|---|")
    document = {}
    for change in sorted(path for path in out.iterdir() if path.is_dir() and path.name != "figures"):
        seeds = group_by_seed(change)
        values = {seed: compute_gains(runs, targets) for seed, runs in seeds.items()}
        document[change.name] = {str(seed): value for seed, value in values.items()}
        cells = [f"`{change.name}`", str(len(seeds))]
        for scheme in SCHEMES:
            cells += [_format_range([value[scheme][which] for value in values.values()]) for which in (0, 1)]
            records = [record for runs in seeds.values() for record in runs[scheme].records]
            cells.append(
                f"{mean(r.rho_mean for r in records):.2f}, {mean(r.theta_mean for r in records):.2f}"
            )
        print(f"| {' | '.join(cells)} |")
    write_summary(out, {"item": "differences", "targets": targets, "gains": document})
    if place is not None:
        copy_results(out, place)


def _format_range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return f"{low}×" if low == high else f"{low}–{high}×"


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        float(sys.argv[2]),
        float(sys.argv[3]),
        Path(sys.argv[4]) if len(sys.argv) > 4 else None,
    )
