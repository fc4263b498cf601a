"""One edge round as the controller sees it: observe, plan, count the costs, charge them to the ledgers.

    observation = observe(setting, control, edge_round, conditions, estimates)
    plan, control = plan_edge_round(setting, control, observation)
    outcome = compute_outcome(setting, conditions, plan, work)
    control = charge_edge_round(control, outcome)

Numbers only: who trains, and where, is up to the driver. What becomes of a global round is in `records`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import NamedTuple

import numpy as np

from cfel.arrays import BoolArray, FloatArray
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
from cfel.learning.models.flat import FlatModel
from cfel.metric import Metric
from cfel.runlog import RoundRecord
from cfel.system.conditions import Conditions
from cfel.system.fleet import Fleet

# Plans fill caps and deadlines up to rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class ControlState:
    """What the controller carries from one edge round to the next."""

    rounds_done: int  # finished global rounds
    scheme: State  # the scheme's state
    expected: Ledger  # what was spent by the plans
    realised: Ledger  # what was spent with the steps really taken
    spent_joules: FloatArray  # per device, in the account that the budget counts
    # Newest mean training loss of every device, NaN before its first; None before any.
    losses: FloatArray | None = None
    # Running mean of each device's influence (`rounds.estimates`), under the name that checkpoints and
    # coordinators store; None before any.
    habits: FloatArray | None = None
    # How many differences every device lacks to the next model of its edge server, infinite for one that has
    # none of its models; None where devices fetch whole models.
    missed: FloatArray | None = None

    def ledger(self, setting: Setting) -> Ledger:
        """The account that the budget counts."""
        return self.expected if setting.accounting == "expected" else self.realised


def initial_control(setting: Setting) -> ControlState:
    clusters = setting.fleet.clusters
    return ControlState(
        rounds_done=0,
        scheme=setting.scheme.init(),
        expected=open_ledger(clusters),
        realised=open_ledger(clusters),
        spent_joules=np.zeros(setting.fleet.devices),
        missed=np.full(setting.fleet.devices, np.inf) if setting.downloads_differences else None,
    )


def enter_round(setting: Setting, control: ControlState, devices: int | None = None) -> ControlState:
    """The control at the start of a global round: a fleet that has grown has more places in the accounts.

    `devices` are those that have an account here; None for all.
    """
    devices, clusters = setting.fleet.devices if devices is None else devices, setting.fleet.clusters
    if len(control.spent_joules) == devices and control.expected.clusters == clusters:
        return control
    return replace(
        control,
        expected=replace(control.expected, elapsed_seconds=(0.0,) * clusters),
        realised=replace(control.realised, elapsed_seconds=(0.0,) * clusters),
        spent_joules=pad(control.spent_joules, devices, 0.0),
        losses=None if control.losses is None else pad(control.losses, devices, np.nan),
        habits=None if control.habits is None else pad(control.habits, devices, 0.0),
        missed=None if control.missed is None else pad(control.missed, devices, np.inf),
    )


def forget_models(control: ControlState, before: Fleet, now: Fleet) -> ControlState:
    """The control at the start of a global round: a device that has moved has no model of its edge server."""
    if control.missed is None or before is now:
        return control
    missed, known = control.missed.copy(), min(before.devices, len(control.missed))
    missed[:known][before.cluster[:known] != now.cluster[:known]] = np.inf
    return replace(control, missed=missed)


def pad(values: FloatArray, size: int, fill: float) -> FloatArray:
    """The values, followed by as many copies of another one as make them so many."""
    return np.concatenate([values, np.full(size - len(values), fill)])


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
    """What happened in one edge round."""

    # `conditions`, `plan`: the devices' conditions, and what they were asked to do.
    conditions: Conditions
    plan: RoundPlan
    # `steps`, `wire_bits`: per device, bits as they are charged; 0 for those who took no part.
    steps: FloatArray
    wire_bits: FloatArray
    # `seconds`, `joules`: per device, in the account that the budget counts.
    seconds: FloatArray
    joules: FloatArray
    # `expected`, `realised`: cost of the edge round in both accounts.
    expected: EdgeRoundCost
    realised: EdgeRoundCost
    losses: Mapping[int, float]  # training losses of the devices that took a step, by device
    downloads: FloatArray  # what each device fetched, in whole models
    missed: FloatArray | None = None  # what each lacks now, as in `ControlState`


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
    seen = Observation(
        global_round=control.rounds_done,
        edge_round=edge_round,
        rounds=setting.rounds,
        conditions=setting.fleet.misjudge(setting.seed, conditions),
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
        exchange_seconds=float(setting.exchange_seconds.max()) * setting.exchanges_per_edge_round,
        exchange_joules=setting.compute_backhaul_joules(control.rounds_done) / setting.rounds.edge_rounds,
    )
    return replace(seen, rate=setting.find_rate(find_used(setting.schedule_by, seen)))


def plan_edge_round(
    setting: Setting, control: ControlState, observation: Observation
) -> tuple[RoundPlan, ControlState]:
    """The scheme's plan, and the control with its next state."""
    plan, state = plan_by_scheme(setting.scheme, control.scheme, observation, by_clusters=setting.by_clusters)
    return plan, replace(control, scheme=state)


def find_late(
    setting: Setting, conditions: Conditions, plan: RoundPlan, work: Sequence[DeviceWork]
) -> set[int]:
    """The devices whose uploads miss the deadline although their plans would have met it.

    Random steps may be more than were planned, and bits on the wire more than θ. Arguments as for
    `compute_outcome`; `work` may be that of some devices only.
    """
    deadline = setting.scheme.deadline_seconds
    if deadline == np.inf:
        return set()
    steps, wire_bits = _list_work(setting, work)
    seconds, _ = _realise(setting, plan.apply_speed(conditions), plan, steps, wire_bits)
    return {each.device for each in work if seconds[each.device] > deadline * (1 + _ROUNDING)}


def compute_outcome(
    setting: Setting,
    conditions: Conditions,
    plan: RoundPlan,
    work: Iterable[DeviceWork],
    missed: FloatArray | None = None,
) -> EdgeRoundOutcome:
    """What an edge round cost, expected and realised.

    `work` is what devices did, by id; without any, nothing was realised. Nobody waits beyond the deadline. A
    device that was late is charged for all it did. `missed` is what devices lacked (`ControlState`).
    """
    fleet, tau, work = setting.fleet, setting.rounds.local_steps, tuple(work)
    steps, wire_bits = _list_work(setting, work)
    losses = {each.device: each.loss for each in work if each.steps}
    now, present = plan.apply_speed(conditions), conditions.available
    expected = (
        device_seconds(plan.rho, plan.theta, tau, now.mu, now.nu),
        device_joules(plan.rho, plan.theta, tau, now.alpha, now.nu, now.power),
    )
    seconds, joules = _realise(setting, now, plan, steps, wire_bits)
    realised = (np.minimum(seconds, setting.scheme.deadline_seconds), joules)
    seconds, joules = expected if setting.accounting == "expected" else realised

    def count(seconds: FloatArray, joules: FloatArray) -> EdgeRoundCost:
        return edge_round_cost(
            seconds, joules, fleet.cluster, fleet.clusters, present, by_cluster=setting.by_clusters
        )

    return EdgeRoundOutcome(
        conditions=conditions,
        plan=plan,
        steps=steps,
        wire_bits=wire_bits,
        seconds=np.where(present, seconds, 0.0),
        joules=np.where(present, joules, 0.0),
        expected=count(*expected),
        realised=count(*realised),
        losses=losses,
        downloads=np.where(present, 1.0 if missed is None else setting.count_downloads(missed), 0.0),
        missed=None if missed is None else _note_issue(setting, missed, present),
    )


def _note_issue(setting: Setting, missed: FloatArray, present: BoolArray) -> FloatArray:
    """What devices lack after an edge round; an issue is void if nobody of its cluster took part."""
    cluster, issued = setting.fleet.cluster, np.zeros(setting.fleet.clusters, dtype=bool)
    issued[cluster[present]] = True
    return np.where(present, 1.0, missed + issued[cluster])


def _list_work(setting: Setting, work: Iterable[DeviceWork]) -> tuple[FloatArray, FloatArray]:
    """Steps and charged bits of every device; 0 for those that are not in `work`."""
    steps, wire_bits = np.zeros(setting.fleet.devices), np.zeros(setting.fleet.devices)
    for each in work:
        steps[each.device] = each.steps
        wire_bits[each.device] = each.wire_bits * setting.charged_share
    return steps, wire_bits


def _realise(
    setting: Setting, now: Conditions, plan: RoundPlan, steps: FloatArray, wire_bits: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Seconds and joules of every device for what it did."""
    sent = wire_bits / setting.upload_bits if setting.uploads == "wire" else plan.theta
    charged = setting.charge_steps(steps, plan.rho, plan.local_steps)
    return (
        realised_seconds(charged, sent, now.mu, now.nu),
        realised_joules(charged, sent, now.alpha, now.nu, now.power),
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
    return replace(
        control,
        expected=after_edge_round(control.expected, outcome.expected),
        realised=after_edge_round(control.realised, outcome.realised),
        # Per device and not only in total, because each battery runs out on its own.
        spent_joules=control.spent_joules + outcome.joules,
        losses=_add_losses(control, outcome),
        missed=outcome.missed,
    )


def charge_costs(control: ControlState, expected: EdgeRoundCost, realised: EdgeRoundCost) -> ControlState:
    """The same where devices have their accounts elsewhere."""
    return replace(
        control,
        expected=after_edge_round(control.expected, expected),
        realised=after_edge_round(control.realised, realised),
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
    """The control after gossip within a global round; its seconds are the model's unless measured."""
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
    local_steps: int | None = None,
    speed: float = 1.0,
) -> DeviceOrder:
    """The order to one device in one edge round, with ρ, θ and `local_steps` of the plan.

    Simulator and edge servers make orders here, so that all train on the same random streams.
    """
    return Order(
        seed=setting.seed,
        global_round=global_round,
        edge_round=edge_round,
        device=device,
        rho=float(setting.share_step(rho, local_steps)),
        theta=theta,
        tau=local_steps or setting.rounds.local_steps,
        model=model,
        rate=rate,
        speed=speed,
    )


def find_used(schedule_by: str, observation: Observation) -> float:
    """The share of the run that is over, in [0, 1], as schedules of learning rates count it."""
    rounds = observation.rounds
    if schedule_by == "rounds":
        done = observation.global_round * rounds.edge_rounds + observation.edge_round
        return done / (rounds.global_rounds * rounds.edge_rounds)
    ledger, budget = observation.ledger, observation.budget
    seconds = ledger.seconds + max(ledger.elapsed_seconds)
    joules = ledger.joules + ledger.elapsed_joules
    return min(1.0, max(seconds / budget.seconds, joules / budget.joules))


def device_weights(setting: Setting, plan: RoundPlan, samples: Mapping[int, int]) -> dict[int, float]:
    """The weight within its cluster of each device that took part, by the samples that it holds."""
    if plan.weight is not None:
        return {device: float(plan.weight[device]) for device in samples}
    # The paper weighs devices alike. Schemes that average by samples say so in their `gossip`.
    if setting.scheme.gossip.weights == "equal":
        return dict.fromkeys(samples, 1.0)
    return _cap_samples(setting, samples)


def _cap_samples(setting: Setting, samples: Mapping[int, int]) -> dict[int, float]:
    """What devices say they hold, up to what is known of them, or twice the cluster's median if that is more.

    A device that claims 2⁵³ samples would otherwise be the only one that counts.
    """
    # The lower of two middle values: of two devices, the larger claim must not vouch for itself.
    usual = float(median_low(samples.values())) if samples else 0.0
    known = setting.fleet.samples
    return {
        device: min(float(held), max(2.0 * usual, 0.0 if known is None else float(known[device])))
        for device, held in samples.items()
    }


def is_over(rounds: Rounds, budget: Budget, metric: Metric, record: RoundRecord) -> bool:
    """Whether a run ends with this round: all rounds done, a budget used up, or the target reached."""
    if record.round >= rounds.global_rounds or _is_used_up(rounds, budget, record) or record.ends_at_budget:
        return True
    # A round that was not evaluated cannot reach the target; the run continues until one is.
    if rounds.stop != "target" or rounds.target is None or record.accuracy is None:
        return False
    return metric.reaches(record.accuracy, rounds.target)


def is_evaluated(
    setting: Setting, every: int, control: ControlState, *, ends_at_budget: bool = False
) -> bool:
    """Whether the round just closed is evaluated: every so many rounds, and the last one always."""
    rounds, ledger = setting.rounds, control.ledger(setting)
    # Whether a target is reached is known only after evaluation, so `is_over` cannot be asked here.
    last = control.rounds_done >= rounds.global_rounds or _is_used_up(rounds, setting.budget, ledger)
    return last or ends_at_budget or control.rounds_done % every == 0


def _is_used_up(rounds: Rounds, budget: Budget, spent: Ledger | RoundRecord) -> bool:
    used_up = spent.seconds >= budget.seconds or spent.joules >= budget.joules
    return rounds.stop == "budget" and used_up


def ends_at_budget(setting: Setting, control: ControlState, look_ahead: Callable[[], Observation]) -> bool:
    """Whether the round just closed is the last because the budgets do not cover another.

    A scheme that keeps to budgets would plan such a round at its lower bounds, learn next to nothing and
    overrun all the same. At most what a round has cost on average so far is left unused. `look_ahead` gives
    what the scheme would see at the start of the next round.
    """
    if not may_end_at_budget(setting, control):
        return False
    observation = look_ahead()
    plan, _ = plan_edge_round(setting, control, observation)
    conditions = plan.leave_out(observation.conditions)
    outcome = compute_outcome(replace(setting, accounting="expected"), conditions, plan, work=())
    return exceeds_budget(setting, control, observation, outcome.expected)


def may_end_at_budget(setting: Setting, control: ControlState) -> bool:
    """Whether so little is left of a budget that it may not cover another round."""
    return setting.scheme.keeps_budgets and _is_nearly_spent(setting, control)


def exceeds_budget(
    setting: Setting, control: ControlState, observation: Observation, cost: EdgeRoundCost
) -> bool:
    """Whether a round whose edge rounds all cost what its first one would exceeds a budget."""
    edge_rounds, left = setting.rounds.edge_rounds, control.ledger(setting)
    seconds = float((edge_rounds * cost.seconds + observation.gossip_seconds_left).max())
    joules = edge_rounds * cost.joules
    wider = 1 + _ROUNDING
    return (
        left.seconds + seconds > observation.budget.seconds * wider
        or left.joules + joules > observation.budget.joules * wider
    )


def _is_nearly_spent(setting: Setting, control: ControlState) -> bool:
    """Whether less is left of a budget than a round has cost on average; false if nothing is left."""
    rounds, budget, spent = setting.rounds, setting.budget, control.ledger(setting)
    if rounds.stop != "budget" or control.rounds_done >= rounds.global_rounds:
        return False
    more = 1 + 1 / control.rounds_done
    short = spent.seconds * more > budget.seconds or spent.joules * more > budget.joules
    return short and not _is_used_up(rounds, budget, spent)
