"""Reproduces a table or figure of the paper: executes the runs and writes the summary and the page.

Each run has its own directory, `<scheme>/seed-<n>` or `<value>/<scheme>/seed-<n>`. An unfinished run is
resumed and a finished one is kept. Summary and page cover all runs found there, or the requested schemes and
seeds.
"""

import math
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cfel.api.runs import PlannedRun
from cfel.control import Budget
from cfel.durable import replace_file
from cfel.errors import RunDirectoryError
from cfel.experiment import Experiment
from cfel.learning.device_messages import Order
from cfel.metric import ACCURACY
from cfel.report.figures import FigureSpec, draw_all, draw_pictures, read_field
from cfel.report.load import Run, load_all, load_runs
from cfel.report.summary import summarise, write_summary
from cfel.reproduce import tables
from cfel.reproduce.items import (
    CLASSES,
    PaperValues,
    ReproductionRequest,
    dump_rates,
    load_base_experiment,
    load_paper_values,
    select_rates,
)
from cfel.reproduce.tables import (
    Marks,
    Panel,
    Reproduction,
    TextTable,
    draw_gains,
    draw_marked_accuracy,
    draw_sweep,
    write_reproduction,
)
from cfel.rounds.kernel import is_over
from cfel.runlog import RunDirectory, holds_run
from cfel.simulation.executors import Job, PoolExecutor
from cfel.simulation.state import initial_state
from cfel.world import World

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
        shown: tuple[TextTable, ...] = (tables.build_estimates_table(document),)
    else:
        shown = (tables.build_comparison_table(document, paper), tables.build_gain_table(document, paper))
        chance = 1 / CLASSES[request.dataset]
        # Guessing reaches an accuracy of chance in the first round: times to it would compare nothing.
        if common is not None and common > chance:
            shown = (*shown, tables.build_common_table(document))
        elif common is not None:
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
        panels, shown = FINAL, (tables.build_rates_table(document),)
    else:
        shown = (tables.build_sweep_table(document),)
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
