"""Budgets and caps that a run broke: by how much, since which round, and why. From the run directory alone.

Caps are met or missed in the plan of a round; a budget is broken in what was spent. If every plan met its
caps and the budget is broken all the same, the scheme plans without caps, or rounds cost more than planned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cfel.report.load import Run
from cfel.runlog import RoundRecord
from cfel.runlog.toml_text import parse_toml
from cfel.wording import plural

ROUNDING = 1e-6
"""How far a budget may be exceeded by rounding, relative to it."""

_NAMES = {"seconds": ("time", "s"), "joules": ("energy", "J")}


@dataclass(frozen=True, slots=True)
class Overrun:
    """A budget that a run broke.

    Attributes:
        resource: "seconds" or "joules".
        account: "counted", the account that the budget counts, or "realised" where only the steps really
            taken break it.
        spent: at the end of the run.
        budget: what it was allowed.
        since_round: the first global round that ended above the budget.
        reason: why, in words.
    """

    resource: str
    account: str
    spent: float
    budget: float
    since_round: int
    reason: str

    @property
    def share(self) -> float:
        """What was spent beyond the budget, relative to it."""
        return self.spent / self.budget - 1.0

    def describe(self) -> str:
        """The overrun as a sentence."""
        name, unit = _NAMES[self.resource]
        account = "realised " if self.account == "realised" else ""
        return (
            f"{account}{name} exceeds its budget by {_format_share(self.share)} ({self.spent:,.6g} of "
            f"{self.budget:,.6g} {unit}), since round {self.since_round}: {self.reason}"
        )

    def describe_briefly(self) -> str:
        """Only what and by how much: "realised time by 25.7 %"."""
        account = "realised " if self.account == "realised" else ""
        return f"{account}{_NAMES[self.resource][0]} by {_format_share(self.share)}"

    @property
    def cause(self) -> str:
        """The reason without its details."""
        return self.reason.partition(":")[0].partition(" (")[0]


def _format_share(share: float) -> str:
    return f"{100 * share:,.0f} %" if share >= 1 else f"{100 * share:.3g} %"


@dataclass(frozen=True, slots=True)
class MissedCaps:
    """Rounds whose plans could not meet their caps.

    Attributes:
        rounds: how many.
        since_round: the first of them.
        first: what could not be met in it.
        on_unreachable: what the scheme does about such caps.
    """

    rounds: int
    since_round: int
    first: str
    on_unreachable: str

    def describe(self) -> str:
        """The missed caps as a sentence."""
        return (
            f"caps could not be met in {plural(self.rounds, 'round')}, first in round {self.since_round}: "
            f"{self.first} (scheme.on_unreachable = {self.on_unreachable!r})"
        )


def find_overruns(run: Run) -> tuple[Overrun, ...]:
    """The budgets that a run broke, in the account that they count and with the steps really taken."""
    found = (
        _find_overrun(run, resource, budget)
        for resource, budget in (("seconds", run.fleet.seconds_budget), ("joules", run.fleet.joules_budget))
        if budget is not None and run.records
    )
    return tuple(overrun for overrun in found if overrun is not None)


def _find_overrun(run: Run, resource: str, budget: float) -> Overrun | None:
    for account, field in (("counted", resource), ("realised", f"{resource}_realised")):
        since = _find_first(run.records, field, budget)
        if since is not None:
            spent = float(getattr(run.records[-1], field))
            reason = _explain(run, resource, account, since, budget)
            return Overrun(resource, account, spent, budget, since, reason)
    return None


def _find_first(records: Sequence[RoundRecord], field: str, budget: float) -> int | None:
    above = (record.round for record in records if getattr(record, field) > budget * (1 + ROUNDING))
    return next(above, None)


def _explain(run: Run, resource: str, account: str, since: int, budget: float) -> str:
    name, last = _NAMES[resource][0], run.records[-1]
    if account == "realised":
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
        # In a sweep, `run.scheme` is the name of the setting.
        scheme = _read_setting(run, "scheme", "name") if run.setting else run.scheme
        return f"{scheme} plans without caps"
    return f"rounds took more {name} than their plans expected"


def find_missed_caps(run: Run, kind: str = "") -> MissedCaps | None:
    """The rounds whose plans missed caps of one kind ("time cap", "energy cap"), or any; None without any."""
    missed = [record for record in run.records if not record.feasible and _mentions(record, kind)]
    if not missed:
        return None
    words = next((each for each in missed[0].violations if kind in each), "no reason recorded")
    unreachable = str(_read_setting(run, "scheme", "on_unreachable") or "stretch")
    return MissedCaps(len(missed), missed[0].round, words, unreachable)


def _mentions(record: RoundRecord, kind: str) -> bool:
    return not kind or any(kind in words for words in record.violations)


def _read_setting(run: Run, section: str, key: str) -> object:
    table = parse_toml(run.experiment_toml).get(section, {})
    return table.get(key) if isinstance(table, Mapping) else None


def describe_overruns(run: Run) -> tuple[str, ...]:
    """What a run broke, one sentence each; caps that it missed without breaking a budget come last."""
    overruns, missed = find_overruns(run), find_missed_caps(run)
    sentences = tuple(each.describe() for each in overruns)
    if missed is None or any(each.account == "counted" for each in overruns):
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
