"""Hierarchical FedAvg: edge servers average their devices, a cloud server averages the edge servers.

Reference: Liu, Zhang, Song, Letaief, "Client-Edge-Cloud Hierarchical Federated Learning", ICC 2020. After
each global round every edge server holds the same model; devices weigh by their number of samples.
"""

from cfel.control.gossip import Gossip
from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Scheme, SchemeParameters, stateless


def hier_fedavg(parameters: SchemeParameters) -> Scheme:
    """Every step, everything sent, no caps; one average over all devices per global round."""
    bounds = Bounds(rho=(1.0, 1.0), theta=(1.0, 1.0))
    gossip = Gossip(weights="samples", reach="everybody")
    return stateless(lambda seen: plan_round(seen, parameters, bounds, within_budget=False), gossip)
