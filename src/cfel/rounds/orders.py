"""From a plan to the order of one device: its learning rate, and how much its update counts in its cluster.

Simulator, edge servers and devices make orders here, so that all of them train on the same random streams.
The plan itself is made in `kernel`.
"""

from collections.abc import Mapping

from cfel.control.scheme import Observation, RoundPlan
from cfel.control.setting import Setting
from cfel.learning.device_messages import DeviceOrder
from cfel.learning.local.parameters import LocalParameters
from cfel.learning.models.flat import FlatModel


def make_order(
    setting: Setting,
    global_round: int,
    edge_round: int,
    device: int,
    rho: float,
    theta: float,
    model: FlatModel,
    rate: float = 1.0,
) -> DeviceOrder:
    """The order to one device in one edge round."""
    return DeviceOrder(
        seed=setting.seed,
        global_round=global_round,
        edge_round=edge_round,
        device=device,
        rho=rho,
        theta=theta,
        tau=setting.rounds.local_steps,
        model=model,
        rate=rate,
    )


def find_rate(local: LocalParameters, observation: Observation) -> float:
    """The share of the learning rate that the schedule leaves in an edge round, for all devices.

    Args:
        local: the schedule.
        observation: how far the run has come, and what it has spent.
    """
    rounds = observation.rounds
    if local.schedule_by == "rounds":
        done = observation.global_round * rounds.edge_rounds + observation.edge_round
        return local.find_rate(done / (rounds.global_rounds * rounds.edge_rounds))
    ledger, budget = observation.ledger, observation.budget
    seconds = ledger.seconds + max(ledger.elapsed_seconds)
    joules = ledger.joules + ledger.elapsed_joules
    return local.find_rate(min(1.0, max(seconds / budget.seconds, joules / budget.joules)))


def device_weights(setting: Setting, plan: RoundPlan, samples: Mapping[int, int]) -> dict[int, float]:
    """The weight of each device within its cluster.

    Args:
        setting: how the scheme weighs devices.
        plan: its own weights take precedence.
        samples: what each device that took part holds.
    """
    if plan.weight is not None:
        return {device: float(plan.weight[device]) for device in samples}
    # The paper weighs devices alike. Schemes that average by samples say so in their `gossip`.
    if setting.scheme.gossip.weights == "equal":
        return dict.fromkeys(samples, 1.0)
    return {device: float(held) for device, held in samples.items()}
