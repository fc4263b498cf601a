"""What each ingredient of HCEF+ brings: a table of the runs that `ablation.sh` made.

    python experiments/ablation.py OUT [PLACE]

A run counts by its mean accuracy, over its last three rounds and over all of them. Differences are taken seed
by seed against the whole scheme; their 95 % intervals (Student's t) are over seeds. With PLACE, logs and
table are copied there.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from cfel.report import Run, load_runs, write_summary
from cfel.report.summary import confidence_half_width
from cfel.reproduce.landing import land

LAST = 3
WHOLE = "nothing"


@dataclass(frozen=True, slots=True)
class Row:
    """Runs without one ingredient; a value for each seed.

    Attributes:
        last: mean accuracy of the last rounds, in percent.
        all: mean accuracy of all rounds, in percent.
        last_points, all_points: minus those of the whole scheme.
    """

    last: tuple[float, ...]
    all: tuple[float, ...]
    last_points: tuple[float, ...]
    all_points: tuple[float, ...]


def rows(out: Path) -> tuple[list[int], dict[str, Row]]:
    """The seeds that every variant has, and what came of them, the greatest loss first."""
    runs = {
        path.name.removeprefix("without-"): {run.seed: run for run in load_runs(path)}
        for path in sorted(out.glob("without-*"))
    }
    seeds = sorted(set.intersection(*(set(own) for own in runs.values())))
    whole = _accuracies(runs[WHOLE], seeds)
    found = {}
    for name, own in runs.items():
        last, over_all = _accuracies(own, seeds)
        found[name] = Row(last, over_all, _minus(last, whole[0]), _minus(over_all, whole[1]))
    return seeds, dict(sorted(found.items(), key=lambda item: mean(item[1].last_points)))


def table(found: Mapping[str, Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| Without | Last three rounds | Difference | All rounds | Difference |",
        "|---|---|---|---|---|",
    ]
    for name, row in found.items():
        apart = [_interval(row.last_points), _interval(row.all_points)] if name != WHOLE else ["", ""]
        cells = (f"`{name}`", f"{mean(row.last):.1f} %", apart[0], f"{mean(row.all):.1f} %", apart[1])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _accuracies(own: Mapping[int, Run], seeds: Sequence[int]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    values = [[100 * r.accuracy for r in own[seed].records if r.accuracy is not None] for seed in seeds]
    return tuple(mean(each[-LAST:]) for each in values), tuple(mean(each) for each in values)


def _minus(values: Sequence[float], others: Sequence[float]) -> tuple[float, ...]:
    return tuple(value - other for value, other in zip(values, others, strict=True))


def _interval(values: Sequence[float]) -> str:
    width = confidence_half_width(values)
    return f"{mean(values):+.1f}" + ("" if width is None else f" ± {width:.1f}")


def main(out: Path, place: Path | None) -> None:
    """Prints the table, and lands it if there is a place."""
    seeds, found = rows(out)
    document = {name: asdict(row) for name, row in found.items()}
    write_summary(out, {"item": "ablation", "seeds": seeds, "without": document})
    print(f"{len(seeds)} seeds; differences in points, with 95 % intervals\n\n{table(found)}")
    if place is not None:
        land(out, place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
