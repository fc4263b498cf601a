"""Small user-defined schemes for tests."""

import numpy as np

from cfel.control.scheme import Observation, RoundPlan, Scheme, SchemeParameters, stateless


def every_other(parameters: SchemeParameters) -> Scheme:
    """Asks devices with even numbers for all they can do, and leaves the others out."""
    del parameters

    def plan(seen: Observation) -> RoundPlan:
        asked = (np.arange(seen.cluster.size) % 2 == 0).astype(np.float64)
        return RoundPlan(asked, asked)

    return stateless(plan)


def weighted(parameters: SchemeParameters) -> Scheme:
    """Asks everybody, and counts the second device of each pair three times."""
    del parameters

    def plan(seen: Observation) -> RoundPlan:
        ones = np.ones(seen.cluster.size)
        odd = (np.arange(seen.cluster.size) % 2).astype(np.float64)
        return RoundPlan(ones, ones, weight=1.0 + 2.0 * odd)

    return stateless(plan)
