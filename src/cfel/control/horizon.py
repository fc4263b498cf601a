"""How many rounds a budget allows, for runs that end when it is used up (`rounds.stop = "budget"`).

Caps share what is left of a budget among the rounds that are left. In such a run `rounds.global` is only an
upper limit, often a generous one. Shared among all of it, a budget leaves next to nothing for each round:
every plan is at its lower bounds, and the run still ends long before that limit. So no round is planned with
less than a share of what full work (ρ = θ = 1) costs a typical device in it. The slowest device would be no
measure: in a deep fade its upload can take hours, and a round must not be granted more for that.
"""

from dataclasses import replace

import numpy as np

from cfel.control.scheme import Observation
from cfel.cost.device import device_joules, device_seconds

LEAST_SHARE = 0.3
"""Half of what the paper's budgets leave to a round; docs/design.md has the measurements behind it.

They are of one seed of `demo`, by the slowest device: 0.2 of its work is about 0.3 of the median device's.
"""

SMALL_BATCH_SHARE = 0.5
"""The same with small batches: even the smallest take a slow device longer than 0.3 takes a typical one.

Chosen by hand for that reason; no measurement of other shares is recorded.
"""


def limit_to_budget(observation: Observation) -> Observation:
    """The observation with the rounds that the budget allows; unchanged if it does not end the run."""
    rounds = observation.rounds
    if rounds.stop != "budget" or not observation.conditions.available.any():
        return observation
    left = rounds.global_rounds - observation.global_round
    allowed = _count_rounds(observation)
    if allowed >= left:
        return observation
    # This round is under way, so it counts even if the budget does not cover it.
    last = observation.global_round + max(1, int(allowed))
    return replace(observation, rounds=replace(rounds, global_rounds=last))


def _count_rounds(observation: Observation) -> float:
    """How often the budget left covers this global round, its rest at the least share of full work."""
    budget, ledger = observation.budget, observation.ledger
    edge_rounds_left = observation.rounds.edge_rounds - observation.edge_round
    share = (LEAST_SHARE if observation.small_batches is None else SMALL_BATCH_SHARE) * edge_rounds_left
    work_seconds, work_joules = _typical_work(observation)
    elapsed = np.asarray(ledger.elapsed_seconds)
    seconds = float((elapsed + share * work_seconds + observation.gossip_seconds_left).max())
    joules = ledger.elapsed_joules + share * work_joules
    return min(
        _divide(budget.seconds - ledger.seconds, seconds), _divide(budget.joules - ledger.joules, joules)
    )


def _typical_work(observation: Observation) -> tuple[float, float]:
    """Seconds of the median device, and joules of as many such devices, in an edge round of full work."""
    now, present = observation.conditions, observation.conditions.available
    tau = observation.rounds.local_steps
    seconds = device_seconds(1.0, 1.0, tau, now.mu, now.nu)
    joules = device_joules(1.0, 1.0, tau, now.alpha, now.nu, now.power)
    return float(np.median(seconds[present])), float(np.median(joules[present]) * present.sum())


def _divide(left: float, cost: float) -> float:
    return left / cost if cost > 0 else np.inf
