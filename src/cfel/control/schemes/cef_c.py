"""CEF-C: only the compression θ is chosen, every device takes every step."""

from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Scheme, SchemeParameters, stateless


def cef_c(parameters: SchemeParameters) -> Scheme:
    """HCEF's problem with ρ pinned at 1."""
    bounds = Bounds(rho=(1.0, 1.0), theta=(parameters.theta_min, 1.0))
    return stateless(lambda observation: plan_round(observation, parameters, bounds))
