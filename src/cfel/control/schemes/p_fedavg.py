"""P-FedAvg: parallel federated averaging, in which servers gossip after every aggregation.

Reference: Zhong, Zhou, Wu, Chen, Chen, Li, Sheng, "P-FedAvg: Parallelizing Federated Learning with
Theoretical Guarantees", INFOCOM 2021. Each server averages its own devices, then mixes with its neighbours.
Mixing weights are this project's (Metropolis–Hastings), not the reference's.
"""

from cfel.control.gossip import Gossip
from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Scheme, SchemeParameters, stateless


def p_fedavg(parameters: SchemeParameters) -> Scheme:
    """Every step, everything sent, no caps; one gossip step after every edge round."""
    bounds = Bounds(rho=(1.0, 1.0), theta=(1.0, 1.0))
    gossip = Gossip(every_edge_round=True)
    return stateless(lambda seen: plan_round(seen, parameters, bounds, within_budget=False), gossip)
