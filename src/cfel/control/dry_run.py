"""A whole run's plans and costs without any learning: the controller against the fleet's conditions.

With σ² and G² assumed constant nothing has to be trained to know what a scheme will ask of whom and what
that costs on average. It answers "what would CEF use?", on which the paper's budgets rest, and gives
Theorem 1 the plans it speaks of.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.caps import Budget, Rounds
from cfel.control.scheme import Observation, RoundPlan, Scheme, SchemeParameters
from cfel.control.schemes import build_scheme
from cfel.cost import (
    GlobalRoundCost,
    Ledger,
    after_edge_round,
    after_exchange,
    after_global_round,
    device_joules,
    device_seconds,
    edge_round_cost,
    global_round_cost,
    new_ledger,
)
from cfel.errors import InputError
from cfel.system.conditions import Conditions
from cfel.system.fleet import Fleet


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What a dry run needs to know.

    Attributes:
        fleet: devices, clusters and their conditions.
        backhaul_seconds: of one gossip step, per cluster.
        rounds: φ, q, τ.
        seed: of the conditions.
        model_bits: size of a full upload.
        sigma2, g2: assumed throughout.
    """

    fleet: Fleet
    backhaul_seconds: FloatArray
    rounds: Rounds
    seed: int
    model_bits: float
    sigma2: float = 1.0
    g2: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class DryRunRound:
    """One global round of a dry run.

    Attributes:
        conditions, plans: of its edge rounds.
        cost: expected cost.
        ledger: what has been spent when it is over.
    """

    conditions: tuple[Conditions, ...]
    plans: tuple[RoundPlan, ...]
    cost: GlobalRoundCost
    ledger: Ledger


def dry_run(setting: Setting, scheme: Scheme, budget: Budget) -> Iterator[DryRunRound]:
    """Runs the controller for φ global rounds, on expected costs."""
    fleet, rounds, gossip = setting.fleet, setting.rounds, scheme.gossip
    exchange = gossip.exchange_seconds(setting.backhaul_seconds)
    state, ledger = scheme.init(), new_ledger(fleet.clusters)
    spent_joules = np.zeros(fleet.devices)
    ones = np.ones(fleet.devices)
    for global_round in range(rounds.global_rounds):
        conditions, plans, costs = [], [], []
        for edge_round in range(rounds.edge_rounds):
            now = fleet.conditions(setting.seed, global_round, edge_round, setting.model_bits, spent_joules)
            battery = None if fleet.battery_joules is None else fleet.battery_joules - spent_joules
            observation = Observation(
                global_round=global_round,
                edge_round=edge_round,
                rounds=rounds,
                conditions=now,
                cluster=fleet.cluster,
                sigma2=setting.sigma2 * ones,
                g2=setting.g2 * ones,
                ledger=ledger,
                budget=budget,
                backhaul_seconds=exchange * gossip.exchanges_from(edge_round, rounds.edge_rounds),
                battery=None if battery is None else np.maximum(battery, 0.0),
            )
            plan, state = scheme.plan(state, observation)
            run = plan.clocked(now)
            seconds = device_seconds(plan.rho, plan.theta, rounds.local_steps, run.mu, run.nu)
            joules = device_joules(plan.rho, plan.theta, rounds.local_steps, run.alpha, run.nu, run.power)
            cost = edge_round_cost(seconds, joules, fleet.cluster, fleet.clusters, now.available)
            spent_joules = spent_joules + np.where(now.available, joules, 0.0)
            ledger = after_edge_round(ledger, cost)
            if gossip.is_due_within(edge_round, rounds.edge_rounds):
                ledger = after_exchange(ledger, exchange)
            conditions.append(now)
            plans.append(plan)
            costs.append(cost)
        ledger = after_global_round(ledger, exchange)
        total = global_round_cost(costs, exchange, every_edge_round=gossip.every_edge_round)
        yield DryRunRound(tuple(conditions), tuple(plans), total, ledger)


def expected_use(setting: Setting, scheme: str = "cef") -> Budget:
    """What a scheme without limits uses over the whole run, on average over its random steps."""
    *_, last = dry_run(setting, build_scheme(SchemeParameters(name=scheme)), Budget())
    if not (last.ledger.seconds > 0 and last.ledger.joules > 0):
        raise InputError(
            f"budget: a share of what {scheme} uses is nothing, as it uses {last.ledger.seconds:g} s and "
            f"{last.ledger.joules:g} J; is any device available?"
        )
    return Budget(last.ledger.seconds, last.ledger.joules)
