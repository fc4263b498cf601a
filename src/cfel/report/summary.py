"""The results of every row of a comparison as the content of `summary.json`.

One clock: times and energies are realised, with the steps that devices really took; expected ones carry that
word in their names. The first value of a row is the quality within the budgets: that of the last evaluated
model before the first budget was used up. Then come the costs to the target.

There are means over seeds with 95 % confidence intervals (Student's t), the values of every seed, and
comparisons with a baseline, seed by seed, since both runs then meet the same conditions: differences of
quality, and gains in time and energy, whose mean is geometric and whose interval is that of the logarithms.
From five seeds on, a paired t-test says how likely such values are without any difference. A mean is null if
one seed has no value: a mean over the successful seeds alone would be too good.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from cfel.durable import replace_file
from cfel.errors import InputError, unknown_name
from cfel.metric import ACCURACY, Metric
from cfel.report.load import Run, group_by_row, name_scheme
from cfel.runlog import RoundRecord
from cfel.runlog.directory import list_metrics
from cfel.validation import parse_toml
from cfel.wording import plural

REFERENCE = "cef"
"""The baseline, unless another is given."""
LEAST_SEEDS_TO_TEST = 5
"""With fewer seeds a test has too little power to be worth a number."""

_SUMMED = (
    "steps_planned",
    "steps_taken",
    "upload_bytes_planned",
    "upload_bytes",
    "backhaul_bytes",
    "backhaul_joules",
    "download_bytes",
    "wall_seconds",
)
_DEVICE_ACCURACY = (
    *(f"{whose}_accuracy_{name}" for whose in ("device", "personal") for name in ("mean", "worst", "spread")),
    "personal_loss",
)
_ENDS = {
    "seconds": "seconds_realised",
    "joules": "joules_realised",
    "expected_seconds": "seconds_expected",
    "expected_joules": "joules_expected",
}
DIFFERENCE = "quality_difference"
_GAINS = (("gain_seconds", "seconds_to_target"), ("gain_joules", "joules_to_target"))

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_STUDENT = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
_NORMAL = 1.959964
ROUNDING = 1e-6
"""How far a budget may be exceeded by rounding, relative to it."""
_NAMES = {"seconds": ("time", "s"), "joules": ("energy", "J")}


def summarise(runs: Sequence[Run], target: float | None, baseline: str | None = None) -> dict[str, Any]:
    """Summarises the results of every row; without a target, values that depend on it are null.

    Gives `{"target": …, "baseline": …, "metric": {…}, "schemes": {row: {…}}}`. For each row: its `label`; the
    mean over seeds of each measured value; the `quality_difference` to the baseline and the gains over it
    (geometric mean; above 1 is better); `confidence`, half the width of the 95 % interval of each measured
    value (null with one seed); `interval`, the ends of that of the difference and of each gain; `p_value`, of
    a paired t-test on each of these, from five seeds on; `per_seed`, the same values for each seed;
    `reached`, the number of seeds that reached the target; `metrics`, the task's further metrics after the
    last round; `over_budget`, the budgets and caps that a seed broke, by seed. Costs to the target are
    interpolated (`find_crossing`).
    """
    groups = group_by_row(tuple(runs))
    if baseline is not None and baseline not in groups:
        raise InputError(unknown_name("baseline", baseline, tuple(groups)))
    compared = baseline or (REFERENCE if REFERENCE in groups else None)
    measured = {
        row: {str(run.seed): measure(run, target) for run in members} for row, members in groups.items()
    }
    reference = measured[compared] if compared is not None else {}
    rows = {
        row: {
            "label": name_scheme(row),
            **_summarise_seeds(seeds, reference),
            "metrics": average_metrics(groups[row]),
            "over_budget": list_overruns(groups[row]),
        }
        for row, seeds in measured.items()
    }
    metric = runs[0].fleet.metrics[0] if runs else ACCURACY
    return {"target": target, "baseline": compared, "metric": list_metrics([metric])[0], "schemes": rows}


Seeds = Mapping[str, Mapping[str, float | None]]
"""Values by seed and name."""


def _summarise_seeds(seeds: Seeds, reference: Seeds) -> dict[str, Any]:
    """Means, intervals and tests of one row, compared with the reference seed by seed."""
    per_seed = {
        seed: {**values, **_compare(values, reference.get(seed, {}))} for seed, values in seeds.items()
    }
    measured = tuple(next(iter(seeds.values())))
    differences = _column(per_seed, DIFFERENCE)
    gains = {gain: _column(per_seed, gain) for gain, _ in _GAINS}
    logarithms = {gain: [_log(each) for each in found] for gain, found in gains.items()}
    return {
        **{name: _mean(_column(seeds, name)) for name in measured},
        DIFFERENCE: _mean(differences),
        **{gain: geometric_mean(found) for gain, found in gains.items()},
        "reached": sum(values["seconds_to_target"] is not None for values in seeds.values()),
        "confidence": {name: confidence_half_width(_column(seeds, name)) for name in measured},
        "interval": {
            DIFFERENCE: find_interval(differences),
            **{gain: geometric_interval(found) for gain, found in gains.items()},
        },
        "p_value": {
            DIFFERENCE: find_p_value(differences),
            **{gain: find_p_value(found) for gain, found in logarithms.items()},
        },
        "per_seed": per_seed,
    }


def _compare(
    values: Mapping[str, float | None], reference: Mapping[str, float | None]
) -> dict[str, float | None]:
    """The difference to a reference and the gains over it, of one seed."""
    own, other = values["quality_within_budgets"], reference.get("quality_within_budgets")
    return {
        DIFFERENCE: None if own is None or other is None else own - other,
        **{gain: _ratio(reference.get(name), values[name]) for gain, name in _GAINS},
    }


def read_metric(summary: Mapping[str, Any]) -> Metric:
    return Metric(**summary["metric"])


def average_metrics(runs: Sequence[Run]) -> dict[str, float | None]:
    """The task's further metrics in the last round that has them, averaged over seeds."""
    last = [next((each.metrics for each in reversed(run.records) if each.metrics), {}) for run in runs]
    names = dict.fromkeys(name for metrics in last for name in metrics)
    return {name: _mean([_finite(metrics.get(name)) for metrics in last]) for name in names}


def write_summary(path: Path, document: Mapping[str, Any]) -> None:
    """Writes `summary.json` into the directory `path`, whole or not at all."""
    replace_file(path / "summary.json", (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())


def measure(run: Run, target: float | None) -> dict[str, float | None]:
    """Measures one run; costs are realised ones, except those that are called expected."""
    reached = None if target is None else find_crossing(run.records, target, run.fleet.metrics[0])
    costs = ("seconds_to_target", "expected_seconds_to_target", "joules_to_target")
    last = run.records[-1] if run.records else None
    return {
        "quality_within_budgets": find_quality_within_budgets(run),
        **dict(zip(costs, reached or (None, None, None), strict=True)),
        "final_accuracy": _find_last(run, "accuracy"),
        **{name: None if last is None else getattr(last, field) for name, field in _ENDS.items()},
        "seconds_budget": run.fleet.seconds_budget,
        "joules_budget": run.fleet.joules_budget,
        **{name: _sum_field(run, name) for name in _SUMMED},
        "peak_memory_bytes": None if last is None else last.peak_memory_bytes,
        **{name: _find_last(run, name) for name in _DEVICE_ACCURACY},
    }


def find_quality_within_budgets(run: Run) -> float | None:
    """The metric of the last evaluated model before the first budget was used up; None if there is none."""
    seconds, joules = (
        math.inf if budget is None else budget * (1 + ROUNDING)
        for budget in (run.fleet.seconds_budget, run.fleet.joules_budget)
    )
    found = (
        value
        for record in reversed(run.records)
        if record.seconds_realised <= seconds and record.joules_realised <= joules
        if (value := _finite(record.accuracy)) is not None
    )
    return next(found, None)


def _sum_field(run: Run, name: str) -> float | None:
    """The sum over all rounds; None if one does not have the value, as in logs of earlier versions."""
    values = [_finite(getattr(record, name)) for record in run.records]
    return sum(value for value in values if value is not None) if values and None not in values else None


def _find_last(run: Run, name: str) -> float | None:
    """The value of the last round that has one."""
    return next(
        (value for each in reversed(run.records) if (value := _finite(getattr(each, name))) is not None), None
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    # A seed that missed the target is the slowest, not one to leave out.
    return fmean(present) if present and len(present) == len(values) else None


def _ratio(reference: float | None, value: float | None) -> float | None:
    return reference / value if reference is not None and value else None


def _column(per_seed: Mapping[str, Mapping[str, float | None]], name: str) -> list[float | None]:
    return [values[name] for values in per_seed.values()]


class Crossing(NamedTuple):
    """What a run had spent when it reached the target.

    Steps drawn at random make a round longer than the controller expects, because it waits for its slowest
    device. So times use the steps actually taken, with the expected time beside them.
    """

    realised_seconds: float
    expected_seconds: float
    joules: float


def find_crossing(
    records: Sequence[RoundRecord], target: float, metric: Metric = ACCURACY
) -> Crossing | None:
    """What was spent at the target; None for a run that does not reach it.

    Costs are interpolated between the last evaluated round that misses the target and the first that reaches
    it; otherwise schemes with short rounds would have an advantage. Before the first evaluated round nothing
    is known, so a run that reaches the target in it is charged for all of it.
    """
    points = [
        (record.accuracy, Crossing(record.seconds_realised, record.seconds_expected, record.joules_realised))
        for record in records
        if record.accuracy is not None and math.isfinite(record.accuracy)
    ]
    if points and metric.reaches(points[0][0], target):
        return points[0][1]
    for (worse, before), (better, after) in pairwise(points):
        if metric.reaches(better, target) and not metric.reaches(worse, target):
            share = (target - worse) / (better - worse)
            return Crossing(*(a + share * (b - a) for a, b in zip(before, after, strict=True)))
    return None


@dataclass(frozen=True, slots=True)
class Overrun:
    """A budget that a run broke."""

    resource: str  # "seconds" or "joules"
    spent: float  # at the end of the run, realised
    budget: float
    since_round: int  # the first global round that ended above the budget
    reason: str

    @property
    def share(self) -> float:
        """What was spent beyond the budget, relative to it."""
        return self.spent / self.budget - 1.0

    def describe(self) -> str:
        name, unit = _NAMES[self.resource]
        return (
            f"{name} exceeds its budget by {_format_share(self.share)} ({self.spent:,.6g} of "
            f"{self.budget:,.6g} {unit}), since round {self.since_round}: {self.reason}"
        )

    def describe_briefly(self) -> str:
        """Only what and by how much: "time by 25.7 %"."""
        return f"{_NAMES[self.resource][0]} by {_format_share(self.share)}"

    @property
    def cause(self) -> str:
        """The reason without its details."""
        return self.reason.partition(":")[0].partition(" (")[0]


def _format_share(share: float) -> str:
    return f"{100 * share:,.0f} %" if share >= 1 else f"{100 * share:.3g} %"


@dataclass(frozen=True, slots=True)
class MissedCaps:
    """Rounds whose plans could not meet their caps: how many, since when, and what the first missed."""

    rounds: int
    since_round: int
    first: str
    on_unreachable: str

    def describe(self) -> str:
        return (
            f"caps could not be met in {plural(self.rounds, 'round')}, first in round {self.since_round}: "
            f"{self.first} (scheme.on_unreachable = {self.on_unreachable!r})"
        )


def find_overruns(run: Run) -> tuple[Overrun, ...]:
    """The budgets that a run broke with the steps that devices really took."""
    found = []
    for resource, budget in (("seconds", run.fleet.seconds_budget), ("joules", run.fleet.joules_budget)):
        spent = [(record.round, float(getattr(record, f"{resource}_realised"))) for record in run.records]
        most = math.inf if budget is None else budget * (1 + ROUNDING)
        since = next((number for number, each in spent if each > most), None)
        if budget is not None and since is not None:
            reason = _explain(run, resource, since, budget)
            found.append(Overrun(resource, spent[-1][1], budget, since, reason))
    return tuple(found)


def _explain(run: Run, resource: str, since: int, budget: float) -> str:
    name, last = _NAMES[resource][0], run.records[-1]
    if getattr(last, resource) <= budget * (1 + ROUNDING):
        return (
            f"the budget counts expected {name}, but devices drew their steps at random "
            '(scheme.steps = "whole" plans what happens)'
        )
    missed = find_missed_caps(run, f"{name} cap") or find_missed_caps(run)
    if missed is not None:
        return missed.describe()
    if _read_setting(run, "rounds", "stop") == "budget" and since == last.round:
        return 'the run ends with the round that uses it up (rounds.stop = "budget")'
    # Plans that all met their caps add up to the budget, unless the scheme has none.
    if getattr(last, f"{resource}_expected") > budget:
        # `run.scheme` may be the name of a setting or of a variant.
        return f"{name_scheme(str(_read_setting(run, 'scheme', 'name') or run.scheme))} plans without caps"
    return f"rounds took more {name} than their plans expected"


def find_missed_caps(run: Run, kind: str = "") -> MissedCaps | None:
    """The rounds whose plans missed caps of one kind ("time cap", "energy cap"), or any; None without any."""
    missed = [
        record
        for record in run.records
        if not record.feasible and (not kind or any(kind in words for words in record.violations))
    ]
    if not missed:
        return None
    words = next((each for each in missed[0].violations if kind in each), "no reason recorded")
    unreachable = str(_read_setting(run, "scheme", "on_unreachable") or "stretch")
    return MissedCaps(len(missed), missed[0].round, words, unreachable)


def _read_setting(run: Run, section: str, key: str) -> object:
    table = parse_toml(run.experiment_toml).get(section, {})
    return table.get(key) if isinstance(table, Mapping) else None


def describe_overruns(run: Run) -> tuple[str, ...]:
    """What a run broke, one sentence each; caps that it missed without breaking a budget come last.

    A plan meets or misses caps; a budget is broken in what was spent. If every plan met its caps and the
    budget is broken all the same, the scheme plans without caps, or rounds cost more than planned.
    """
    overruns, missed = find_overruns(run), find_missed_caps(run)
    sentences = tuple(each.describe() for each in overruns)
    if missed is None or any("caps could not be met" in each.reason for each in overruns):
        return sentences
    return (*sentences, missed.describe() + ("" if overruns else "; the budgets were kept"))


def list_overruns(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """What each seed of a scheme broke, as plain values; seeds that kept everything are left out."""
    found = {}
    for run in runs:
        overruns, missed = find_overruns(run), find_missed_caps(run)
        if overruns or missed is not None:
            found[str(run.seed)] = {
                "overruns": [asdict(each) | {"share": each.share} for each in overruns],
                "missed_caps": None if missed is None else asdict(missed),
            }
    return found


def describe_worst_overruns(row: Mapping[str, Any]) -> list[str]:
    """What the seeds of a row broke, a sentence for each cause: of each budget the worst seed."""
    found: dict[str, tuple[str, Overrun]] = {}
    for seed, broken in row["over_budget"].items():
        for each in broken["overruns"]:
            overrun = Overrun(**{name: value for name, value in each.items() if name != "share"})
            if each["resource"] not in found or overrun.share > found[each["resource"]][1].share:
                found[each["resource"]] = (seed, overrun)
    by_cause: dict[str, list[str]] = {}
    for seed, overrun in found.values():
        words = overrun.describe_briefly() + (f" (worst: seed {seed})" if len(row["per_seed"]) > 1 else "")
        by_cause.setdefault(overrun.cause, []).append(words)
    return [f"{row['label']}, {' and '.join(parts)}: {cause}" for cause, parts in by_cause.items()]


def geometric_mean(ratios: Sequence[float | None]) -> float | None:
    """The geometric mean; None if a ratio is missing."""
    mean = _mean([_log(ratio) for ratio in ratios])
    return None if mean is None else math.exp(mean)


def geometric_interval(ratios: Sequence[float | None]) -> tuple[float, float] | None:
    """Ends of the 95 % interval of the geometric mean; None for one ratio or a missing one."""
    ends = find_interval([_log(ratio) for ratio in ratios])
    return None if ends is None else (math.exp(ends[0]), math.exp(ends[1]))


def find_interval(values: Sequence[float | None]) -> tuple[float, float] | None:
    """Ends of the 95 % interval of the mean; None for one value or a missing one."""
    mean, half = _mean(values), confidence_half_width(values)
    return None if mean is None or half is None else (mean - half, mean + half)


def _log(ratio: float | None) -> float | None:
    return None if ratio is None else math.log(ratio)


def confidence_half_width(values: Sequence[float | None]) -> float | None:
    """Half the width of the 95 % confidence interval of the mean; None for one value or a missing one."""
    present = [value for value in values if value is not None]
    if len(present) < 2 or len(present) < len(values):
        return None
    return student_quantile(len(present) - 1) * stdev(present) / math.sqrt(len(present))


def student_quantile(degrees_of_freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t; beyond the table by expansion around the normal quantile."""
    if degrees_of_freedom <= len(_STUDENT):
        return _STUDENT[degrees_of_freedom - 1]
    z, n = _NORMAL, degrees_of_freedom
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


def find_p_value(differences: Sequence[float | None]) -> float | None:
    """Two-sided p-value of a paired t-test; None for fewer than five seeds, a missing value or equal ones."""
    present = [each for each in differences if each is not None]
    if len(present) < max(len(differences), LEAST_SEEDS_TO_TEST) or (spread := stdev(present)) == 0:
        return None
    return student_tail(abs(fmean(present)) * math.sqrt(len(present)) / spread, len(present) - 1)


def student_tail(t: float, degrees_of_freedom: int) -> float:
    """Probability that Student's t is beyond ±t: the finite sums of Abramowitz and Stegun, 26.7.3 and 4."""
    angle = math.atan(t / math.sqrt(degrees_of_freedom))
    odd = degrees_of_freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if degrees_of_freedom > 1 else 0.0
    for number in range(2 + odd, degrees_of_freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (number - 1) / number
        total += term
    inside = math.sin(angle) * total
    return 1.0 - (2 / math.pi * (angle + inside) if odd else inside)
