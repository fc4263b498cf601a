"""CE-FedAvg (CEF): every device takes every step and sends everything; budgets are ignored."""

from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Scheme, SchemeParameters, stateless


def cef(parameters: SchemeParameters) -> Scheme:
    """HCEF's problem with ρ = θ = 1 and no caps."""
    bounds = Bounds(rho=(1.0, 1.0), theta=(1.0, 1.0))
    return stateless(lambda seen: plan_round(seen, parameters, bounds, within_budget=False))
