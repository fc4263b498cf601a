"""HCEF, the paper's scheme: ρ and θ of every device chosen together to keep within both budgets."""

from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Scheme, SchemeParameters, stateless


def hcef(parameters: SchemeParameters) -> Scheme:
    """Solves P2 in every edge round."""
    bounds = Bounds(rho=(parameters.rho_min, 1.0), theta=(parameters.theta_min, 1.0))
    return stateless(lambda observation: plan_round(observation, parameters, bounds))
