"""Theorem 1 for an experiment file, from a dry run's plans, or for a run, from the plans in its log.

A run logs its plans and its estimates of σ² and G², round by round. An experiment file has neither, so its
controller goes through a dry run with assumed, constant σ² and G².
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cfel import validation
from cfel.control import Bound, Landscape, Rounds, Scheme, build_scheme, omega1, theorem_1
from cfel.control.theory import RoundTerms, combine_terms, compute_terms
from cfel.errors import InputError
from cfel.experiment import Experiment, load_directory_experiment, load_experiment
from cfel.plugins import BUILT_IN_ONLY, CodePolicy
from cfel.rounds.dry_run import dry_run
from cfel.runlog import PlanTable, RunDirectory, holds_run
from cfel.simulation.parameters import reject_buffering
from cfel.system.backhaul import target_weights, zeta

ASSUMED = 1.0
"""σ² and G² where nothing is known about them."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What Theorem 1 needs and an experiment file does not state."""

    initial_gap: float  # F(u⁰) − F_inf
    # sigma2 and g2: σ² and G²; `None` for a run's own estimates, and for 1 where there is no run yet.
    sigma2: float | None = None
    g2: float | None = None
    # L; `None` for 1/(2η), the case in which P2 is the theorem's bound as printed.
    smoothness: float | None = None
    learning_rate: float | None = None  # η; `None` for the experiment's


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One global round of a run."""

    round: int
    # sigma2 and g2: estimated in that round, or assumed.
    sigma2: float
    g2: float
    terms: RoundTerms  # what it adds to the bound
    holds: bool  # whether the backhaul and this round's plans allow η


@dataclass(frozen=True, slots=True)
class TheoremReport:
    """The theorem's terms for one experiment, with everything they depend on."""

    # name, scheme and clusters: of the experiment.
    name: str
    scheme: str
    clusters: int
    edge_rounds: int  # edge rounds of the run or of the dry run
    # zeta and omega1: of the backhaul.
    zeta: float
    omega1: float
    landscape: Landscape  # as assumed; for a run σ² and G² are means over its rounds
    bound: Bound  # of all rounds
    rounds: tuple[RoundReport, ...] = ()  # of a run, round by round; empty for a dry run

    @property
    def violating_rounds(self) -> int:
        """Rounds of a run in which the step-size condition does not hold."""
        return sum(not each.holds for each in self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, including the bound's total."""
        document = asdict(self)
        document["source"] = "logged" if self.rounds else "dry run"
        document["violating_rounds"] = self.violating_rounds if self.rounds else None
        document["bound"]["total"] = self.bound.total
        return document


def report_theorem(
    path: str | Path, changes: Sequence[str], assumed: Assumptions, code: CodePolicy = BUILT_IN_ONLY
) -> TheoremReport:
    """Evaluates the theorem for a run directory, an experiment file or the folder that one is in."""
    if holds_run(Path(path)):
        if changes:
            raise InputError(
                f"--set {changes[0]}: {path} is a run, whose plans cannot change; "
                "give an experiment file to try changes"
            )
        return _report_run(Path(path), assumed, code)
    if not Path(path).is_dir():
        return _report_experiment(load_experiment(path, changes, code), assumed)
    if not (Path(path) / "experiment.toml").exists():
        runs = sorted(log.parent for log in Path(path).glob("*/*/rounds.jsonl"))
        if runs:
            raise InputError(f"{path}: holds a comparison; name one of its runs, as {runs[0]}")
        raise InputError(f"{Path(path) / 'experiment.toml'}: cannot be read: it does not exist")
    return _report_experiment(load_directory_experiment(Path(path), changes, code), assumed)


def _make_landscape(experiment: Experiment, assumed: Assumptions, sigma2: float, g2: float) -> Landscape:
    rate = experiment.local.learning_rate if assumed.learning_rate is None else assumed.learning_rate
    validation.check_number("learning_rate", rate, above=0)
    return Landscape(
        smoothness=1 / (2 * rate) if assumed.smoothness is None else assumed.smoothness,
        initial_gap=assumed.initial_gap,
        sigma2=sigma2 if assumed.sigma2 is None else assumed.sigma2,
        g2=g2 if assumed.g2 is None else assumed.g2,
        learning_rate=rate,
    )


def _report_experiment(experiment: Experiment, assumed: Assumptions) -> TheoremReport:
    reject_buffering(experiment.aggregation, "a dry run")
    _reject_small_batches(build_scheme(experiment.scheme, experiment.code), experiment)
    landscape = _make_landscape(experiment, assumed, ASSUMED, ASSUMED)
    setting = experiment.build_setting()
    survives = setting.scheme.gossip.compute_contraction(setting.backhaul.zeta)
    rounds = dry_run(setting, landscape.sigma2, landscape.g2)
    plans = [
        (plan.rho[now.available], plan.theta[now.available])
        for each in rounds
        for plan, now in zip(each.plans, each.conditions, strict=True)
    ]
    return TheoremReport(
        name=experiment.name,
        scheme=experiment.scheme.name,
        clusters=setting.fleet.clusters,
        edge_rounds=len(plans),
        zeta=survives,
        omega1=omega1(survives),
        landscape=landscape,
        bound=theorem_1(landscape, _count_between_gossip(experiment.rounds, setting.scheme), survives, plans),
    )


def _report_run(path: Path, assumed: Assumptions, code: CodePolicy) -> TheoremReport:
    run = RunDirectory.open(path)
    experiment, records = load_directory_experiment(path, code=code), run.records()
    if not records:
        raise InputError(f"{path}: the run has finished no round yet, so there are no plans to look at")
    reject_buffering(experiment.aggregation, "Theorem 1")
    scheme, fleet = build_scheme(experiment.scheme, experiment.code), run.fleet()
    _reject_small_batches(scheme, experiment)
    # Of the mixing weights that the run really used.
    sizes = np.bincount(fleet.cluster, minlength=fleet.clusters)
    left = zeta(fleet.mixing, target_weights(experiment.topology.weights, sizes))
    survives = scheme.gossip.compute_contraction(left)
    lengths = _count_between_gossip(experiment.rounds, scheme)
    means = (float(np.mean([getattr(each, name) for each in records])) for name in ("sigma2", "g2"))
    landscape = _make_landscape(experiment, assumed, *means)
    edge_rounds = experiment.rounds.edge_rounds
    rounds = []
    for record in records:
        at = _make_landscape(experiment, assumed, record.sigma2, record.g2)
        terms = compute_terms(at, _split_edge_rounds(run.plan(record.round, fleet.devices), edge_rounds))
        alone = combine_terms(at, lengths, survives, [terms])
        rounds.append(RoundReport(record.round, at.sigma2, at.g2, terms, alone.holds))
    return TheoremReport(
        name=experiment.name,
        scheme=experiment.scheme.name,
        clusters=fleet.clusters,
        edge_rounds=len(rounds) * edge_rounds,
        zeta=survives,
        omega1=omega1(survives),
        landscape=landscape,
        bound=combine_terms(landscape, lengths, survives, [each.terms for each in rounds]),
        rounds=tuple(rounds),
    )


def _reject_small_batches(scheme: Scheme, experiment: Experiment) -> None:
    named = {
        "scheme.steps": experiment.scheme.steps,
        f"scheme.name = {experiment.scheme.name!r}": scheme.device_overrides.steps,
        "local.steps": experiment.local.steps,
    }
    for key, steps in named.items():
        if steps in ("small_batches", "last_layers"):
            raise InputError(
                f"{key}: devices take smaller steps ({steps}), and Theorem 1 is about steps that are "
                "left out, as by the scheme hcef"
            )


def _count_between_gossip(rounds: Rounds, scheme: Scheme) -> Rounds:
    """The rounds as the theorem counts them: gossip in every edge round makes each a global round."""
    if not scheme.gossip.every_edge_round:
        return rounds
    return Rounds(rounds.global_rounds * rounds.edge_rounds, 1, rounds.local_steps)


def _split_edge_rounds(table: PlanTable, edge_rounds: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ρ, θ) of each edge round; an edge round without devices has no rows in the table, but counts."""
    chosen = [table.edge_round == number for number in range(edge_rounds)]
    return [(table.rho[rows], table.theta[rows]) for rows in chosen]
