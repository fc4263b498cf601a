"""A sweep: runs with every combination of some values of some keys, as one object.

A sweep is a comparison whose lines are settings instead of schemes: `sweep.json` says which run has which
values, and tables, figures and the page then come from the same code (`report.load`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cfel.api.results import FIGURE, FORMATS, RunResult, draw, export
from cfel.api.runs import PlacedRun, RunOptions, compare_runs, run_all
from cfel.durable import replace_file, translate_os_errors
from cfel.errors import DivergedError, InputError
from cfel.experiment import Experiment, experiment_toml
from cfel.experiment.document import MAIN_KEYS
from cfel.extras import explain_missing_extra
from cfel.report.load import SWEEP_FILE, Run, find_target, load_run, load_runs, name_setting
from cfel.report.summary import measure, summarise

if TYPE_CHECKING:
    import optuna

    from cfel.report.pictures import Picture


_PORTABLE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-=,")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sweep:
    """Runs with every combination of some values of some keys.

    Attributes:
        path: the directory that contains them.
        settings: of each run, its values by key; objects by their names.
        runs: their results, in the same order.
        target: accuracy to reach, or None.
    """

    path: Path
    settings: tuple[Mapping[str, Any], ...]
    runs: tuple[RunResult, ...]
    target: float | None

    @property
    def table(self) -> pa.Table:
        """One row per run: its values, its seed, time and energy to the target, final accuracy, costs."""
        rows = [
            {**values, "seed": each.run.seed, **measure(each.run, self.target)}
            for values, each in zip(self.settings, self.runs, strict=True)
        ]
        return pa.Table.from_pylist(rows)

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`: means over seeds and intervals, by setting."""
        return summarise([each.run for each in self.runs], self.target)

    def plot(self, figure: str = FIGURE) -> "Picture":
        """Draws a figure of the report with one line per setting; see `RunResult.plot`.

        Besides those, "by-key-0", "by-key-1", … show the final accuracy by the values of each key, and
        "costs-by-key-0", … time and energy to the target.
        """
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
        keys = ", ".join(self.settings[0]) if self.settings else "nothing"
        return f"<Sweep {str(self.path)!r}: {len(self.runs)} runs over {keys}>"


def sweep_runs(
    settings: Sequence[Mapping[str, Any]],
    runs: Sequence[PlacedRun],
    out: Path,
    options: RunOptions,
    target: float | None = None,
) -> dict[str, Any]:
    """Executes the runs of a sweep that are not there yet, and summarises all.

    Args:
        settings: the values of each run.
        runs: the runs, both from `place_settings`.
        out: receives the runs, `sweep.json`, `summary.json` and `report.html`.
        options: how to execute the runs; existing ones are resumed.
        target: accuracy to reach in the tables; None for the experiment's target.

    Returns:
        The content of `summary.json`.
    """
    write_sweep(out, settings, runs)
    return compare_runs(runs, out, options, target)


def place_settings(
    experiment: Experiment, over: Mapping[str, Sequence[Any]], seeds: Sequence[int], out: Path
) -> tuple[list[Mapping[str, Any]], list[PlacedRun]]:
    """The runs of a sweep, each in `<key=value,…>/seed-<n>/`.

    Args:
        experiment: everything else.
        over: values by dotted keys, as in {"rounds.edge": [2, 5, 10]}; functions are welcome.
        seeds: one run per combination and seed.
        out: will contain them.

    Returns:
        The values of each run, with names for objects, and the runs.

    Raises:
        InputError: nothing to sweep over, or a key or value is not allowed.
    """
    if not over or not seeds or not all(map(len, over.values())):
        raise InputError("sweep: give at least one key with at least one value, and one seed")
    if "seed" in over:
        raise InputError("sweep: give seeds as `seeds`")
    settings: list[Mapping[str, Any]] = []
    runs: list[PlacedRun] = []
    folders: dict[str, Mapping[str, Any]] = {}
    for combination in product(*over.values()):
        values, changed = change_setting(experiment, dict(zip(over, combination, strict=True)))
        folder = setting_folder(values)
        if folder in folders:
            raise InputError(f"sweep: {values} and {folders[folder]} would share the folder {folder!r}")
        folders[folder] = values
        for seed in dict.fromkeys(seeds):
            settings.append(values)
            name = f"{name_setting(values)} (seed {seed})"
            runs.append(PlacedRun(name, changed.change({"seed": seed}), out / folder / f"seed-{seed}"))
    return settings, runs


def change_setting(experiment: Experiment, chosen: Mapping[str, Any]) -> tuple[dict[str, Any], Experiment]:
    """An experiment with other values of some keys, and these values with names for objects."""
    changed = experiment.change(dict(chosen))
    return {key: _read_value(changed, key, value) for key, value in chosen.items()}, changed


def setting_folder(values: Mapping[str, Any]) -> str:
    """The directory name for a setting, without what is not portable in paths."""
    return "".join(letter if letter in _PORTABLE else "_" for letter in name_setting(values))


def _read_value(experiment: Experiment, key: str, value: object) -> object:
    """A value as the experiment file has it: an object by its name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | Mapping):
        return json.dumps(value)
    section, _, name = key.partition(".")
    part = getattr(experiment, section)
    return getattr(part, name or MAIN_KEYS[section])


def write_sweep(out: Path, settings: Sequence[Mapping[str, Any]], runs: Sequence[PlacedRun]) -> None:
    """Writes which run has which values, so that the sweep can be loaded."""
    with translate_os_errors("create", out):
        out.mkdir(parents=True, exist_ok=True)
    rows = [
        {"values": dict(values), "directory": str(run.directory.relative_to(out))}
        for values, run in zip(settings, runs, strict=True)
    ]
    replace_file(out / SWEEP_FILE, (json.dumps({"runs": rows}, indent=2) + "\n").encode())


def load_sweep(path: Path, target: float | None = None) -> Sweep:
    """The sweep in a directory: those of its runs that have started."""
    runs = load_runs(path)
    known = find_target(path, runs) if target is None else target
    return Sweep(path, tuple(run.setting for run in runs), tuple(map(RunResult, runs)), known)


# --------------------------------------------------------------------------------------------------
# Chooses values of an experiment's keys by held-out accuracy under its budgets, with Optuna.
#
# Samples that are held out of the training data take the place of the test set, and the seeds are not the
# experiment's own: neither the test samples nor the conditions that a result is judged by play a part in
# the
# choice. All trials are in an SQLite file, so that a tuning which was stopped continues.


_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})(?P<log>:log)?")
STUDY_FILE = "study.db"
HELD_OUT = 0.1
"""Share of the training samples to judge by, unless the experiment holds out some already."""
SEED_DISTANCE = 1000
"""Added to the experiment's seed for the seed of trials."""


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """One choice of values.

    Attributes:
        values: by key.
        score: mean over seeds of the held-out accuracy within the budgets.
    """

    values: Mapping[str, Any]
    score: float


@dataclass(frozen=True, slots=True, repr=False)
class Tuning:
    """The result of `tune`.

    Attributes:
        path: the directory with the runs of all trials.
        seeds: of every trial.
        trials: all that are complete, best first.
    """

    path: Path
    seeds: tuple[int, ...]
    trials: tuple[TuningTrial, ...]

    @property
    def best(self) -> Mapping[str, Any]:
        """The best values by key, for `experiment.change(tuning.best)`."""
        return self.trials[0].values

    def __repr__(self) -> str:
        best = f"{name_setting(self.best)}, {100 * self.trials[0].score:.1f} %"
        return f"<Tuning {str(self.path)!r}: {len(self.trials)} trials, best {best}>"


def tune_runs(
    experiment: Experiment,
    over: Mapping[str, str | Sequence[Any]],
    trials: int,
    seeds: Sequence[int] | None,
    out: Path,
    options: RunOptions,
) -> Tuning:
    """Runs trials until there are as many as wanted, those of earlier calls included.

    Args:
        experiment: everything else; its budgets are those that count.
        over: by dotted key a list of values, or a range as text, "0.001..0.1" or "0.001..0.1:log"; a range of
            whole numbers gives whole numbers.
        trials: how many.
        seeds: of each trial; not the experiment's own.
        out: receives the runs and the trials.
        options: how to execute the runs; existing ones are resumed.

    Raises:
        InputError: a range or seed is not allowed, or the directory has trials of another experiment.
        MissingExtraError: Optuna is not installed.
    """
    chosen = tuple(dict.fromkeys([experiment.seed + SEED_DISTANCE] if seeds is None else seeds))
    if experiment.seed in chosen:
        raise InputError(
            f"tune: seed {experiment.seed} is the experiment's own, by which the result is judged; use others"
        )
    if not over or not chosen or trials < 1:
        raise InputError("tune: give at least one key, one seed and one trial")
    with explain_missing_extra():
        import optuna
    distributions = {key: parse_range(key, each) for key, each in over.items()}
    base = experiment if experiment.data.held_out else experiment.change({"data.held_out": HELD_OUT})
    study = _open_study(base, {key: str(each) for key, each in over.items()}, chosen, out)
    while len(complete := study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))) < trials:
        trial = study.ask(distributions)
        study.tell(trial, _score_values(base, trial.params, chosen, out, options))
    found = sorted(complete, key=lambda each: -float(each.value or 0))
    return Tuning(out, chosen, tuple(TuningTrial(each.params, float(each.value or 0)) for each in found))


def parse_range(key: str, text: str | Sequence[Any]) -> "optuna.distributions.BaseDistribution":
    """What a key may be: a list of values, or a range as text."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(text, str):
        return CategoricalDistribution(list(text))
    found = _RANGE.fullmatch(text.strip())
    try:
        if found is not None and _is_whole(found["low"]) and _is_whole(found["high"]):
            return IntDistribution(int(found["low"]), int(found["high"]), log=found["log"] is not None)
        if found is not None:
            low, high = float(found["low"]), float(found["high"])
            return FloatDistribution(low, high, log=found["log"] is not None)
    except ValueError as error:
        raise InputError(f"{key}: {text!r} is not a range: {error}") from error
    raise InputError(f"{key}: {text!r} is not a range like 0.001..0.1 or 0.001..0.1:log")


def _is_whole(text: str) -> bool:
    return text.lstrip("+-").isdigit()


def _open_study(
    base: Experiment, over: Mapping[str, str], seeds: Sequence[int], out: Path
) -> "optuna.study.Study":
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with translate_os_errors("create", out):
        out.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.RDBStorage(f"sqlite:///{out / STUDY_FILE}")
    study = optuna.create_study(study_name="cfel", storage=storage, direction="maximize", load_if_exists=True)
    asked = {"experiment": experiment_toml(base), "over": json.dumps(over), "seeds": list(seeds)}
    if (known := study.user_attrs) and known != asked:
        differs = next(name for name in asked if known.get(name) != asked[name])
        raise InputError(f"{out} has trials with another {differs}: choose another directory")
    for name, value in asked.items():
        study.set_user_attr(name, value)
    # The sampler draws anew: with the same seed it would begin with the values it has tried already.
    study.sampler = optuna.samplers.TPESampler(seed=base.seed + len(study.trials))
    for lost in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.enqueue_trial(lost.params)
        study.tell(lost.number, state=optuna.trial.TrialState.FAIL)
    return study


def _score_values(
    base: Experiment, values: Mapping[str, Any], seeds: Sequence[int], out: Path, options: RunOptions
) -> float:
    """Runs one choice of values with every seed; equal choices share their runs."""
    _, runs = place_settings(base, {key: [value] for key, value in values.items()}, seeds, out)
    try:
        run_all(runs, out, options)
    except DivergedError:
        return 0.0
    return fmean(score_run(load_run(run.directory)) for run in runs)


def score_run(run: Run) -> float:
    """The last measured accuracy before a budget was used up; 0 if there is none."""
    seconds = float("inf") if run.fleet.seconds_budget is None else run.fleet.seconds_budget * (1 + 1e-9)
    joules = float("inf") if run.fleet.joules_budget is None else run.fleet.joules_budget * (1 + 1e-9)
    found = [
        record.accuracy
        for record in run.records
        if record.accuracy is not None and record.seconds <= seconds and record.joules <= joules
    ]
    return found[-1] if found else 0.0
