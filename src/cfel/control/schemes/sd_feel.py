"""SD-FEEL: semi-decentralised federated edge learning, several gossip steps at each exchange.

Reference: Sun, Shao, Mao, Wang, Zhang, "Semi-Decentralized Federated Edge Learning for Fast Convergence on
Non-IID Data", WCNC 2022. Devices weigh by their number of samples within a cluster, and clusters likewise in
what gossip averages towards. `options = {steps = 3}` sets the gossip steps of an exchange (default 2). Mixing
weights are this project's (Metropolis–Hastings), not the reference's.
"""

from cfel.control.gossip import Gossip
from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Scheme, SchemeParameters, stateless


def sd_feel(parameters: SchemeParameters) -> Scheme:
    """Every step, everything sent, no caps; several gossip steps per global round, weighted by samples."""
    bounds = Bounds(rho=(1.0, 1.0), theta=(1.0, 1.0))
    gossip = Gossip(steps=parameters.options.get("steps", 2), weights="samples")
    return stateless(lambda seen: plan_round(seen, parameters, bounds, within_budget=False), gossip)
