"""Plans the rounds of a federation with one server: steps and sparsity per node, within budgets.

It is cfel's controller with one cluster and without gossip: the same schemes, caps, cost model and ledger.
Numbers only: Flower is in `strategy`. Nodes may come and go; each is known by a number of the caller's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray
from cfel.control.caps import Budget, Rounds
from cfel.control.planning import plan_by_scheme
from cfel.control.scheme import Observation, SchemeParameters
from cfel.control.schemes import build_scheme
from cfel.cost import (
    Ledger,
    after_edge_round,
    after_global_round,
    edge_round_cost,
    open_ledger,
    realised_joules,
    realised_seconds,
)
from cfel.errors import InputError
from cfel.system.conditions import Conditions

FIELDS = ("mu", "alpha", "nu", "power")
"""Names of what computing and sending cost a node, as in the tables of `cfel plan`."""

# Rounding must not end a run whose plans use up a budget exactly.
_TOLERANCE = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class NodeConditions:
    """What computing and sending cost a node.

    Attributes:
        mu: seconds per local step, > 0.
        alpha: joules per local step, ≥ 0.
        nu: seconds to upload the full model, ≥ 0.
        power: watts while sending, ≥ 0.
    """

    mu: float
    alpha: float
    nu: float
    power: float

    def __post_init__(self) -> None:
        validation.check_number("mu", self.mu, above=0)
        for name in FIELDS[1:]:
            validation.check_number(name, getattr(self, name), least=0)

    @classmethod
    def read(cls, given: Mapping[str, Any], before: "NodeConditions | None" = None) -> "NodeConditions":
        """Reads the four numbers from a mapping that may hold others; a missing one is as `before`."""
        missing = [name for name in FIELDS if name not in given]
        if missing and before is None:
            raise InputError(f"conditions of a node: {', '.join(missing)} is missing")
        return cls(**{name: given[name] if name in given else getattr(before, name) for name in FIELDS})


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """What a node is asked to do in a round: local steps, and the share θ of its update to send."""

    steps: int
    theta: float


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node says after a round; None for what it does not say."""

    steps: int | None = None  # local steps taken; those of its order by default
    conditions: NodeConditions | None = None  # what they cost; as known before by default
    # sigma2 and g2: its estimates of σ² and G².
    sigma2: float | None = None
    g2: float | None = None
    # Share of its update's energy in the largest entries, at `RoundPlanner.kept_energy_at`.
    kept_energy: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A finished round: the orders by node, the slowest node's seconds, and the joules of all."""

    orders: Mapping[int, NodeOrder]
    seconds: float
    joules: float


class RoundPlanner:
    """The controller of a federation with one server.

    Call `plan` and then `charge`, once per round.

    Args:
        rounds: how many share the budgets, ≥ 1.
        local_steps: τ, most steps of a node in a round, ≥ 1.
        time_budget: seconds for all rounds; None for no limit.
        energy_budget: joules for all rounds and nodes; None for no limit.
        scheme: the name of a scheme, or its parameters; they must ask for whole steps.

    Attributes:
        ledger: what has been spent.
        history: the finished rounds.
        kept_energy_at: shares at which the scheme would like to know `NodeReport.kept_energy`.
    """

    def __init__(
        self,
        rounds: int,
        local_steps: int,
        time_budget: float | None = None,
        energy_budget: float | None = None,
        scheme: str | SchemeParameters = "hcef_plus",
    ) -> None:
        self.rounds = Rounds(rounds, 1, local_steps)
        self.budget = Budget(
            np.inf if time_budget is None else time_budget, np.inf if energy_budget is None else energy_budget
        )
        parameters = SchemeParameters(name=scheme, steps="whole") if isinstance(scheme, str) else scheme
        self._scheme = build_scheme(parameters)
        # What is not planned in whole steps would have to be rounded, and budgets would not cover what is
        # rounded up.
        if self._scheme.device_overrides.steps != "whole":
            raise InputError(
                f"scheme.steps = {parameters.steps!r}: Flower's clients are asked for whole steps, which "
                f"scheme {parameters.name!r} then does not plan in; set steps = 'whole'"
            )
        self._state = self._scheme.init()
        self.kept_energy_at = self._scheme.device_overrides.kept_energy_at
        self.ledger: Ledger = open_ledger(1)
        self.history: list[PlannedRound] = []
        # In order of appearance, so that a node keeps its number when others come and go.
        self._conditions: dict[int, NodeConditions] = {}
        self._reports: dict[int, NodeReport] = {}
        self._orders: dict[int, NodeOrder] = {}

    def knows(self, node: int) -> bool:
        return node in self._conditions

    def find_conditions(self, node: int) -> NodeConditions:
        return self._conditions[node]

    def set_conditions(self, node: int, conditions: NodeConditions) -> None:
        self._conditions[node] = conditions

    def plan(self, nodes: Iterable[int]) -> dict[int, NodeOrder]:
        """Plans the next round with those of `nodes` that are to take part.

        No node gets an order if what is left of a budget does not cover the plan.
        """
        chosen = frozenset(nodes)
        if unknown := chosen - self._conditions.keys():
            raise InputError(f"plan: nothing is known about node {min(unknown)}; call set_conditions first")
        if len(self.history) >= self.rounds.global_rounds:
            raise InputError(f"plan: all {len(self.history)} rounds are over")
        if not chosen:
            return {}
        plan, self._state = plan_by_scheme(self._scheme, self._state, self._observe(chosen))
        steps = np.rint(plan.rho * self.rounds.local_steps)
        orders = {
            node: NodeOrder(int(steps[place]), float(plan.theta[place]))
            for place, node in enumerate(self._conditions)
            if node in chosen and steps[place] > 0
        }
        seconds, joules = self._count(orders, {})
        affordable = (
            self.ledger.seconds + seconds <= self.budget.seconds * _TOLERANCE
            and self.ledger.joules + joules <= self.budget.joules * _TOLERANCE
        )
        self._orders = orders if affordable else {}
        return dict(self._orders)

    def charge(self, reports: Mapping[int, NodeReport]) -> PlannedRound:
        """Ends a round: adds its cost to the ledger.

        A node without a report is charged for its order: nobody knows how far it came.
        """
        seconds, joules = self._count(self._orders, reports)
        cost = edge_round_cost([seconds], [joules], [0], 1)
        self.ledger = after_global_round(after_edge_round(self.ledger, cost), [0.0])
        for node, report in reports.items():
            self._reports[node] = report
            if report.conditions is not None:
                self.set_conditions(node, report.conditions)
        done = PlannedRound(self._orders, seconds, joules)
        self.history.append(done)
        self._orders = {}
        return done

    def _count(
        self, orders: Mapping[int, NodeOrder], reports: Mapping[int, NodeReport]
    ) -> tuple[float, float]:
        """Seconds of the slowest node, and joules of all."""
        seconds = joules = 0.0
        for node, order in orders.items():
            report = reports.get(node, NodeReport())
            steps = order.steps if report.steps is None else report.steps
            now = report.conditions or self._conditions[node]
            seconds = max(seconds, float(realised_seconds(steps, order.theta, now.mu, now.nu)))
            joules += float(realised_joules(steps, order.theta, now.alpha, now.nu, now.power))
        return seconds, joules

    def _observe(self, chosen: frozenset[int]) -> Observation:
        known = list(self._conditions.values())
        columns = {name: np.array([getattr(each, name) for each in known]) for name in FIELDS}
        available = np.array([node in chosen for node in self._conditions])
        sigma2, g2 = self._estimate()
        kept = [report.kept_energy for report in self._reports.values() if report.kept_energy]
        return Observation(
            global_round=len(self.history),
            edge_round=0,
            rounds=self.rounds,
            conditions=Conditions(**columns, available=available),
            cluster=np.zeros(len(known), dtype=np.intp),
            sigma2=np.full(len(known), sigma2),
            g2=np.full(len(known), g2),
            ledger=self.ledger,
            budget=self.budget,
            gossip_seconds_left=np.zeros(1),
            kept_energy=np.mean(kept, axis=0) if kept else None,
            # Flower does not set clocks.
            full_clocks=True,
        )

    def _estimate(self) -> tuple[float, float]:
        """The means of σ² and G² over the nodes that reported both; 1 if none did, as in `cfel plan`."""
        reports = self._reports.values()
        both: FloatArray = np.array(
            [(each.sigma2, each.g2) for each in reports if each.sigma2 is not None and each.g2 is not None]
        )
        if not both.size:
            return 1.0, 1.0
        return float(both[:, 0].mean()), float(both[:, 1].mean())
