"""The results of runs: `RunResult` of one, `Comparison`, `Sweep` and `Tuning` of several.

Everything is read from the run directories, so that a result is the same whether the runs were just made or
loaded later. Tables are always Arrow's; `.to_pandas()` makes a pandas frame of one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from torch import nn

from cfel.api.models import load_module
from cfel.experiment import Experiment, load_directory_experiment
from cfel.extras import MissingExtraError, explain_missing_extra
from cfel.metric import ACCURACY, Metric
from cfel.plugins import BUILT_IN_ONLY, CodePolicy
from cfel.report.load import (
    SWEEP_FILE,
    Run,
    find_baseline,
    find_target,
    group_by_row,
    list_settings,
    load_run,
    load_runs,
    name_scheme,
    name_setting,
)
from cfel.report.summary import (
    describe_overruns,
    describe_worst_overruns,
    find_quality_within_budgets,
    list_overruns,
    measure,
    summarise,
)
from cfel.report.table import MainTable, build_table, check_formats, list_numbers, to_csv
from cfel.runlog import PlanTable, RoundRecord
from cfel.runlog.directory import column_names
from cfel.wording import format_joules, format_seconds, format_share, plural

if TYPE_CHECKING:
    from cfel.report.figures import Picture


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
        """The result: quality within the budgets, and what the last round had reached and used, realised."""
        last = self.records[-1] if self.records else None
        return {
            "directory": str(self.path),
            "rounds": len(self.records),
            "quality_within_budgets": find_quality_within_budgets(self.run),
            "accuracy": last and last.accuracy,
            "seconds": last and last.seconds_realised,
            "joules": last and last.joules_realised,
            "model_sha256": last and last.model_sha256,
            "metrics": dict(last.metrics) if last else {},
            "over_budget": list_overruns([self.run]).get(str(self.run.seed)),
        }

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
            formats: "svg", "png", "pdf" in the width of a paper's column, and "csv" for the numbers.

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
        return f"<RunResult {str(self.path)!r}: {', '.join(self._describe().values())}>"

    def _repr_html_(self) -> str:
        """How a notebook shows it: a small table, then what the run broke."""
        cells = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
            for name, text in self._describe().items()
        )
        broken = "".join(f"<p>⚠ {escape(each)}</p>" for each in describe_overruns(self.run))
        return f"<p><b>{escape(str(self.path))}</b></p><table>{cells}</table>{broken}"

    def _describe(self) -> dict[str, str]:
        """The result in words; costs are realised."""
        end, fleet, metric = self.summary, self.run.fleet, self.run.fleet.metrics[0]
        words = {"rounds": plural(end["rounds"], "round")}
        words[f"{metric.name} within the budgets"] = metric.format(end["quality_within_budgets"])
        for name, write, budget in (
            ("seconds", format_seconds, fleet.seconds_budget),
            ("joules", format_joules, fleet.joules_budget),
        ):
            share = f" ({format_share(end[name], budget)} of the budget)" if budget and end[name] else ""
            words["time used" if name == "seconds" else "energy used"] = f"{write(end[name])}{share}"
        return words


def load_result(
    path: Path, experiment: Experiment | None = None, code: CodePolicy = BUILT_IN_ONLY
) -> RunResult:
    return RunResult(load_run(path), experiment, code)


@dataclass(frozen=True, eq=False, repr=False)  # without slots, where no property can be kept
class RunSet:
    """Several runs."""

    path: Path  # the directory that contains them
    runs: tuple[RunResult, ...]  # their results
    target: float | None  # quality to reach, or None
    baseline: str | None  # the row that others are compared with, or None

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`: by row, means over seeds, intervals, and gains over the baseline."""
        return summarise([each.run for each in self.runs], self.target, self.baseline)

    @property
    def table(self) -> pa.Table:
        """One row per run: scheme or values, seed, quality within the budgets, costs to the target, costs."""
        rows = [
            {
                **(each.run.setting or {"scheme": each.run.scheme}),
                "seed": each.run.seed,
                **measure(each.run, self.target),
            }
            for each in self.runs
        ]
        return pa.Table.from_pylist(rows)

    @property
    def metric(self) -> Metric:
        """Name, unit and direction of the quality that is compared."""
        return self.runs[0].run.fleet.metrics[0] if self.runs else ACCURACY

    @property
    def main_table(self) -> MainTable:
        """The table that the report begins with, as text."""
        return build_table(self.summary, self._settings)

    @property
    def _settings(self) -> Mapping[str, Mapping[str, Any]]:
        return list_settings([each.run for each in self.runs])

    def to_markdown(self) -> str:
        """The main table in Markdown."""
        return self.main_table.to_markdown()

    def to_latex(self) -> str:
        """The main table in LaTeX, for `booktabs`."""
        return self.main_table.to_latex()

    def to_csv(self) -> str:
        """The main table as CSV: plain numbers, ends of their intervals, p-values."""
        return to_csv(self.summary, self._settings)

    def to_pandas(self) -> Any:  # noqa: ANN401 — pandas need not be installed
        """The main table as a pandas frame, with the columns of `to_csv`; `.table` has a row per run."""
        return pa.Table.from_pylist(list_numbers(self.summary, self._settings)).to_pandas()

    def _repr_html_(self) -> str:
        return self.main_table.to_html()

    def describe_overruns(self) -> list[str]:
        """What rows broke, of each budget the worst seed."""
        return [words for row in self.summary["schemes"].values() for words in describe_worst_overruns(row)]

    def plot(self, figure: str = FIGURE) -> "Picture":
        """Draws a figure of the report with one line per scheme or setting; see `RunResult.plot`.

        Where runs differ by values of keys, "by-key-0", "by-key-1", … also show the quality within the
        budgets by the values of each key, and "costs-by-key-0", … time and energy to the target.
        """
        return _draw([each.run for each in self.runs], figure, self.target)

    def report(self) -> Path:
        """Writes `report.html` and its figures into the directory; returns the page's path."""
        return _write_report(self.path, self.target)

    def export_figures(self, to: str | PathLike[str], formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
        """Writes every figure of the report into the directory `to`; see `RunResult.export_figures`."""
        return _export_figures([each.run for each in self.runs], to, formats, self.target)


class Comparison(RunSet):
    """Runs of several schemes and seeds.

    Attributes:
        path: the directory that contains them.
        runs: one result per row and seed.
        target: quality to reach, or None.
        baseline: the row that others are compared with, or None.
    """

    def __repr__(self) -> str:
        rows = dict.fromkeys(name_scheme(each.run.scheme) for each in self.runs)
        return f"<Comparison {str(self.path)!r}: {plural(len(self.runs), 'run')} of {', '.join(rows)}>"


class Sweep(RunSet):
    """Runs with every combination of some values of some keys.

    Attributes:
        path: the directory that contains them.
        runs: one result per combination and seed.
        target: accuracy to reach, or None.
    """

    @property
    def settings(self) -> tuple[Mapping[str, Any], ...]:
        """Of each run, its values by key; objects by their names."""
        return tuple(each.run.setting for each in self.runs)

    def __repr__(self) -> str:
        keys = ", ".join(self.settings[0]) if self.settings else "nothing"
        return f"<Sweep {str(self.path)!r}: {plural(len(self.runs), 'run')} over {keys}>"


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """One choice of values."""

    values: Mapping[str, Any]  # by key
    # Mean over seeds of the held-out quality within the budgets; infinitely bad if there is none.
    score: float


@dataclass(frozen=True, eq=False, repr=False)
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
        score = self.metric.format(self.trials[0].score)
        best = f"{name_setting(self.best)}, {score}"
        return f"<Tuning {str(self.path)!r}: {plural(len(self.trials), 'trial')}, best {best}>"


def load_run_set(path: Path, code: CodePolicy = BUILT_IN_ONLY) -> Comparison | Sweep:
    """The comparison or the sweep in a directory: those of its runs that have started."""
    runs = load_runs(path)
    results = tuple(RunResult(run, code=code) for run in runs)
    kind = Sweep if (path / SWEEP_FILE).exists() else Comparison
    return kind(path, results, find_target(path, runs), find_baseline(path))


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
        from cfel.report.page import write_report

    return write_report(path, target)


def _draw(runs: Sequence[Run], figure: str, target: float | None) -> "Picture":
    """Draws one figure of some runs, which are grouped by scheme."""
    with explain_missing_extra():
        from cfel.report.figures import draw_one

    return draw_one(group_by_row(tuple(runs)), figure, target)


def _export_figures(
    runs: Sequence[Run], to: str | PathLike[str], formats: Sequence[str], target: float | None
) -> tuple[Path, ...]:
    with explain_missing_extra():
        from cfel.report import figures

    check_formats(formats, figures.FORMATS)
    return figures.write_pictures(Path(to), figures.draw_pictures(tuple(runs), target), formats)


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
