"""The results of runs: `RunResult` of one, `Comparison`, `Sweep` and `Tuning` of several.

Everything is read from the run directories, so that a result is the same whether the runs were just made or
loaded later. Tables are always Arrow's; `.to_pandas()` makes a pandas frame of one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from torch import nn

from cfel.api.export import load_module
from cfel.experiment import Experiment, load_directory_experiment
from cfel.extras import MissingExtraError, explain_missing_extra
from cfel.plugins import BUILT_IN_ONLY, CodePolicy
from cfel.report.load import SWEEP_FILE, Run, find_target, group_by_scheme, load_run, load_runs, name_setting
from cfel.report.summary import list_overruns, measure, summarise
from cfel.runlog import PlanTable, RoundRecord
from cfel.runlog.plans import column_names
from cfel.wording import format_amount, plural

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
        return _draw((self.run,), figure, self.run.target if target is None else target)

    def report(self) -> Path:
        """Writes `report.html` and its figures into the run directory; returns the page's path."""
        return _write_report(self.path)

    def export_figures(self, to: str | PathLike[str], formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
        """Writes every figure of the report into the directory `to`; returns the files.

        Args:
            to: receives the files; created if missing.
            formats: "svg", "png", and "csv" for the numbers that a figure shows.

        Raises:
            InputError: there is no such format.
        """
        return _export_figures((self.run,), to, formats, self.run.target)

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
        costs = (
            ""
            if end["seconds"] is None
            else f", {format_amount(end['seconds'])} s, {format_amount(end['joules'])} J"
        )
        return f"<RunResult {str(self.path)!r}: {plural(end['rounds'], 'round')}, {accuracy}{costs}>"


def load_result(
    path: Path, experiment: Experiment | None = None, code: CodePolicy = BUILT_IN_ONLY
) -> RunResult:
    """The result in a run directory."""
    return RunResult(load_run(path), experiment, code)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RunSet:
    """Several runs.

    Attributes:
        path: the directory that contains them.
        runs: their results.
        target: accuracy to reach, or None.
    """

    path: Path
    runs: tuple[RunResult, ...]
    target: float | None

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`: means over seeds and intervals; of schemes also gains over CEF."""
        return summarise([each.run for each in self.runs], self.target)

    @property
    def table(self) -> pa.Table:
        """One row per run: scheme or values, seed, time and energy to the target, final accuracy, costs."""
        rows = [
            {**_label(each.run), "seed": each.run.seed, **measure(each.run, self.target)}
            for each in self.runs
        ]
        return pa.Table.from_pylist(rows)

    def plot(self, figure: str = FIGURE) -> "Picture":
        """Draws a figure of the report with one line per scheme or setting; see `RunResult.plot`.

        Where runs differ by values of keys, "by-key-0", "by-key-1", … also show the final accuracy by the
        values of each key, and "costs-by-key-0", … time and energy to the target.
        """
        return _draw([each.run for each in self.runs], figure, self.target)

    def report(self) -> Path:
        """Writes `report.html` and its figures into the directory; returns the page's path."""
        return _write_report(self.path, self.target)

    def export_figures(self, to: str | PathLike[str], formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
        """Writes every figure of the report into the directory `to`; see `RunResult.export_figures`."""
        return _export_figures([each.run for each in self.runs], to, formats, self.target)


def _label(run: Run) -> Mapping[str, Any]:
    return run.setting or {"scheme": run.scheme}


class Comparison(RunSet):
    """Runs of several schemes and seeds.

    Attributes:
        path: the directory that contains them.
        runs: one result per scheme and seed.
        target: accuracy to reach, or None.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        schemes = dict.fromkeys(each.run.scheme for each in self.runs)
        return f"<Comparison {str(self.path)!r}: {len(self.runs)} runs of {', '.join(schemes)}>"


class Sweep(RunSet):
    """Runs with every combination of some values of some keys.

    Attributes:
        path: the directory that contains them.
        runs: one result per combination and seed.
        target: accuracy to reach, or None.
    """

    __slots__ = ()

    @property
    def settings(self) -> tuple[Mapping[str, Any], ...]:
        """Of each run, its values by key; objects by their names."""
        return tuple(each.run.setting for each in self.runs)

    def __repr__(self) -> str:
        keys = ", ".join(self.settings[0]) if self.settings else "nothing"
        return f"<Sweep {str(self.path)!r}: {len(self.runs)} runs over {keys}>"


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """One choice of values.

    Attributes:
        values: by key.
        score: mean over seeds of the held-out accuracy within the budgets.
    """

    values: Mapping[str, Any]
    score: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tuning(RunSet):
    """The result of `tune`; accuracies are held-out accuracies.

    Attributes:
        path: the directory with the runs of all trials.
        runs: the runs of complete trials, those of the best trial first.
        target: accuracy to reach, or None.
        seeds: of every trial.
        trials: all that are complete, best first.
    """

    seeds: tuple[int, ...]
    trials: tuple[TuningTrial, ...]

    @property
    def best(self) -> Mapping[str, Any]:
        """The best values by key, for `experiment.change(tuning.best)`."""
        return self.trials[0].values

    def __repr__(self) -> str:
        best = f"{name_setting(self.best)}, {100 * self.trials[0].score:.1f} %"
        return f"<Tuning {str(self.path)!r}: {len(self.trials)} trials, best {best}>"


def load_run_set(path: Path, code: CodePolicy = BUILT_IN_ONLY) -> Comparison | Sweep:
    """The comparison or the sweep in a directory: those of its runs that have started."""
    runs = load_runs(path)
    results = tuple(RunResult(run, code=code) for run in runs)
    return (Sweep if (path / SWEEP_FILE).exists() else Comparison)(path, results, find_target(path, runs))


def write_report_if_possible(out: Path, target: float | None, notify: Callable[[str], None]) -> Path | None:
    """Writes the report; where Matplotlib is missing, says so instead of failing after hours of work."""
    try:
        return _write_report(out, target)
    except MissingExtraError as error:
        notify(f"no report was written: {error}")
        return None


# Only those who draw need Matplotlib.


def _write_report(path: Path, target: float | None = None) -> Path:
    with explain_missing_extra():
        from cfel.report import write_report

    return write_report(path, target)


def _draw(runs: Sequence[Run], figure: str, target: float | None) -> "Picture":
    """Draws one figure of some runs, which are grouped by scheme."""
    with explain_missing_extra():
        from cfel.report.pictures import draw_one

    return draw_one(group_by_scheme(tuple(runs)), figure, target)


def _export_figures(
    runs: Sequence[Run], to: str | PathLike[str], formats: Sequence[str], target: float | None
) -> tuple[Path, ...]:
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
