"""Variants of any scheme, built in or user-defined: whole steps, gossip times, clocks of early finishers.

`[scheme]` has a key for each. They separate what a scheme brings from what these ingredients bring by
themselves: CEF with slower clocks, or HCEF with gossip after every edge round. HCEF+ has its own switches.
How variants are named is in `cfel.scheme_names`.
"""

from dataclasses import replace

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.scheme import Observation, RoundPlan, Scheme, SchemeParameters, State
from cfel.cost import cluster_seconds, device_seconds

LEAST_SPEED = 0.5
"""Smallest share of its clock that an early finisher runs at."""


def apply_variants(scheme: Scheme, parameters: SchemeParameters) -> Scheme:
    """The scheme with the variants that `[scheme]` asks for; the same scheme if it asks for none."""
    if parameters.gossip != "scheme":
        gossip = replace(scheme.gossip, every_edge_round=parameters.gossip == "edge_round")
        scheme = replace(scheme, gossip=gossip)
    if parameters.steps != "local":
        scheme = replace(scheme, device_overrides=replace(scheme.device_overrides, steps=parameters.steps))
    if parameters.slow_clocks:
        scheme = _slow_early_finishers(scheme)
    return scheme


def _slow_early_finishers(scheme: Scheme) -> Scheme:
    def plan(state: State, observation: Observation) -> tuple[RoundPlan, State]:
        full, state = scheme.plan(state, observation)
        # The scheme chose clocks itself, or nothing sets clocks on these devices.
        if observation.full_clocks or full.speed is not None:
            return full, state
        return replace(full, speed=_match_slowest(observation, full, scheme.gossip.every_edge_round)), state

    return replace(scheme, plan=plan, plans_clocks=True)


def _match_slowest(observation: Observation, plan: RoundPlan, all_clusters_wait: bool) -> FloatArray:
    """The slowest clocks at which nobody waits longer: every device ends with the last one of its group.

    A group is a cluster, or all clusters where they exchange after every edge round.
    """
    conditions, tau = observation.conditions, observation.rounds.local_steps
    seconds = device_seconds(plan.rho, plan.theta, tau, conditions.mu, conditions.nu)
    last = cluster_seconds(
        np.where(conditions.available, seconds, 0.0), observation.cluster, observation.clusters
    )
    until = np.full(seconds.shape, last.max()) if all_clusters_wait else last[observation.cluster]
    computing = plan.rho * tau * conditions.mu
    left = until - plan.theta * conditions.nu
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(left > 0, computing / left, 1.0)
    return np.where(conditions.available, np.clip(needed, LEAST_SPEED, 1.0), 1.0)
