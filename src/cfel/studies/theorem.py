"""Theorem 1 for an experiment file: plans from a rehearsal, constants as assumed or by default."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cfel.control import Bound, Landscape, Rounds, build_scheme, omega1, rehearse, theorem_1
from cfel.experiment import load_experiment
from cfel.system import checked


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What Theorem 1 needs and an experiment file does not say.

    Attributes:
        initial_gap: F(u⁰) − F_inf.
        sigma2, g2: σ² and G².
        smoothness: L; `None` for 1/(2η), the case in which P2 is the theorem's bound as printed.
        learning_rate: η; `None` for the experiment's.
    """

    initial_gap: float
    sigma2: float
    g2: float
    smoothness: float | None = None
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True)
class TheoremReport:
    """The theorem's terms for one experiment, with everything they rest on."""

    name: str
    scheme: str
    clusters: int
    edge_rounds: int
    zeta: float
    omega1: float
    landscape: Landscape
    bound: Bound

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the bound's total included."""
        document = asdict(self)
        document["bound"]["total"] = self.bound.total
        return document


def report_theorem(path: str | Path, changes: Sequence[str], assumed: Assumptions) -> TheoremReport:
    """Rehearses the experiment, a file or the folder it is in, and evaluates the theorem on its plans."""
    file = Path(path) / "experiment.toml" if Path(path).is_dir() else path
    experiment = load_experiment(file, changes)
    rate = experiment.local.learning_rate if assumed.learning_rate is None else assumed.learning_rate
    checked.number("learning_rate", rate, above=0)
    landscape = Landscape(
        smoothness=1 / (2 * rate) if assumed.smoothness is None else assumed.smoothness,
        initial_gap=assumed.initial_gap,
        sigma2=assumed.sigma2,
        g2=assumed.g2,
        learning_rate=rate,
    )
    setting, backhaul = experiment.setting(assumed.sigma2, assumed.g2)
    scheme, rounds = build_scheme(experiment.scheme), experiment.rounds
    if scheme.gossip.every_edge_round:  # for the theorem, global rounds of one edge round each
        rounds = Rounds(rounds.global_rounds * rounds.edge_rounds, 1, rounds.local_steps)
    zeta = scheme.gossip.survives(backhaul.zeta)
    rehearsed = rehearse(setting, scheme, experiment.budgets(setting))
    plans = [
        (plan.rho[now.available], plan.theta[now.available])
        for each in rehearsed
        for plan, now in zip(each.plans, each.conditions, strict=True)
    ]
    return TheoremReport(
        name=experiment.name,
        scheme=experiment.scheme.name,
        clusters=backhaul.clusters,
        edge_rounds=len(plans),
        zeta=zeta,
        omega1=omega1(zeta),
        landscape=landscape,
        bound=theorem_1(landscape, rounds, zeta, plans),
    )
