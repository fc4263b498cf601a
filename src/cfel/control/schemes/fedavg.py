"""FedAvg: one server averages all devices after every aggregation, each by its number of samples.

Reference: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017. With one cluster the edge server is that server. With several, a
cloud server averages the edge servers in every edge round, which gives the same model.
"""

from cfel.control.gossip import Gossip
from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Scheme, SchemeParameters, stateless


def fedavg(parameters: SchemeParameters) -> Scheme:
    """Every step, everything sent, no caps; one average over all devices after every edge round."""
    bounds = Bounds(rho=(1.0, 1.0), theta=(1.0, 1.0))
    gossip = Gossip(every_edge_round=True, weights="samples", reach="everybody")
    return stateless(lambda seen: plan_round(seen, parameters, bounds, within_budget=False), gossip)
