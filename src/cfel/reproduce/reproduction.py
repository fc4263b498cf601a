"""Reports on a table or figure of the paper: measured values beside the paper's, in tables and figures.

Each run has its own directory, `<scheme>/seed-<n>` or `<value>/<scheme>/seed-<n>`. An unfinished run is
resumed and a finished one is kept. Summary and page cover all runs found there, or the requested schemes and
seeds. A scheme or setting that the paper does not report has no mark.
"""

import math
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from cfel.api.runs import PlannedRun
from cfel.control import Budget
from cfel.durable import replace_file
from cfel.errors import RunDirectoryError
from cfel.experiment import Experiment
from cfel.learning.device_messages import Order
from cfel.metric import ACCURACY
from cfel.report.figures import (
    FigureSpec,
    Picture,
    Value,
    draw_accuracy,
    draw_all,
    draw_pictures,
    read_field,
    write_pictures,
)
from cfel.report.load import Run, group_by_row, load_all, load_runs
from cfel.report.page import render_cells, render_document, render_gallery, render_provenance, render_table
from cfel.report.style import INK, Drawing, SchemeStyle, assign_styles, new_figure
from cfel.report.summary import summarise, write_summary
from cfel.reproduce.items import (
    CLASSES,
    PaperValues,
    ReproductionRequest,
    dump_rates,
    load_base_experiment,
    load_paper_values,
    select_rates,
)
from cfel.rounds.kernel import is_over
from cfel.runlog import RunDirectory, holds_run
from cfel.simulation.executors import Job, PoolExecutor
from cfel.simulation.state import initial_state
from cfel.wording import NOTHING
from cfel.world import World

Marks = Mapping[str, tuple[float, float]]
"""The paper's points (x, y) by scheme."""
Summary = Mapping[str, Any]
"""From `summarise`."""

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


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The content of a page: title, notes, tables, figures and runs."""

    title: str
    notes: tuple[str, ...]
    tables: tuple[TextTable, ...]
    pictures: tuple[Picture, ...]
    runs: tuple[Run, ...]


TO_TARGET = (
    Panel("seconds_to_target", "time to the target, 10⁴ s", 1e4),
    Panel("joules_to_target", "energy to the target, kJ", 1e3),
)
FINAL = (Panel("final_accuracy", "final accuracy"),)
# The setting of a sweep that equals the setting of the paper's Table 1.
_DEFAULT_SETTING = {"noniid": 1.0}


def write_results(request: ReproductionRequest, out: Path) -> tuple[dict[str, Any], tuple[TextTable, ...]]:
    """Writes `summary.json`, `report.html` and figures from the runs in `out`.

    Returns the content of `summary.json`, and the tables to show.
    """
    head = {"item": request.item, "dataset": request.dataset, "scale": request.scale}
    target = load_base_experiment(request).rounds.target
    paper = load_paper_values(request.dataset)
    build = _build_single if request.sweep is None else _build_sweep
    measured, content = build(request, out, target, paper)
    document = {**head, **measured, "paper": asdict(paper)}
    write_summary(out, document)
    write_reproduction(out, content)
    return document, content.tables


def _build_single(
    request: ReproductionRequest, out: Path, target: float | None, paper: PaperValues
) -> tuple[dict[str, Any], Reproduction]:
    """Summary and page of an item with one setting: Table 1, the curves, or σ² and G²."""
    runs = _select_runs(load_runs(out), request, out)
    document = summarise(runs, target)
    common = find_common_accuracy(runs)
    document["at_common_accuracy"] = summarise(runs, common)
    document["learning_rate"] = _read_rates(runs)
    document["estimates"] = _sample_estimates(runs)
    notes = _compose_notes(request, paper)
    if request.item == "estimates":
        shown: tuple[TextTable, ...] = (_build_estimates_table(document),)
    else:
        chance = 1 / CLASSES[request.dataset]
        # Guessing reaches an accuracy of chance in the first round: times to it would compare nothing.
        comparable = common is not None and common > chance
        shown = tuple(_list_tables(document, paper, comparable))
        if common is not None and not comparable:
            best = f"the best that every run reached, {100 * common:.1f} %, is not above chance"
            notes = (*notes, f"No table at a common accuracy: {best} ({100 * chance:.1f} %).")
    pictures = (*draw_all(_list_paper_figures(runs, document, target, paper)), *draw_pictures(runs, target))
    return document, Reproduction(_format_title(request), notes, shown, pictures, runs)


def _build_sweep(
    request: ReproductionRequest, out: Path, target: float | None, paper: PaperValues
) -> tuple[dict[str, Any], Reproduction]:
    """Summary and page of a sweep: a summary of each setting, and a figure over all of them."""
    sweep = request.sweep
    assert sweep is not None  # noqa: S101 — only called for sweeps
    # An unfinished sweep is reported as far as it goes.
    present = [value for value in sweep.values if load_all(out / f"{value:g}")]
    places = {value: out / f"{value:g}" for value in present or sweep.values}
    runs = {value: _select_runs(load_runs(place), request, place) for value, place in places.items()}
    values = {value: summarise(own, target) for value, own in runs.items()}
    document: dict[str, Any] = {
        "target": target,
        "key": sweep.key,
        "values": {f"{value:g}": summary for value, summary in values.items()},
        "learning_rate": _read_rates(next(iter(runs.values()))),
    }
    panels: tuple[Panel, ...] = TO_TARGET
    if request.item == "rates":
        document["chosen"], document["held_out"] = select_rates(runs)
        rates = dump_rates(request.dataset, request.scale, document["chosen"])
        replace_file(out / "rates.toml", rates.encode())
        panels, shown = FINAL, (_build_rates_table(document),)
    else:
        shown = (_build_sweep_table(document),)
    figure = partial(draw_sweep, values, sweep.axis, panels, _list_sweep_marks(request, target, paper))
    caption = "Means over seeds. A setting has no mark if a seed did not reach the target."
    pictures = draw_all([FigureSpec("sweep", f"Against the {sweep.axis}", caption, figure)])
    all_runs = tuple(run for own in runs.values() for run in own)
    notes = _compose_notes(request, paper)
    return document, Reproduction(_format_title(request), notes, shown, pictures, all_runs)


def _select_runs(runs: tuple[Run, ...], request: ReproductionRequest, place: Path) -> tuple[Run, ...]:
    """The runs of the requested schemes and seeds; all runs if none were requested."""
    found = tuple(
        run
        for run in runs
        if (request.seeds is None or run.seed in request.seeds)
        and (request.schemes is None or run.scheme in request.schemes)
    )
    if not found:
        there = ", ".join(f"{run.scheme} with seed {run.seed}" for run in runs)
        raise RunDirectoryError(f"{place} holds no run of the requested schemes and seeds, only {there}")
    return found


def find_common_accuracy(runs: tuple[Run, ...]) -> float | None:
    """The highest accuracy that every run reached; None if one was never evaluated."""
    best = [max((r.accuracy for r in run.records if r.accuracy is not None), default=None) for run in runs]
    reached = [accuracy for accuracy in best if accuracy is not None]
    return min(reached) if reached and len(reached) == len(best) else None


def _read_rates(runs: tuple[Run, ...]) -> dict[str, float]:
    return {run.scheme: tomllib.loads(run.experiment_toml)["local"]["learning_rate"] for run in runs}


def _sample_estimates(runs: tuple[Run, ...]) -> dict[str, list[dict[str, float]]]:
    """σ² and G² of each scheme's first seed, at up to five rounds."""
    found: dict[str, list[dict[str, float]]] = {}
    for run in runs:
        last = max(len(run.records) - 1, 0)
        picked = sorted({round(last * share / 4) for share in range(5)}) if run.records else []
        points = [run.records[place] for place in picked]
        found.setdefault(
            run.scheme, [{"round": each.round, "sigma2": each.sigma2, "g2": each.g2} for each in points]
        )
    return found


def _list_paper_figures(
    runs: tuple[Run, ...], document: Mapping[str, Any], target: float | None, paper: PaperValues
) -> Iterator[FigureSpec]:
    """The figures that an ordinary report lacks: gains and curves with the paper's values."""
    gains = {
        name: (seconds, joules)
        for name in document["schemes"]
        if (seconds := paper.gain_seconds(name)) and (joules := paper.gain_joules(name))
    }
    words = "Gain over CEF in time and energy to the target."
    yield FigureSpec(
        "gains", "Gains beside the paper's", words, partial(draw_gains, document["schemes"], gains)
    )
    if target != paper.target:
        return  # the paper's points would be at another accuracy
    for key, values in (("seconds", paper.seconds), ("joules", paper.joules)):
        marks = {name: (value, paper.target) for name, value in values.items()}
        realised, label = partial(read_field, f"{key}_realised"), f"{key}, realised"
        draw = partial(draw_marked_accuracy, runs, realised, label, target, marks)
        yield FigureSpec(
            f"paper-{key}",
            f"Accuracy over {'time' if key == 'seconds' else 'energy'}, with the paper's points",
            "Hollow marks: time or energy to the target in the paper's Table 1.",
            draw,
        )


def _list_sweep_marks(
    request: ReproductionRequest, target: float | None, paper: PaperValues
) -> dict[str, Marks]:
    if request.item not in _DEFAULT_SETTING or target != paper.target:
        return {}
    at = _DEFAULT_SETTING[request.item]
    return {
        "seconds_to_target": {name: (at, value / 1e4) for name, value in paper.seconds.items()},
        "joules_to_target": {name: (at, value / 1e3) for name, value in paper.joules.items()},
    }


def _format_title(request: ReproductionRequest) -> str:
    return f"{request.item} on {request.dataset}, {request.scale} scale"


def _compose_notes(request: ReproductionRequest, paper: PaperValues) -> tuple[str, ...]:
    scale = {
        "smoke": "Smoke scale: a few devices and two rounds. It tests the setup; the numbers mean nothing.",
        "reduced": "Reduced scale: fewer devices and a small network with the costs of the paper's model.",
        "full": "Full scale: the setting of the paper.",
    }[request.scale]
    source = f"The paper's values: {paper.source}. {paper.note}"
    single = "Run `cfel report` on the directory of a setting to see all its figures."
    return (scale, source.strip(), *([] if request.sweep is None else [single]))


_COLUMNS: Mapping[str, tuple[str, Callable[[Summary], str]]] = {
    "seconds": ("10⁴ s", lambda row: _format(row["seconds_to_target"], 1e4)),
    "expected": ("expected", lambda row: _format(row["expected_seconds_to_target"], 1e4)),
    "joules": ("kJ", lambda row: _format(row["joules_to_target"], 1e3)),
    "gain_seconds": ("time gain", lambda row: _format_gain(row, "gain_seconds")),
    "gain_joules": ("energy gain", lambda row: _format_gain(row, "gain_joules")),
    "accuracy": ("acc %", lambda row: _format(row["final_accuracy"], 0.01, digits=1)),
    "paper_seconds": ("paper", lambda row: _format(row["paper"]["seconds"], 1e4, digits=1)),
    "paper_joules": ("paper", lambda row: _format(row["paper"]["joules"], 1e3, digits=1)),
    "paper_gain_seconds": ("paper", lambda row: _format(row["paper"]["gain_seconds"])),
    "paper_gain_joules": ("paper", lambda row: _format(row["paper"]["gain_joules"])),
}
"""The columns of tables: heading, and what it shows of a row of the summary."""


def _build_table(
    title: str, names: Sequence[str], rows: Iterable[tuple[Sequence[str], Summary]], columns: Sequence[str]
) -> TextTable:
    """A table whose first columns name the rows."""
    headings = (*names, *(_COLUMNS[each][0] for each in columns))
    cells = ((*named, *(_COLUMNS[each][1](row) for each in columns)) for named, row in rows)
    return TextTable(title, headings, tuple(cells))


def _list_tables(document: Summary, paper: PaperValues, common: bool) -> Iterator[TextTable]:
    """Costs and gains beside those of the paper's Table 1, which are for its own target; the common table."""
    known = {
        name: {
            "seconds": paper.seconds.get(name),
            "joules": paper.joules.get(name),
            "gain_seconds": paper.gain_seconds(name),
            "gain_joules": paper.gain_joules(name),
        }
        for name in document["schemes"]
    }
    rows = [((name,), {**row, "paper": known[name]}) for name, row in document["schemes"].items()]
    target = "no target" if document["target"] is None else f"{100 * document['target']:.4g} %"
    aim = f"{target} (paper: {100 * paper.target:g} %)"
    costs = ("seconds", "expected", "paper_seconds", "joules", "paper_joules", "accuracy")
    yield _build_table(f"Time and energy to {aim}", ("scheme",), rows, costs)
    gains = ("gain_seconds", "paper_gain_seconds", "gain_joules", "paper_gain_joules")
    yield _build_table(f"Gain over CEF, to {aim}", ("scheme",), rows, gains)
    if common:
        found = document["at_common_accuracy"]
        aim = f"{100 * found['target']:.1f} %, which every scheme reached with every seed"
        rows = [((name,), row) for name, row in found["schemes"].items()]
        columns = ("seconds", "joules", "gain_seconds", "gain_joules")
        yield _build_table(f"Time and energy to {aim}", ("scheme",), rows, columns)


def _build_sweep_table(document: Summary) -> TextTable:
    rows = [
        ((value, name), row)
        for value, summary in document["values"].items()
        for name, row in summary["schemes"].items()
    ]
    target = "no target" if document["target"] is None else f"{100 * document['target']:g} %"
    title = f"Time and energy to {target}, and gain over CEF"
    columns = ("seconds", "joules", "gain_seconds", "gain_joules", "accuracy")
    return _build_table(title, (document["key"], "scheme"), rows, columns)


def _build_rates_table(document: Summary) -> TextTable:
    """Held-out accuracy of every learning rate, and the rate selected."""
    grid, chosen = list(document["values"]), document["chosen"]
    rows = tuple(
        (name, *(_format(tried.get(rate), 0.01, digits=1) for rate in grid), f"{chosen[name]:g}")
        for name, tried in document["held_out"].items()
    )
    title = "Accuracy on held-out training samples (%), by learning rate"
    return TextTable(title, ("scheme", *grid, "chosen"), rows)


def _build_estimates_table(document: Summary) -> TextTable:
    rows = tuple(
        (name, f"{point['round']}", f"{point['sigma2']:.4g}", f"{point['g2']:.4g}")
        for name, points in document["estimates"].items()
        for point in points
    )
    return TextTable("σ² and G² (first seed)", ("scheme", "round", "σ²", "G²"), rows)


def _format(value: float | None, unit: float = 1.0, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value / unit:.{digits}f}"


def _format_gain(row: Summary, key: str) -> str:
    """A gain with the ends of its 95 % confidence interval, if it has one."""
    text, interval = _format(row[key]), row["interval"][key]
    return text if interval is None else f"{text} ({interval[0]:.2f}–{interval[1]:.2f})"


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


DEVICES_TIMED = 4
MOST_STEPS_TIMED = 2
"""Enough to know how long a reproduction takes, before it starts."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Wall time per local step and per evaluated model on this machine, with all workers busy."""

    step_seconds: float
    evaluation_seconds: float


def measure_pace(experiment: Experiment) -> Pace:
    """Times a few local steps and an evaluation of an experiment.

    Schemes that skip steps are faster than that, so this is an upper bound, on an otherwise idle machine.
    """
    world = experiment.build_world()
    parameters = experiment.resolve(world).simulation
    tau = min(MOST_STEPS_TIMED, world.setting.rounds.local_steps)
    jobs = [_build_job(world, n, tau) for n in range(min(DEVICES_TIMED, world.setting.fleet.devices))]
    with PoolExecutor(world, parameters) as executor:
        list(executor.run_updates(jobs))  # the first call warms up the workers
        begin = time.perf_counter()
        list(executor.run_updates(jobs))
        trained = time.perf_counter()
        executor.run_evaluations([world.start] * 2, parameters.evaluate_samples)
        tested = time.perf_counter()
    return Pace((trained - begin) / (len(jobs) * tau), (tested - trained) / 2)


def _build_job(world: World, device: int, tau: int) -> Job:
    order = Order(
        seed=world.setting.seed,
        global_round=0,
        edge_round=0,
        device=device,
        rho=1.0,
        theta=0.1,
        tau=tau,
        model=world.start,
    )
    return order, initial_state(world).devices[device]


def estimate_seconds(runs: Sequence[PlannedRun], pace: Pace) -> float:
    """Seconds that the remaining rounds of all runs will take."""
    return sum(count_rounds_left(run) * _estimate_round(run.experiment, pace) for run in runs)


def _estimate_round(experiment: Experiment, pace: Pace) -> float:
    rounds, simulation = experiment.rounds, experiment.simulation
    steps = experiment.fleet.devices * rounds.edge_rounds * rounds.local_steps
    clusters = experiment.fleet.clusters
    models = clusters if isinstance(clusters, int) else len(clusters)
    tests = (1 if simulation.evaluate_on == "mean" else models) / simulation.evaluate_every
    return steps * pace.step_seconds + tests * pace.evaluation_seconds


def count_rounds_left(run: PlannedRun) -> int:
    """Global rounds that remain in a run; 0 if it has stopped at a budget or at its target."""
    rounds, path = run.experiment.rounds.global_rounds, run.directory
    if not holds_run(path):
        return rounds
    directory = RunDirectory.open(path)
    records = directory.records()
    if not records:
        return rounds
    last, fleet = records[-1], directory.fleet()
    budget = Budget(fleet.seconds_budget or math.inf, fleet.joules_budget or math.inf)
    return 0 if is_over(run.experiment.rounds, budget, ACCURACY, last) else rounds - last.round
