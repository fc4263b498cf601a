"""The effect of each ingredient of HCEF+: a table of the runs of `ablation.sh`.

    python experiments/ablation.py OUT [PLACE]

The measure of a run is its mean accuracy over the last three rounds and over all rounds. Differences to the
complete scheme are computed seed by seed, with 95 % confidence intervals over seeds (Student's t). With
PLACE, logs and table are copied there.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from cfel.report import Run, load_runs, write_summary
from cfel.report.summary import confidence_half_width
from cfel.reproduce.copy_results import copy_results
from cfel.wording import plural

LAST = 3
WHOLE = "nothing"


@dataclass(frozen=True, slots=True)
class Row:
    """The runs without one ingredient; one value per seed.

    Attributes:
        last: mean accuracy over the last rounds, in percent.
        all: mean accuracy over all rounds, in percent.
        last_points, all_points: the same minus the values of the complete scheme.
    """

    last: tuple[float, ...]
    all: tuple[float, ...]
    last_points: tuple[float, ...]
    all_points: tuple[float, ...]


def build_rows(out: Path) -> tuple[list[int], dict[str, Row]]:
    """The seeds that every variant has, and one row per variant, the largest loss first."""
    runs = {
        path.name.removeprefix("without-"): {run.seed: run for run in load_runs(path)}
        for path in sorted(out.glob("without-*"))
    }
    seeds = sorted(set.intersection(*(set(own) for own in runs.values())))
    whole = _compute_means(runs[WHOLE], seeds)
    found = {}
    for name, own in runs.items():
        last, over_all = _compute_means(own, seeds)
        found[name] = Row(last, over_all, _subtract(last, whole[0]), _subtract(over_all, whole[1]))
    return seeds, dict(sorted(found.items(), key=lambda item: mean(item[1].last_points)))


def format_table(found: Mapping[str, Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| Without | Last three rounds | Difference | All rounds | Difference |",
        "|---|---|---|---|---|",
    ]
    for name, row in found.items():
        differences = (
            [_format_interval(row.last_points), _format_interval(row.all_points)]
            if name != WHOLE
            else ["", ""]
        )
        cells = (
            f"`{name}`",
            f"{mean(row.last):.1f} %",
            differences[0],
            f"{mean(row.all):.1f} %",
            differences[1],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _compute_means(
    own: Mapping[int, Run], seeds: Sequence[int]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    values = [[100 * r.accuracy for r in own[seed].records if r.accuracy is not None] for seed in seeds]
    return tuple(mean(each[-LAST:]) for each in values), tuple(mean(each) for each in values)


def _subtract(values: Sequence[float], others: Sequence[float]) -> tuple[float, ...]:
    return tuple(value - other for value, other in zip(values, others, strict=True))


def _format_interval(values: Sequence[float]) -> str:
    width = confidence_half_width(values)
    return f"{mean(values):+.1f}" + ("" if width is None else f" ± {width:.1f}")


def main(out: Path, place: Path | None) -> None:
    """Prints the table, and copies the results if there is a place."""
    seeds, found = build_rows(out)
    document = {name: asdict(row) for name, row in found.items()}
    write_summary(out, {"item": "ablation", "seeds": seeds, "without": document})
    print(f"{plural(len(seeds), 'seed')}; differences in percentage points, with 95 % intervals\n")
    print(format_table(found))
    if place is not None:
        copy_results(out, place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
