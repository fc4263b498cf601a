"""Chooses values of keys with Optuna: `tune` of `import cfel`.

All trials are in an SQLite file, so that a tuning which was stopped continues.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cfel.api.results import RunResult, Tuning, TuningTrial
from cfel.api.runs import (
    PlannedRun,
    RunOptions,
    Source,
    Track,
    check_before_writing,
    find_experiment,
    make_options,
    plan_sweep,
    run_all,
    write_sweep,
)
from cfel.durable import translate_os_errors
from cfel.errors import DivergedError, InputError, StorageError
from cfel.experiment import Experiment, experiment_toml
from cfel.extras import explain_missing_extra
from cfel.metric import Metric
from cfel.report.load import load_run, load_runs
from cfel.report.summary import find_quality_within_budgets
from cfel.wording import shorten, show

if TYPE_CHECKING:
    import optuna

_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})(?P<log>:log)?")
STUDY_FILE = "study.db"
HELD_OUT = 0.1
"""Share of the training samples to judge by, unless the experiment holds out some already."""
SEED_DISTANCE = 1000
"""Added to the experiment's seed for the seed of trials."""


def tune(
    experiment: Source,
    over: Mapping[str, str | Sequence[Any]],
    *,
    trials: int = 20,
    seeds: Sequence[int] | None = None,
    out: str | PathLike[str] | None = None,
    progress: bool = True,
    ray_address: str | None = None,
    track: Track = (),
) -> Tuning:
    """Chooses values of some keys by held-out quality under the experiment's budgets, as `cfel tune` does.

    Samples that are held out of the training data take the place of the test set, and the seeds are not the
    experiment's own: neither the test samples nor the conditions that a result is judged by play a part in
    the choice.

    Args:
        experiment: everything else.
        over: by dotted key a list of values, or a range as text: "0.001..0.1", "0.001..0.1:log", "2..10".
        trials: how many, those of earlier calls in the same directory included.
        seeds: of each trial; by default the experiment's seed plus 1000, and never that seed itself.
        out: the directory; `runs/NAME-tuned` by default. A tuning that was stopped continues there.
        progress: show progress bars.
        ray_address: the cluster to use with engine "ray"; None starts one on this machine.
        track: trackers to report every run to, as in `run`.

    Raises:
        InputError: a range or seed is not allowed, or the directory has trials of another experiment.
        MissingExtraError: Optuna is not installed.
    """
    base = find_experiment(experiment)
    path = Path("runs") / f"{base.name}-tuned" if out is None else Path(out)
    options = make_options(track, ray_address, resume=True)
    chosen = tuple(dict.fromkeys([base.seed + SEED_DISTANCE] if seeds is None else seeds))
    if base.seed in chosen:
        raise InputError(
            f"tune: seed {base.seed} is the experiment's own, by which the result is judged; use others"
        )
    if not over or not chosen or trials < 1:
        raise InputError("tune: give at least one key, one seed and one trial")
    with explain_missing_extra():
        distributions = {key: parse_range(key, each) for key, each in over.items()}
    if not base.data.held_out:
        base = base.change({"data.held_out": HELD_OUT})
    metric = base.load_task().described_metrics[0]
    check_before_writing(base)
    with _translate_study_errors(path / STUDY_FILE):
        study = _open_study(base, {key: str(each) for key, each in over.items()}, chosen, path, metric)

    def plan_trial(values: Mapping[str, Any]) -> list[PlannedRun]:
        return plan_sweep(base, {key: [value] for key, value in values.items()}, chosen, path)

    with options.show_progress([base], progress) as shown:
        while len(complete := _list_complete(study, path)) < trials:
            with _translate_study_errors(path / STUDY_FILE):
                trial = study.ask(distributions)
            score = _score_trial(plan_trial(trial.params), path, shown, metric)
            with _translate_study_errors(path / STUDY_FILE):
                study.tell(trial, score)
    scored = (TuningTrial(each.params, float(each.value)) for each in complete if each.value is not None)
    found = tuple(sorted(scored, key=lambda each: metric.sort_key(each.score)))
    # Trials with equal values share their runs.
    runs = {run.directory: run for each in found for run in plan_trial(each.values)}
    write_sweep(path, list(runs.values()))
    return Tuning(path, tuple(map(RunResult, load_runs(path))), base.rounds.target, None, chosen, found)


def parse_range(key: str, text: str | Sequence[Any]) -> "optuna.distributions.BaseDistribution":
    """What a key may be: a list of values, or a range as text; a range of whole numbers gives such."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(text, str):
        return CategoricalDistribution(list(text))
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        raise InputError(f"{key}: {text!r} is not a range like 0.001..0.1 or 0.001..0.1:log")
    low, high, log = found["low"], found["high"], found["log"] is not None
    try:
        if all(each.lstrip("+-").isdigit() for each in (low, high)):
            return IntDistribution(int(low), int(high), log=log)
        return FloatDistribution(float(low), float(high), log=log)
    except ValueError as error:
        raise InputError(f"{key}: {text!r} is not a range: {error}") from error


@contextmanager
def _translate_study_errors(path: Path) -> Iterator[None]:
    """Turns what Optuna and SQLAlchemy raise on their file into a `StorageError` that names it."""
    from optuna.exceptions import OptunaError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (OptunaError, SQLAlchemyError) as error:
        # SQLAlchemy adds the statement and a web address on further lines.
        raise StorageError(f"cannot use {path}: {shorten(str(error).splitlines()[0], 300)}") from error


def _check_study_files(path: Path) -> None:
    """SQLite follows links, so a directory that somebody else made could have it write anywhere."""
    if set("?{}").intersection(str(path)):
        raise InputError(f"out = {show(str(path.parent))}: must not contain ?, {{ or }}, which Optuna reads")
    for name in (path.name, *(f"{path.name}-{suffix}" for suffix in ("journal", "wal", "shm"))):
        file = path.with_name(name)
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise StorageError(f"cannot use {file}: it is a link, or not a regular file")


def _list_complete(study: "optuna.study.Study", out: Path) -> "list[optuna.trial.FrozenTrial]":
    import optuna

    with _translate_study_errors(out / STUDY_FILE):
        complete: list[optuna.trial.FrozenTrial] = study.get_trials(
            states=(optuna.trial.TrialState.COMPLETE,)
        )
    return complete


def _open_study(
    base: Experiment, over: Mapping[str, str], seeds: Sequence[int], out: Path, metric: Metric
) -> "optuna.study.Study":
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with translate_os_errors("create", out):
        out.mkdir(parents=True, exist_ok=True)
    _check_study_files(out / STUDY_FILE)
    storage = optuna.storages.RDBStorage(f"sqlite:///{out / STUDY_FILE}")
    study = optuna.create_study(
        study_name="cfel",
        storage=storage,
        direction="maximize" if metric.better == "larger" else "minimize",
        load_if_exists=True,
    )
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


def _score_trial(runs: Sequence[PlannedRun], out: Path, options: RunOptions, metric: Metric) -> float:
    """Executes the runs of a trial; returns the mean of their qualities within the budgets.

    It is infinitely bad if training diverged or nothing was evaluated within the budgets.
    """
    worst = -math.inf if metric.better == "larger" else math.inf
    try:
        run_all(runs, out, options)
    except DivergedError:
        return worst
    found = [find_quality_within_budgets(load_run(run.directory)) for run in runs]
    return fmean(worst if each is None else each for each in found)
