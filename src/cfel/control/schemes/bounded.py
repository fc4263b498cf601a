"""MLL-SGD: a device's update frequency follows its speed, the full model is sent, budgets are ignored.

The fastest device always steps, ρ = min μ / μ_n. The paper prints ρ_n = (1/α_n) / Σ (1/α_n), which sums to
one over all devices, so that with 64 of them next to nothing is learned; `options = {literal = true}` is
that formula. `docs/paper-map.md` lists it among the differences from the print.
"""

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Gossip, Observation, RoundPlan, Scheme, SchemeParameters, stateless

# --------------------------------------------------------------------------------------------------
# CE-FedAvg (CEF): every device takes every step and sends everything; budgets are ignored.


def cef(parameters: SchemeParameters) -> Scheme:
    """HCEF's problem with ρ = θ = 1 and no caps."""
    bounds = Bounds(rho=(1.0, 1.0), theta=(1.0, 1.0))
    return stateless(lambda seen: plan_round(seen, parameters, bounds, within_budget=False))


# --------------------------------------------------------------------------------------------------
# CEF-C: only the compression θ is chosen, every device takes every step.


def cef_c(parameters: SchemeParameters) -> Scheme:
    """HCEF's problem with ρ pinned at 1."""
    bounds = Bounds(rho=(1.0, 1.0), theta=(parameters.theta_min, 1.0))
    return stateless(lambda observation: plan_round(observation, parameters, bounds))


# --------------------------------------------------------------------------------------------------
# CEF-F: only the update frequency ρ is chosen, the full model is sent.


def cef_f(parameters: SchemeParameters) -> Scheme:
    """HCEF's problem with θ pinned at 1."""
    bounds = Bounds(rho=(parameters.rho_min, 1.0), theta=(1.0, 1.0))
    return stateless(lambda observation: plan_round(observation, parameters, bounds))


# --------------------------------------------------------------------------------------------------
# HCEF, the paper's scheme: ρ and θ of every device chosen together to keep within both budgets.


def hcef(parameters: SchemeParameters) -> Scheme:
    """Solves P2 in every edge round."""
    bounds = Bounds(rho=(parameters.rho_min, 1.0), theta=(parameters.theta_min, 1.0))
    return stateless(lambda observation: plan_round(observation, parameters, bounds))


# --------------------------------------------------------------------------------------------------
# FedAvg: one server averages all devices after every aggregation, each by its number of samples.
#
# Reference: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep
# Networks
# from Decentralized Data", AISTATS 2017. With one cluster the edge server is that server. With several, a
# cloud server averages the edge servers in every edge round, which gives the same model.


def fedavg(parameters: SchemeParameters) -> Scheme:
    """Every step, everything sent, no caps; one average over all devices after every edge round."""
    bounds = Bounds(rho=(1.0, 1.0), theta=(1.0, 1.0))
    gossip = Gossip(every_edge_round=True, weights="samples", reach="everybody")
    return stateless(lambda seen: plan_round(seen, parameters, bounds, within_budget=False), gossip)


# --------------------------------------------------------------------------------------------------
# Hierarchical FedAvg: edge servers average their devices, a cloud server averages the edge servers.
#
# Reference: Liu, Zhang, Song, Letaief, "Client-Edge-Cloud Hierarchical Federated Learning", ICC 2020.
# After
# each global round every edge server holds the same model; devices weigh by their number of samples.


def hier_fedavg(parameters: SchemeParameters) -> Scheme:
    """Every step, everything sent, no caps; one average over all devices per global round."""
    bounds = Bounds(rho=(1.0, 1.0), theta=(1.0, 1.0))
    gossip = Gossip(weights="samples", reach="everybody")
    return stateless(lambda seen: plan_round(seen, parameters, bounds, within_budget=False), gossip)


# --------------------------------------------------------------------------------------------------
# P-FedAvg: parallel federated averaging, in which servers gossip after every aggregation.
#
# Reference: Zhong, Zhou, Wu, Chen, Chen, Li, Sheng, "P-FedAvg: Parallelizing Federated Learning with
# Theoretical Guarantees", INFOCOM 2021. Each server averages its own devices, then mixes with its
# neighbours.
# Mixing weights are this project's (Metropolis–Hastings), not the reference's.


def p_fedavg(parameters: SchemeParameters) -> Scheme:
    """Every step, everything sent, no caps; one gossip step after every edge round."""
    bounds = Bounds(rho=(1.0, 1.0), theta=(1.0, 1.0))
    gossip = Gossip(every_edge_round=True)
    return stateless(lambda seen: plan_round(seen, parameters, bounds, within_budget=False), gossip)


# --------------------------------------------------------------------------------------------------
# SD-FEEL: semi-decentralised federated edge learning, several gossip steps at each exchange.
#
# Reference: Sun, Shao, Mao, Wang, Zhang, "Semi-Decentralized Federated Edge Learning for Fast Convergence
# on
# Non-IID Data", WCNC 2022. Devices weigh by their number of samples within a cluster, and clusters
# likewise in
# what gossip averages towards. `options = {steps = 3}` sets the gossip steps of an exchange (default 2).
# Mixing
# weights are this project's (Metropolis–Hastings), not the reference's.


def sd_feel(parameters: SchemeParameters) -> Scheme:
    """Every step, everything sent, no caps; several gossip steps per global round, weighted by samples."""
    bounds = Bounds(rho=(1.0, 1.0), theta=(1.0, 1.0))
    gossip = Gossip(steps=parameters.options.get("steps", 2), weights="samples")
    return stateless(lambda seen: plan_round(seen, parameters, bounds, within_budget=False), gossip)


def mll_sgd(parameters: SchemeParameters) -> Scheme:
    """HCEF's problem with θ = 1, ρ given by the device's speed, and no caps."""
    literal = parameters.option("literal", default=False)

    def plan(observation: Observation) -> RoundPlan:
        rho = _literal_share(observation) if literal else _relative_speed(observation)
        bounds = Bounds(rho=(rho, rho), theta=(1.0, 1.0))
        return plan_round(observation, parameters, bounds, within_budget=False)

    return stateless(plan)


def _relative_speed(observation: Observation) -> FloatArray:
    mu, present = observation.conditions.mu, observation.conditions.available
    # Absent devices may be faster than all that are present.
    return np.asarray(np.minimum(1.0, mu[present].min(initial=np.inf) / mu))


def _literal_share(observation: Observation) -> FloatArray:
    """The printed formula; a device whose steps cost no energy gets the round's least positive α."""
    alpha, present = observation.conditions.alpha, observation.conditions.available
    positive = alpha[present & (alpha > 0)]
    least = float(positive.min()) if positive.size else 1.0
    worth = least / np.maximum(alpha, least)
    return np.asarray(np.minimum(1.0, worth / worth[present].sum()))
