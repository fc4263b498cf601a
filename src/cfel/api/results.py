"""A run as an object: its rounds, plans and devices as Arrow tables, its figures, its report, its model.

Everything is read from the run directory, so that a result is the same whether the run was just made or
loaded later. Tables are always Arrow's; `.to_pandas()` makes a pandas frame of one.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from torch import nn

from cfel.api.export import load_module
from cfel.api.runs import RunOptions, open_executor
from cfel.errors import InputError
from cfel.experiment import Experiment, load_directory_experiment
from cfel.extras import explain_missing_extra
from cfel.learning.edge_update import mean_model
from cfel.plugins import BUILT_IN_ONLY, CodePolicy
from cfel.report.load import Run, find_target, group_by_scheme, load_all, load_run
from cfel.report.summary import list_overruns, measure, summarise
from cfel.runlog import PlanTable, RoundRecord
from cfel.runlog.plans import column_names
from cfel.simulation import RoundOutcome, initial_state, simulate
from cfel.wording import plural

if TYPE_CHECKING:
    from cfel.report.pictures import Picture


FIGURE = "accuracy-seconds"
"""The figure that `plot` draws by default: accuracy over time."""

FORMATS = ("svg", "png", "csv")
"""The formats of `export_figures`."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RunResult:
    """A run, finished or not, as its directory held it when it was loaded.

    Attributes:
        run: what the directory says.
        given: the experiment it was run with, where that is known; else it is read from the directory.
        code: whether names in the directory's experiment may stand for code from outside the package.
    """

    run: Run
    given: Experiment | None = None
    code: CodePolicy = BUILT_IN_ONLY

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.run.directory.path

    @property
    def experiment(self) -> Experiment:
        """The experiment, with every default.

        Raises:
            InputError: it has parts that only existed as Python objects, or names code that is not trusted.
        """
        if self.given is not None:
            return self.given
        return load_directory_experiment(self.path, code=self.code)

    @property
    def records(self) -> tuple[RoundRecord, ...]:
        """One record per global round."""
        return self.run.records

    @property
    def rounds(self) -> pa.Table:
        """One row per global round; the columns are the fields of `RoundRecord`, metrics as `metrics.…`."""
        return _tabulate_records(self.records)

    @property
    def plans(self) -> pa.Table:
        """One row per global round, edge round and device that took part: orders, conditions and costs."""
        directory, devices = self.run.directory, self.run.fleet.devices
        tables = [directory.plan(number, devices) for number in directory.plan_rounds()]
        return pa.concat_tables(map(tabulate_plan, tables)) if tables else pa.table({})

    @property
    def devices(self) -> pa.Table:
        """One row per device: its cluster, and what it did in the whole run."""
        return _sum_devices(self.run)

    @property
    def summary(self) -> dict[str, Any]:
        """The end of the run: rounds, accuracy, seconds, joules, digest of the model, metrics, overruns."""
        last = self.records[-1] if self.records else None
        names = ("accuracy", "seconds", "joules", "model_sha256")
        end = {name: None if last is None else getattr(last, name) for name in names}
        end["metrics"] = {} if last is None else dict(last.metrics)
        over = list_overruns([self.run]).get(str(self.run.seed))
        return {"directory": str(self.path), "rounds": len(self.records), **end, "over_budget": over}

    def plot(self, figure: str = FIGURE, target: float | None = None) -> "Picture":
        """Draws a figure of the report; a notebook shows it, `.save("file.png")` writes it.

        `.save("file.csv")` writes the numbers that it shows.

        Args:
            figure: "accuracy-seconds", "accuracy-joules", "accuracy-round", "budget", "estimates",
                "decisions-0", "stragglers-0" or "backhaul".
            target: accuracy to mark; None for the experiment's.
        """
        return draw((self.run,), figure, self.run.target if target is None else target)

    def report(self) -> Path:
        """Writes `report.html` and its figures into the run directory; returns the page's path."""
        with explain_missing_extra():
            from cfel.report import write_report

        return write_report(self.path)

    def export_figures(self, to: str | PathLike[str], formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
        """Writes every figure of the report into the directory `to`; returns the files.

        Args:
            to: receives the files; created if missing.
            formats: "svg", "png", and "csv" for the numbers that a figure shows.

        Raises:
            InputError: there is no such format.
        """
        return export((self.run,), to, formats, self.run.target)

    def model(self, edge: int | None = None, device: int | None = None) -> nn.Module:
        """The trained model, in evaluation mode.

        Args:
            edge: the edge server whose model to return; None for the consensus of all.
            device: the device whose own model to return, where devices keep one.

        Raises:
            InputError: there is no such model.
            RunDirectoryError: the run has no checkpoint yet.
        """
        return load_module(self.run.directory, self.experiment, edge, device)

    def __repr__(self) -> str:
        end = self.summary
        accuracy = "–" if end["accuracy"] is None else f"{100 * end['accuracy']:.1f} %"
        costs = "" if end["seconds"] is None else f", {end['seconds']:,.0f} s, {end['joules']:,.0f} J"
        return f"<RunResult {str(self.path)!r}: {plural(end['rounds'], 'round')}, {accuracy}{costs}>"


def load_result(
    path: Path, experiment: Experiment | None = None, code: CodePolicy = BUILT_IN_ONLY
) -> RunResult:
    """The result in a run directory."""
    return RunResult(load_run(path), experiment, code)


def draw(runs: Sequence[Run], figure: str, target: float | None) -> "Picture":
    """Draws one figure of some runs, which are grouped by scheme."""
    # Only those who plot need Matplotlib.
    with explain_missing_extra():
        from cfel.report.pictures import draw_one

    return draw_one(group_by_scheme(tuple(runs)), figure, target)


def export(
    runs: Sequence[Run], to: str | PathLike[str], formats: Sequence[str], target: float | None
) -> tuple[Path, ...]:
    """Writes every figure of some runs into a directory."""
    with explain_missing_extra():
        from cfel.report.pictures import check_formats, draw_pictures, write_pictures

    check_formats(formats)
    return write_pictures(Path(to), draw_pictures(tuple(runs), target), formats)


def tabulate_plan(plan: PlanTable) -> pa.Table:
    """A plan table as an Arrow table, with the columns of its file."""
    columns = {"round": np.full(len(plan.device), plan.round, dtype=np.int32)}
    return pa.table(columns | {name: getattr(plan, name) for name in column_names()})


def _tabulate_records(records: Sequence[RoundRecord]) -> pa.Table:
    types = {float: pa.float64(), int: pa.int64(), bool: pa.bool_(), str: pa.string()}
    columns = {}
    for field in (each for each in fields(RoundRecord) if each.name != "metrics"):
        # "float | None" and "tuple[str, …]" are the only types that are not in the table above.
        wanted = next((kind for kind in types if str(field.type).startswith(kind.__name__)), None)
        values = [getattr(record, field.name) for record in records]
        kind = types.get(field.type, types[wanted] if wanted else pa.list_(pa.string()))  # type: ignore[arg-type]
        columns[field.name] = pa.array(values, kind)
    for name in dict.fromkeys(name for record in records for name in record.metrics):
        columns[f"metrics.{name}"] = pa.array([each.metrics.get(name) for each in records], pa.float64())
    return pa.table(columns)


def _sum_devices(run: Run) -> pa.Table:
    devices = run.fleet.devices
    sums = {name: np.zeros(devices) for name in ("edge_rounds", "steps", "seconds", "joules", "rho", "theta")}
    for number in run.directory.plan_rounds():
        plan = run.directory.plan(number, devices)
        sums["edge_rounds"] += np.bincount(plan.device, minlength=devices)
        for name in ("steps", "seconds", "joules", "rho", "theta"):
            sums[name] += np.bincount(plan.device, getattr(plan, name), devices)
    present = np.maximum(sums["edge_rounds"], 1)
    return pa.table(
        {
            "device": np.arange(devices),
            "cluster": np.asarray(run.fleet.cluster),
            "edge_rounds": sums["edge_rounds"].astype(np.int64),
            "steps": sums["steps"].astype(np.int64),
            "seconds": sums["seconds"],
            "joules": sums["joules"],
            "rho_mean": sums["rho"] / present,
            "theta_mean": sums["theta"] / present,
        }
    )


# --------------------------------------------------------------------------------------------------
# Several runs as one object: a comparison of schemes.


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison:
    """Runs of several schemes and seeds.

    Attributes:
        path: the directory that contains them.
        runs: one result per scheme and seed.
        target: accuracy to reach, or None.
    """

    path: Path
    runs: tuple[RunResult, ...]
    target: float | None

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`: means over seeds, intervals, gains over CEF."""
        return summarise([each.run for each in self.runs], self.target)

    @property
    def table(self) -> pa.Table:
        """One row per run: scheme, seed, time and energy to the target, final accuracy, costs, budgets."""
        rows = [
            {"scheme": each.run.scheme, "seed": each.run.seed, **measure(each.run, self.target)}
            for each in self.runs
        ]
        return pa.Table.from_pylist(rows)

    def plot(self, figure: str = FIGURE) -> "Picture":
        """Draws a figure of the report with one line per scheme; see `RunResult.plot`."""
        return draw([each.run for each in self.runs], figure, self.target)

    def report(self) -> Path:
        """Writes `report.html` and its figures into the directory; returns the page's path."""
        with explain_missing_extra():
            from cfel.report import write_report

        return write_report(self.path, self.target)

    def export_figures(self, to: str | PathLike[str], formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
        """Writes every figure of the report into the directory `to`; returns the files.

        Args:
            to: receives the files; created if missing.
            formats: "svg", "png", and "csv" for the numbers that a figure shows.

        Raises:
            InputError: there is no such format.
        """
        return export([each.run for each in self.runs], to, formats, self.target)

    def __repr__(self) -> str:
        schemes = dict.fromkeys(each.run.scheme for each in self.runs)
        return f"<Comparison {str(self.path)!r}: {len(self.runs)} runs of {', '.join(schemes)}>"


def load_comparison(path: Path, target: float | None = None) -> Comparison:
    """The comparison in a directory."""
    runs = tuple(RunResult(run) for run in load_all(path))
    known = find_target(path, tuple(each.run for each in runs)) if target is None else target
    return Comparison(path, runs, known)


# --------------------------------------------------------------------------------------------------
# A simulation that the caller drives: one global round per step, nothing written to disk.


class Simulation:
    """An experiment, simulated round by round while the caller iterates over its records.

    `plans` and `model` show the last round that was yielded. Iterating again starts again.

    Args:
        experiment: what is run.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self._world = experiment.build_world()
        self._last: RoundOutcome | None = None

    def __iter__(self) -> Iterator[RoundRecord]:
        world = self._world
        parameters = self.experiment.resolve(world).simulation
        with open_executor(world, parameters, RunOptions()) as executor:
            rounds = simulate(world, executor, parameters, initial_state(world), time.perf_counter)
            # A caller may stop early; the work that is under way must end before its executor does.
            with closing(rounds):  # type: ignore[type-var]
                for outcome in rounds:
                    self._last = outcome
                    yield outcome.record

    @property
    def plans(self) -> pa.Table:
        """One row per edge round and device of the last round: orders, conditions and costs."""
        return tabulate_plan(self._outcome().plans)

    def model(self, edge: int | None = None) -> nn.Module:
        """The model after the last round, in evaluation mode: one edge server's, or the consensus of all."""
        models = dict(enumerate(self._outcome().state.models))
        if edge is not None and edge not in models:
            raise InputError(f"edge = {edge}: there are edge servers 0 to {len(models) - 1}")
        flat = self._world.task.build()
        flat.load(mean_model(self._world.setting.fleet.sizes, models) if edge is None else models[edge])
        return flat.module.eval()

    def _outcome(self) -> RoundOutcome:
        if self._last is None:
            raise InputError("simulate: no round has been simulated yet; iterate first")
        return self._last
