"""A dry run: a whole run's plans and costs without any learning.

With σ² and G² assumed constant nothing has to be trained to know what a scheme will ask of each device and
what that costs on average. It answers "what would CEF use?", on which the paper's budgets rest, and gives
Theorem 1 the plans it is about.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cfel.control.caps import Budget
from cfel.control.scheme import Gossip, RoundPlan, SchemeParameters
from cfel.control.schemes import build_scheme
from cfel.control.schemes.hcef_plus import FIRST_WEIGHT
from cfel.control.setting import Setting
from cfel.cost import GlobalRoundCost, Ledger
from cfel.errors import InputError
from cfel.rounds.kernel import (
    ControlState,
    EdgeRoundOutcome,
    FleetEstimates,
    charge_edge_round,
    charge_gossip,
    close_global_round,
    compute_outcome,
    count_global_round,
    initial_control,
    observe,
    plan_edge_round,
)
from cfel.system.conditions import Conditions

MOST_EDGE_ROUNDS = 50_000
"""Of a dry run for a budget, which every process of a run makes before it starts; takes a minute or two."""

# Seconds or joules: nothing is not cheaper than this.
TINY = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class DryRunRound:
    """One global round of a dry run: its edge rounds, its expected cost, and what is spent by its end."""

    conditions: tuple[Conditions, ...]
    plans: tuple[RoundPlan, ...]
    cost: GlobalRoundCost
    ledger: Ledger


def dry_run(setting: Setting, sigma2: float = 1.0, g2: float = 1.0) -> Iterator[DryRunRound]:
    """Runs the controller for φ global rounds, on expected costs, with the same σ² and G² of every device."""
    # Only what is expected can be counted where no device takes a step.
    setting = replace(setting, accounting="expected")
    ones = np.ones(setting.fleet.devices)
    estimates = FleetEstimates(sigma2 * ones, g2 * ones)
    # The same kernel as in a real run, so that a dry run cannot drift away from what it predicts.
    control = initial_control(setting)
    for _ in range(setting.rounds.global_rounds):
        edge_rounds: list[EdgeRoundOutcome] = []
        for edge_round in range(setting.rounds.edge_rounds):
            control, outcome = _run_edge_round(setting, control, edge_round, estimates)
            edge_rounds.append(outcome)
            if setting.scheme.gossip.is_due_within(edge_round, setting.rounds.edge_rounds):
                control = charge_gossip(setting, control)
        control = close_global_round(setting, control)
        yield DryRunRound(
            conditions=tuple(each.conditions for each in edge_rounds),
            plans=tuple(each.plan for each in edge_rounds),
            cost=count_global_round(setting, edge_rounds),
            ledger=control.expected,
        )


def _run_edge_round(
    setting: Setting, control: ControlState, edge_round: int, estimates: FleetEstimates
) -> tuple[ControlState, EdgeRoundOutcome]:
    conditions = setting.conditions(control.rounds_done, edge_round, control.spent_joules)
    observation = observe(setting, control, edge_round, conditions, estimates)
    plan, control = plan_edge_round(setting, control, observation)
    outcome = compute_outcome(setting, plan.leave_out(conditions), plan, work=())
    return charge_edge_round(control, outcome), outcome


def compute_use(setting: Setting, scheme: str = "cef") -> Budget:
    """What a scheme without limits uses over the whole run, on average over its random steps.

    Raises:
        InputError: it uses nothing, or finding out would take too long.
    """
    if (count := setting.rounds.edge_rounds_left(0, 0)) > MOST_EDGE_ROUNDS:
        raise InputError(
            f"budget.share_of_cef: what {scheme} would use in {count:,} edge rounds takes too long to count, "
            f"at most {MOST_EDGE_ROUNDS:,} are; set budget.seconds and budget.joules, or fewer rounds"
        )
    unlimited = replace(setting, scheme=build_scheme(SchemeParameters(name=scheme)), budget=Budget())
    *_, last = dry_run(unlimited)
    # A budget of zero would make every later round infeasible, with an error far from its cause.
    if not (last.ledger.seconds > 0 and last.ledger.joules > 0):
        raise InputError(
            f"budget: a share of what {scheme} uses is nothing, as it uses {last.ledger.seconds:g} s and "
            f"{last.ledger.joules:g} J; is any device available?"
        )
    return Budget(last.ledger.seconds, last.ledger.joules)


def choose_gossip(setting: Setting) -> Setting:
    """The setting with gossip as often as it pays, given the price of the backhaul's bits.

    The first edge round is planned; what it and its share of gossip take in seconds and joules is weighed
    against what an edge round is worth with that gossip. Without a price, the scheme's own gossip is kept.
    """
    scheme, rounds = setting.scheme, setting.rounds
    if not (scheme.sparing and setting.joules_per_bit):
        return setting
    once = replace(setting, rounds=replace(rounds, global_rounds=1, edge_rounds=1), joules_per_bit=0.0)
    cost = next(dry_run(replace(once, scheme=replace(scheme, gossip=Gossip())))).cost
    work = cost.seconds - float(setting.backhaul_seconds.max())

    def score(choice: tuple[Gossip, float]) -> float:
        each = replace(setting, scheme=replace(scheme, gossip=choice[0]))
        seconds = work + each.exchanges_per_edge_round * float(each.exchange_seconds.max())
        joules = cost.joules + each.compute_backhaul_joules(0) / rounds.edge_rounds
        costs = np.log(np.maximum([seconds, joules], TINY))
        return math.log(choice[1]) - float(np.dot([FIRST_WEIGHT, 1 - FIRST_WEIGHT], costs))

    best, _ = max(((scheme.gossip, 1.0), *scheme.sparing), key=score)
    return replace(setting, scheme=replace(scheme, gossip=best, sparing=()))
