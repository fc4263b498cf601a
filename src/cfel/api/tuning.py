"""Chooses values of an experiment's keys by held-out accuracy under its budgets, with Optuna.

Samples that are held out of the training data take the place of the test set, and the seeds are not the
experiment's own: neither the test samples nor the conditions that a result is judged by play a part in the
choice. All trials are in an SQLite file, so that a tuning which was stopped continues.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cfel.api.run_options import RunOptions
from cfel.api.runs import run_all
from cfel.api.sweeps import place_settings
from cfel.durable import translate_os_errors
from cfel.errors import DivergedError, InputError
from cfel.experiment import Experiment, experiment_toml
from cfel.extras import explain_missing_extra
from cfel.report.load import Run, load_run, name_setting

if TYPE_CHECKING:
    import optuna

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
