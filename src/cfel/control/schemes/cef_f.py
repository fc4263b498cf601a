"""CEF-F: only the update frequency ρ is chosen, the full model is sent."""

from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Scheme, SchemeParameters, stateless


def cef_f(parameters: SchemeParameters) -> Scheme:
    """HCEF's problem with θ pinned at 1."""
    bounds = Bounds(rho=(parameters.rho_min, 1.0), theta=(1.0, 1.0))
    return stateless(lambda observation: plan_round(observation, parameters, bounds))
