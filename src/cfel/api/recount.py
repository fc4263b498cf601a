"""Counts a finished run again under other conditions, without training again.

Where a scheme asks the same of every device whatever it costs, as CEF does, its models do not depend on the
conditions: the same accuracies cost other seconds and joules. So its log can be combined with the costs of a
dry run. This holds only if nothing that is learned depends on what changes, and that is checked: the dry run
must give the log's own costs under the run's own conditions, and the same plans under the new ones.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from cfel.control.setting import Setting
from cfel.cost import NO_DEVICE
from cfel.errors import InputError
from cfel.experiment import Experiment, experiment_toml, load_directory_experiment
from cfel.plugins import BUILT_IN_ONLY, CodePolicy
from cfel.rounds.dry_run import DryRunRound, dry_run
from cfel.rounds.run_directory import create_run
from cfel.runlog import RoundRecord, RunDirectory
from cfel.simulation.parameters import reject_buffering
from cfel.wording import plural

CHANGEABLE = (
    *("fleet.conditions.", "budget.", "scheme.slow_clocks", "topology.joules_per_bit"),
    "rounds.global",
)
"""Keys that cost time and energy but teach nothing, as long as the plans stay the same."""


def recount(
    directory: Path,
    out: Path,
    changes: Sequence[str],
    code: CodePolicy = BUILT_IN_ONLY,
    command: Sequence[str] = (),
) -> tuple[RoundRecord, ...]:
    """Writes a new run directory with the models of one run and the costs of other conditions.

    `changes` are assignments like "fleet.conditions.channel_floor=0". Returns the new records.
    """
    for change in changes:
        if not change.strip().startswith(CHANGEABLE):
            raise InputError(
                f"--set {change}: could change what is learned (allowed: {', '.join(CHANGEABLE)})"
            )
    records = RunDirectory.open(directory).records()
    if not records:
        raise InputError(f"{directory}: has no rounds to count")
    before = load_directory_experiment(directory, (), code)
    reject_buffering(before.aggregation, "a recount")
    after = load_directory_experiment(directory, changes, code)
    if after.rounds.global_rounds < len(records):
        raise InputError(
            f"rounds.global = {after.rounds.global_rounds}: the run has {plural(len(records), 'round')} "
            "already"
        )
    then, now = _dry_run(before, len(records)), _dry_run(after, len(records))
    _check_same_run(directory, records, then)
    _check_same_plans(then, now)
    setting = after.build_setting()
    if setting.scheme.gossip != before.build_setting().scheme.gossip:
        raise InputError("the scheme gossips less often under the new conditions; run it again")
    recounted = tuple(_recount_round(setting, *pair) for pair in zip(records, now, strict=True))
    with create_run(out, setting, experiment_toml(after), command) as writer:
        for record in recounted:
            writer.append(record)
    return recounted


def _dry_run(experiment: Experiment, rounds: int) -> list[DryRunRound]:
    setting: Setting = experiment.build_setting()
    return list(islice(dry_run(setting), rounds))


def _check_same_run(directory: Path, records: Sequence[RoundRecord], found: Sequence[DryRunRound]) -> None:
    """Raises unless the log's costs are those of a dry run, in both accounts: nothing was left to chance."""
    for record, each in zip(records, found, strict=True):
        logged = (
            *(record.seconds_expected, record.joules_expected),
            *(record.seconds_realised, record.joules_realised),
        )
        expected = (each.ledger.seconds, each.ledger.joules) * 2
        if not all(math.isclose(*pair, rel_tol=1e-9) for pair in zip(logged, expected, strict=True)):
            raise InputError(
                f"{directory}: round {record.round} cost {record.seconds_realised:.6g} s and "
                f"{record.joules_realised:.6g} J, but its experiment gives {each.ledger.seconds:.6g} s and "
                f"{each.ledger.joules:.6g} J without training. What this run did depends on chance, on "
                "estimates or on measurements, so it has to be run again"
            )


def _check_same_plans(then: Sequence[DryRunRound], now: Sequence[DryRunRound]) -> None:
    for number, (before, after) in enumerate(zip(then, now, strict=True), start=1):
        for old, new in zip(before.plans, after.plans, strict=True):
            if not (np.array_equal(old.rho, new.rho) and np.array_equal(old.theta, new.theta)):
                raise InputError(
                    f"round {number}: the scheme makes other plans under the new conditions, so its models "
                    "would differ; run it again"
                )


def _recount_round(setting: Setting, record: RoundRecord, found: DryRunRound) -> RoundRecord:
    seconds, joules = found.ledger.seconds, found.ledger.joules
    return replace(
        record,
        seconds=seconds,
        joules=joules,
        seconds_expected=seconds,
        joules_expected=joules,
        seconds_realised=seconds,
        joules_realised=joules,
        backhaul_joules=setting.compute_backhaul_joules(record.round - 1),
        straggler=None if found.cost.straggler == NO_DEVICE else found.cost.straggler,
        slowest_cluster=found.cost.slowest_cluster,
    )
