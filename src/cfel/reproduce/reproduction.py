"""Reproducing a table or figure of the paper: runs, the summary, and the page that compares.

Each run has a directory of its own, `<scheme>/seed-<n>` or `<value>/<scheme>/seed-<n>`; one that exists is
gone on with, one that is finished is left alone. The summary is made from what the directories hold, or from
those of their schemes and seeds that were named.
"""

import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cfel.api.runs import PlacedRun, RunOptions, run_all
from cfel.durable import replace_file
from cfel.errors import RunDirectoryError
from cfel.report import Run, load_runs, summarise, write_summary
from cfel.report.pictures import Picture, Plan, draw_pictures, drawn
from cfel.report.reproduction import (
    Marks,
    Measure,
    Reproduction,
    TextTable,
    gain_figure,
    marked_accuracy_figure,
    sweep_figure,
    write_reproduction,
)
from cfel.reproduce import tables
from cfel.reproduce.items import Asked, PlannedRun, base_experiment
from cfel.reproduce.paper_values import PaperValues, paper_values
from cfel.reproduce.rates import best_rates, rates_toml
from cfel.runlog import RoundRecord, holds_run

TO_TARGET = (
    Measure("seconds_to_target", "time to the target, 10⁴ s", 1e4),
    Measure("joules_to_target", "energy to the target, kJ", 1e3),
)
AT_THE_END = (Measure("final_accuracy", "accuracy in the end"),)
# Where the paper's Table 1 is one of a sweep's settings.
_DEFAULT_SETTING = {"noniid": 1.0}


def carry_out(runs: list[PlannedRun], out: Path, options: RunOptions) -> None:
    """Runs what is not finished yet."""
    run_all([PlacedRun(run.name, run.experiment, out / run.place) for run in runs], out, options)


def reproduced(asked: Asked, out: Path) -> tuple[dict[str, Any], tuple[TextTable, ...]]:
    """Writes `summary.json`, `report.html` and figures from the runs in `out`.

    Args:
        asked: what was to be reproduced.
        out: the item's directory.

    Returns:
        The document of `summary.json`, and the tables to show.

    Raises:
        RunDirectoryError: `out` holds no run, or none that was asked for.
    """
    head = {"item": asked.item, "dataset": asked.dataset, "scale": asked.scale}
    target = base_experiment(asked).simulation.target
    paper = paper_values(asked.dataset)
    build = _single if asked.sweep is None else _swept
    document, shown, content = build(asked, out, target, paper)
    document = {**head, **document, "paper": _paper_table(paper)}
    write_summary(out, document)
    write_reproduction(out, content)
    return document, shown


def _single(
    asked: Asked, out: Path, target: float | None, paper: PaperValues
) -> tuple[dict[str, Any], tuple[TextTable, ...], Reproduction]:
    """Table 1, the curves, or σ² and G²: one setting."""
    runs = _asked_for(load_runs(out), asked, out)
    document = summarise(runs, target)
    document["at_common_accuracy"] = summarise(runs, common_accuracy(runs))
    document["learning_rate"] = _rates(runs)
    document["estimates"] = _estimates(runs)
    if asked.item == "estimates":
        shown: tuple[TextTable, ...] = (tables.estimates_table(document),)
    else:
        shown = (
            tables.comparison_table(document, paper),
            tables.gain_table(document, paper),
            tables.common_table(document),
        )
    pictures = (*_drawn(_paper_pictures(runs, document, target, paper)), *draw_pictures(runs, target))
    return document, shown, Reproduction(_title(asked), _notes(asked, paper), shown, pictures, runs)


def _swept(
    asked: Asked, out: Path, target: float | None, paper: PaperValues
) -> tuple[dict[str, Any], tuple[TextTable, ...], Reproduction]:
    """A sweep: a summary of each setting, and a figure over all of them."""
    sweep = asked.sweep
    assert sweep is not None  # noqa: S101 — asked only then
    present = [value for value in sweep.values if _holds_runs(out / f"{value:g}")]
    places = {value: out / f"{value:g}" for value in present or sweep.values}
    runs = {value: _asked_for(load_runs(place), asked, place) for value, place in places.items()}
    values = {value: summarise(own, target) for value, own in runs.items()}
    document: dict[str, Any] = {
        "target": target,
        "key": sweep.key,
        "values": {f"{value:g}": summary for value, summary in values.items()},
        "learning_rate": _rates(next(iter(runs.values()))),
    }
    measures: tuple[Measure, ...] = TO_TARGET
    if asked.item == "rates":
        document |= _choice(asked, out, runs)
        measures, shown = AT_THE_END, (tables.rates_table(document),)
    else:
        shown = (tables.sweep_table(document),)
    figure = partial(sweep_figure, values, sweep.axis, measures, _sweep_marks(asked, target, paper))
    caption = "Means over seeds; a setting in which the target was not reached with every seed has no mark."
    pictures = _drawn([Plan("sweep", f"Against the {sweep.axis}", caption, figure)])
    all_runs = tuple(run for own in runs.values() for run in own)
    content = Reproduction(_title(asked), _notes(asked, paper), shown, pictures, all_runs)
    return document, shown, content


def _asked_for(runs: tuple[Run, ...], asked: Asked, place: Path) -> tuple[Run, ...]:
    """The runs of the schemes and seeds that were named; all of them where none was."""
    found = tuple(
        run
        for run in runs
        if (asked.seeds is None or run.seed in asked.seeds)
        and (asked.schemes is None or run.scheme in asked.schemes)
    )
    if not found:
        there = ", ".join(f"{run.scheme} with seed {run.seed}" for run in runs)
        raise RunDirectoryError(f"{place} holds no run of the schemes and seeds named; it has {there}")
    return found


def _holds_runs(path: Path) -> bool:
    return any(holds_run(log.parent) for log in path.glob("*/*/rounds.jsonl"))


def _choice(asked: Asked, out: Path, runs: Mapping[float, tuple[Run, ...]]) -> dict[str, Any]:
    """The learning rate of each scheme, also written to `rates.toml`."""
    chosen, held_out = best_rates(runs)
    replace_file(out / "rates.toml", rates_toml(asked.dataset, asked.scale, chosen).encode())
    return {"chosen": chosen, "held_out": held_out}


def common_accuracy(runs: tuple[Run, ...]) -> float | None:
    """The highest accuracy that every run reached; None if one was never evaluated."""
    best = [max((r.accuracy for r in run.records if r.accuracy is not None), default=None) for run in runs]
    reached = [accuracy for accuracy in best if accuracy is not None]
    return min(reached) if reached and len(reached) == len(best) else None


def _rates(runs: tuple[Run, ...]) -> dict[str, float]:
    """What each scheme trained with."""
    return {run.scheme: tomllib.loads(run.experiment_toml)["local"]["learning_rate"] for run in runs}


def _estimates(runs: tuple[Run, ...]) -> dict[str, list[dict[str, float]]]:
    """σ² and G² of each scheme's first seed, at up to five rounds."""
    found: dict[str, list[dict[str, float]]] = {}
    for run in runs:
        last = max(len(run.records) - 1, 0)
        picked = sorted({round(last * share / 4) for share in range(5)}) if run.records else []
        points = [_point(run.records[place]) for place in picked]
        found.setdefault(run.scheme, points)
    return found


def _point(record: RoundRecord) -> dict[str, float]:
    return {"round": record.round, "sigma2": record.sigma2, "g2": record.g2}


def _paper_pictures(
    runs: tuple[Run, ...], document: Mapping[str, Any], target: float | None, paper: PaperValues
) -> Iterator[Plan]:
    """What the report has not: gains beside the paper's, and curves with the paper's points."""
    gains = {
        name: (paper.seconds["cef"] / paper.seconds[name], paper.joules["cef"] / paper.joules[name])
        for name in paper.seconds
        if name in document["schemes"]
    }
    words = "Gain over CEF until the target was reached."
    yield Plan("gains", "Gains beside the paper's", words, partial(gain_figure, document["schemes"], gains))
    if target != paper.target:
        return  # its points would stand at another height
    for key, values in (("seconds", paper.seconds), ("joules", paper.joules)):
        marks = {name: (value, paper.target) for name, value in values.items()}
        draw = partial(marked_accuracy_figure, runs, partial(_field, key), key, target, marks)
        yield Plan(
            f"paper-{key}",
            f"Accuracy over {'time' if key == 'seconds' else 'energy'}, with the paper's points",
            "Hollow marks: where the paper's Table 1 has each scheme at the target.",
            draw,
        )


def _field(name: str, record: RoundRecord, _run: Run) -> float:
    return float(getattr(record, name))


def _sweep_marks(asked: Asked, target: float | None, paper: PaperValues) -> dict[str, Marks]:
    if asked.item not in _DEFAULT_SETTING or target != paper.target:
        return {}
    at = _DEFAULT_SETTING[asked.item]
    return {
        "seconds_to_target": {name: (at, value / 1e4) for name, value in paper.seconds.items()},
        "joules_to_target": {name: (at, value / 1e3) for name, value in paper.joules.items()},
    }


def _drawn(plans: Iterator[Plan] | list[Plan]) -> tuple[Picture, ...]:
    found = (drawn(plan) for plan in plans)
    return tuple(picture for picture in found if picture is not None)


def _title(asked: Asked) -> str:
    return f"{asked.item} on {asked.dataset}, {asked.scale} scale"


def _notes(asked: Asked, paper: PaperValues) -> tuple[str, ...]:
    scale = {
        "smoke": "Smoke scale: a few devices and two rounds. It shows that everything works, and no result.",
        "reduced": "Reduced scale: fewer devices and a small network, charged like the paper's own model.",
        "full": "Full scale: the paper's setting.",
    }[asked.scale]
    source = f"The paper's values: {paper.source}. {paper.note}"
    single = "`cfel report` on the directory of a setting draws everything about it."
    return (scale, source.strip(), *([] if asked.sweep is None else [single]))


def _paper_table(paper: PaperValues) -> dict[str, Any]:
    return {
        "source": paper.source,
        "target": paper.target,
        "seconds": dict(paper.seconds),
        "joules": dict(paper.joules),
        "note": paper.note,
    }
