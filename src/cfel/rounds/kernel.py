"""One edge round as the controller sees it: observe, plan, count the costs, charge them to the ledgers.

    observation = observe(setting, control, edge_round, conditions, estimates)
    plan, control = plan_edge_round(setting, control, observation)
    outcome = compute_outcome(setting, conditions, plan, work)
    control = charge_edge_round(control, outcome)

Numbers only: who trains, and where, is up to the driver. What becomes of a global round is in `records`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.caps import Budget, Rounds
from cfel.control.planning import plan_by_scheme
from cfel.control.scheme import Observation, RoundPlan, State
from cfel.control.setting import Setting
from cfel.cost import (
    EdgeRoundCost,
    GlobalRoundCost,
    Ledger,
    after_edge_round,
    after_exchange,
    after_global_round,
    device_joules,
    device_seconds,
    edge_round_cost,
    global_round_cost,
    open_ledger,
    realised_joules,
    realised_seconds,
)
from cfel.learning.device_messages import DeviceOrder, Order
from cfel.learning.local.parameters import LocalParameters
from cfel.learning.models.flat import FlatModel
from cfel.runlog import RoundRecord
from cfel.system import Conditions


@dataclass(frozen=True, slots=True, eq=False)
class ControlState:
    """What the controller carries from one edge round to the next.

    Attributes:
        rounds_done: finished global rounds.
        scheme: the scheme's state.
        expected: what was spent by the plans.
        realised: what was spent with the steps really taken.
        spent_joules: per device, in the account that the budget counts.
        losses: newest mean training loss of every device, NaN before its first; None before any.
    """

    rounds_done: int
    scheme: State
    expected: Ledger
    realised: Ledger
    spent_joules: FloatArray
    losses: FloatArray | None = None

    def ledger(self, setting: Setting) -> Ledger:
        """The account that the budget counts."""
        return self.expected if setting.accounting == "expected" else self.realised


def initial_control(setting: Setting) -> ControlState:
    """Before the first round."""
    clusters = setting.fleet.clusters
    return ControlState(
        rounds_done=0,
        scheme=setting.scheme.init(),
        expected=open_ledger(clusters),
        realised=open_ledger(clusters),
        spent_joules=np.zeros(setting.fleet.devices),
    )


class FleetEstimates(NamedTuple):
    """σ² and G² of every device, and the mean energy that the largest entries of an update keep."""

    sigma2: FloatArray
    g2: FloatArray
    kept_energy: FloatArray | None = None


class DeviceWork(NamedTuple):
    """What one device did in an edge round, as far as costs and records depend on it."""

    device: int
    steps: int
    wire_bits: int
    loss: float


@dataclass(frozen=True, slots=True, eq=False)
class EdgeRoundOutcome:
    """What happened in one edge round.

    Attributes:
        conditions, plan: the devices' conditions, and what they were asked to do.
        steps, wire_bits: per device, bits as they are charged; 0 for those who took no part.
        seconds, joules: per device, in the account that the budget counts.
        expected, realised: cost of the edge round in both accounts.
        losses: training losses of the devices that took a step, by device.
    """

    conditions: Conditions
    plan: RoundPlan
    steps: FloatArray
    wire_bits: FloatArray
    seconds: FloatArray
    joules: FloatArray
    expected: EdgeRoundCost
    realised: EdgeRoundCost
    losses: Mapping[int, float]


def observe(
    setting: Setting,
    control: ControlState,
    edge_round: int,
    conditions: Conditions,
    estimates: FleetEstimates,
) -> Observation:
    """What the scheme sees at the start of an edge round (r, from 0)."""
    battery = setting.fleet.battery_joules
    exchanges = setting.scheme.gossip.count_exchanges(edge_round, setting.rounds.edge_rounds)
    return Observation(
        global_round=control.rounds_done,
        edge_round=edge_round,
        rounds=setting.rounds,
        conditions=conditions,
        cluster=setting.fleet.cluster,
        sigma2=estimates.sigma2,
        g2=estimates.g2,
        ledger=control.ledger(setting),
        budget=setting.reserve_backhaul(control.rounds_done),
        gossip_seconds_left=setting.exchange_seconds * exchanges,
        battery=None if battery is None else np.maximum(battery - control.spent_joules, 0.0),
        kept_energy=estimates.kept_energy,
        seed=setting.seed,
        losses=control.losses,
        samples=setting.fleet.samples,
        small_batches=setting.small_batches,
    )


def plan_edge_round(
    setting: Setting, control: ControlState, observation: Observation
) -> tuple[RoundPlan, ControlState]:
    """The scheme's plan, and the control with its next state."""
    plan, state = plan_by_scheme(setting.scheme, control.scheme, observation)
    return plan, replace(control, scheme=state)


def compute_outcome(
    setting: Setting, conditions: Conditions, plan: RoundPlan, work: Iterable[DeviceWork]
) -> EdgeRoundOutcome:
    """What an edge round cost, expected and realised.

    Args:
        setting: the controlled system.
        conditions: of the edge round, with who took part.
        plan: what the devices were asked.
        work: what they did, by device id; without any, nothing was realised.
    """
    fleet, tau = setting.fleet, setting.rounds.local_steps
    steps, wire_bits = np.zeros(fleet.devices), np.zeros(fleet.devices)
    losses: dict[int, float] = {}
    for each in work:
        steps[each.device] = each.steps
        wire_bits[each.device] = each.wire_bits * setting.charged_share
        if each.steps:
            losses[each.device] = each.loss
    sent = wire_bits / setting.model_bits if setting.uploads == "wire" else plan.theta
    now, present = plan.apply_speed(conditions), conditions.available
    expected = (
        device_seconds(plan.rho, plan.theta, tau, now.mu, now.nu),
        device_joules(plan.rho, plan.theta, tau, now.alpha, now.nu, now.power),
    )
    charged = setting.charge_steps(steps, plan.rho)
    realised = (
        realised_seconds(charged, sent, now.mu, now.nu),
        realised_joules(charged, sent, now.alpha, now.nu, now.power),
    )
    seconds, joules = expected if setting.accounting == "expected" else realised
    return EdgeRoundOutcome(
        conditions=conditions,
        plan=plan,
        steps=steps,
        wire_bits=wire_bits,
        seconds=np.where(present, seconds, 0.0),
        joules=np.where(present, joules, 0.0),
        expected=edge_round_cost(*expected, fleet.cluster, fleet.clusters, present),
        realised=edge_round_cost(*realised, fleet.cluster, fleet.clusters, present),
        losses=losses,
    )


def count_global_round(setting: Setting, edge_rounds: Sequence[EdgeRoundOutcome]) -> GlobalRoundCost:
    """Cost of a global round in the account that the budget counts, and who caused it."""
    expected = setting.accounting == "expected"
    return global_round_cost(
        [each.expected if expected else each.realised for each in edge_rounds],
        setting.exchange_seconds,
        every_edge_round=setting.scheme.gossip.every_edge_round,
    )


def charge_edge_round(control: ControlState, outcome: EdgeRoundOutcome) -> ControlState:
    """The control after an edge round."""
    return replace(
        control,
        expected=after_edge_round(control.expected, outcome.expected),
        realised=after_edge_round(control.realised, outcome.realised),
        # Per device and not only in total, because each battery runs out on its own.
        spent_joules=control.spent_joules + outcome.joules,
        losses=_add_losses(control, outcome),
    )


def _add_losses(control: ControlState, outcome: EdgeRoundOutcome) -> FloatArray | None:
    if not outcome.losses:
        return control.losses
    newest = np.full(len(outcome.steps), np.nan) if control.losses is None else control.losses.copy()
    newest[list(outcome.losses)] = list(outcome.losses.values())
    return newest


def charge_gossip(
    setting: Setting, control: ControlState, measured_seconds: float | None = None
) -> ControlState:
    """The control after gossip within a global round.

    Args:
        setting: the controlled system.
        control: before the gossip.
        measured_seconds: what the gossip really took; None for what the backhaul's model says.
    """
    return replace(
        control,
        expected=after_exchange(control.expected, setting.exchange_seconds),
        realised=after_exchange(control.realised, _gossip_seconds(setting, measured_seconds)),
    )


def close_global_round(
    setting: Setting, control: ControlState, measured_seconds: float | None = None
) -> ControlState:
    """The control after the gossip that ends a global round; arguments as in `charge_gossip`."""
    joules = setting.compute_backhaul_joules(control.rounds_done)
    return replace(
        control,
        rounds_done=control.rounds_done + 1,
        expected=after_global_round(control.expected, setting.exchange_seconds, joules),
        realised=after_global_round(control.realised, _gossip_seconds(setting, measured_seconds), joules),
    )


def _gossip_seconds(setting: Setting, measured_seconds: float | None) -> FloatArray:
    if measured_seconds is None:
        return setting.exchange_seconds
    return np.full(setting.fleet.clusters, measured_seconds)


def make_order(
    setting: Setting,
    global_round: int,
    edge_round: int,
    device: int,
    rho: float,
    theta: float,
    model: FlatModel,
    rate: float = 1.0,
    speed: float = 1.0,
) -> DeviceOrder:
    """The order to one device in one edge round.

    Simulator and edge servers make orders here, so that all train on the same random streams.
    """
    return Order(
        seed=setting.seed,
        global_round=global_round,
        edge_round=edge_round,
        device=device,
        rho=rho,
        theta=theta,
        tau=setting.rounds.local_steps,
        model=model,
        rate=rate,
        speed=speed,
    )


def find_rate(local: LocalParameters, observation: Observation) -> float:
    """The share of the learning rate that the schedule leaves in an edge round, for all devices."""
    rounds = observation.rounds
    if local.schedule_by == "rounds":
        done = observation.global_round * rounds.edge_rounds + observation.edge_round
        return local.find_rate(done / (rounds.global_rounds * rounds.edge_rounds))
    ledger, budget = observation.ledger, observation.budget
    seconds = ledger.seconds + max(ledger.elapsed_seconds)
    joules = ledger.joules + ledger.elapsed_joules
    return local.find_rate(min(1.0, max(seconds / budget.seconds, joules / budget.joules)))


def device_weights(setting: Setting, plan: RoundPlan, samples: Mapping[int, int]) -> dict[int, float]:
    """The weight within its cluster of each device that took part, by the samples that it holds."""
    if plan.weight is not None:
        return {device: float(plan.weight[device]) for device in samples}
    # The paper weighs devices alike. Schemes that average by samples say so in their `gossip`.
    if setting.scheme.gossip.weights == "equal":
        return dict.fromkeys(samples, 1.0)
    return {device: float(held) for device, held in samples.items()}


def is_over(rounds: Rounds, budget: Budget, record: RoundRecord) -> bool:
    """Whether a run ends with this round: all rounds done, a budget used up, or the target reached."""
    if record.round >= rounds.global_rounds or _stops_at_budget(rounds, budget, record):
        return True
    # A round that was not evaluated cannot reach the target; the run continues until one is.
    if rounds.stop != "target" or rounds.target is None or record.accuracy is None:
        return False
    return record.accuracy >= rounds.target


def is_evaluated(setting: Setting, every: int, control: ControlState) -> bool:
    """Whether the round just closed is evaluated: every so many rounds, and the last one always."""
    rounds, ledger = setting.rounds, control.ledger(setting)
    # Whether a target is reached is known only after evaluation, so `is_over` cannot be asked here.
    last = control.rounds_done >= rounds.global_rounds or _stops_at_budget(rounds, setting.budget, ledger)
    return last or control.rounds_done % every == 0


def _stops_at_budget(rounds: Rounds, budget: Budget, spent: Ledger | RoundRecord) -> bool:
    used_up = spent.seconds >= budget.seconds or spent.joules >= budget.joules
    return rounds.stop == "budget" and used_up
