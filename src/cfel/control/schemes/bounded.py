"""HCEF and the schemes that are its problem with bounds pinned: one table.

Those that choose neither ρ nor θ have every device take every step and send everything, within no budget, and
differ in how edge servers gossip. Mixing weights are this project's (Metropolis–Hastings) in all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray
from cfel.control.clusters import Decision
from cfel.control.exchange import Exchange
from cfel.control.planning import Bounds, negotiate_round, plan_round
from cfel.control.scheme import (
    Gossip,
    Observation,
    RoundPlan,
    Scheme,
    SchemeBuilder,
    SchemeParameters,
    State,
    read_options,
    stateless,
)


@dataclass(frozen=True, slots=True)
class BoundedScheme:
    """What sets a scheme apart from HCEF.

    Attributes:
        meaning: in a sentence, for the reference.
        chooses_rho, chooses_theta: within [ρ_min, 1] and [θ_min, 1]; what is not chosen is pinned at 1.
        within_budget: whether the caps of the budgets hold.
        gossip: how the backhaul is used; a function where `[scheme.options]` have a say.
        pin_rho: what ρ is pinned at, where that is not 1.
    """

    meaning: str
    chooses_rho: bool = False
    chooses_theta: bool = False
    within_budget: bool = False
    gossip: Gossip | Callable[[SchemeParameters], Gossip] = field(default_factory=Gossip)
    pin_rho: Callable[[SchemeParameters, Observation], FloatArray] | None = None

    def build(self, parameters: SchemeParameters) -> Scheme:
        """Builds the scheme."""
        rho = (parameters.rho_min if self.chooses_rho else 1.0, 1.0)
        theta = (parameters.theta_min if self.chooses_theta else 1.0, 1.0)

        def plan(observation: Observation) -> RoundPlan:
            bounds = Bounds(rho, theta)
            if self.pin_rho is not None:
                pinned = self.pin_rho(parameters, observation)
                bounds = Bounds((pinned, pinned), theta)
            return plan_round(observation, parameters, bounds, within_budget=self.within_budget)

        def negotiate(state: State, known: Observation) -> Exchange[tuple[Decision, State]]:
            bounds = Bounds(rho, theta)
            decision = yield from negotiate_round(known, parameters, bounds, within_budget=self.within_budget)
            return decision, state

        gossip = self.gossip if isinstance(self.gossip, Gossip) else self.gossip(parameters)
        made = stateless(plan, gossip, chooses_theta=theta[0] < 1)
        # Algorithm 3, and a ρ that follows the fastest device, look at all devices.
        asks = self.pin_rho is None and parameters.solver == "joint"
        return replace(made, keeps_budgets=self.within_budget, negotiate=negotiate if asks else None)


def _follow_clock(parameters: SchemeParameters, observation: Observation) -> FloatArray:
    """MLL-SGD's ρ: the fastest device always steps, ρ = min μ / μ_n.

    The paper prints ρ_n = (1/α_n) / Σ (1/α_n), which sums to one over all devices, so that with 64 of them
    next to nothing is learned; `options = {literal = true}` is that formula. `docs/paper-map.md` lists it
    among the differences from the print.
    """
    mu, alpha, present = (getattr(observation.conditions, name) for name in ("mu", "alpha", "available"))
    if not parameters.option("literal", default=False):
        # Absent devices may be faster than all that are present.
        return np.asarray(np.minimum(1.0, mu[present].min(initial=np.inf) / mu))
    # A device whose steps cost no energy gets the round's least positive α.
    positive = alpha[present & (alpha > 0)]
    least = float(positive.min()) if positive.size else 1.0
    worth = least / np.maximum(alpha, least)
    return np.asarray(np.minimum(1.0, worth / worth[present].sum()))


def _gossip_in_steps(parameters: SchemeParameters) -> Gossip:
    """SD-FEEL's gossip: `options = {steps = 3}` sets the gossip steps of an exchange (default 2)."""
    return Gossip(steps=parameters.options.get("steps", 2), weights="samples")


@dataclass(frozen=True, slots=True)
class MatchaOptions:
    """`[scheme.options]` of MATCHA: the share of matchings that are active on average, in (0, 1]."""

    links: float = 0.5

    def __post_init__(self) -> None:
        validation.check_number("scheme.options.links", self.links, above=0, most=1)


def _gossip_over_sampled_links(parameters: SchemeParameters) -> Gossip:
    """MATCHA's gossip: over a random part of the links, those that matter most more often.

    Kept: the graph is split into matchings; each is active with its own chance, and the chances maximise the
    algebraic connectivity of the expected graph under a communication budget. Not kept: weights are those of
    the active links, where the paper optimises one common weight; nodes are edge servers, whose devices work
    as in CEF. The paper charges a unit of time for every active matching. Here links work side by side, so a
    gossip step is charged the same time however many are active, and fewer links save bytes only.
    """
    return Gossip(every_edge_round=True, link_budget=read_options(MatchaOptions, parameters.options).links)


_TABLE: Mapping[str, BoundedScheme] = MappingProxyType(
    {
        # The paper's scheme.
        "hcef": BoundedScheme(
            "Solves P2 in every edge round.", chooses_rho=True, chooses_theta=True, within_budget=True
        ),
        # CE-FedAvg.
        "cef": BoundedScheme("HCEF's problem with ρ = θ = 1 and no caps."),
        # The ablations.
        "cef_f": BoundedScheme("HCEF's problem with θ pinned at 1.", chooses_rho=True, within_budget=True),
        "cef_c": BoundedScheme("HCEF's problem with ρ pinned at 1.", chooses_theta=True, within_budget=True),
        # Castiglia, Das, Patterson, "Multi-Level Local SGD", ICLR 2021; ρ as the HCEF paper compares it.
        "mll_sgd": BoundedScheme(
            "HCEF's problem with θ = 1, ρ given by the device's clock, and no caps.", pin_rho=_follow_clock
        ),
        # McMahan et al., "Communication-Efficient Learning of Deep Networks …", AISTATS 2017. A cloud server
        # averages the edge servers in every edge round, which gives the model of one server.
        "fedavg": BoundedScheme(
            "Every step, everything sent, no caps; one average over all devices after every edge round.",
            gossip=Gossip(every_edge_round=True, weights="samples", reach="everybody"),
        ),
        # Liu, Zhang, Song, Letaief, "Client-Edge-Cloud Hierarchical Federated Learning", ICC 2020.
        "hier_fedavg": BoundedScheme(
            "Every step, everything sent, no caps; one average over all devices per global round.",
            gossip=Gossip(weights="samples", reach="everybody"),
        ),
        # Zhong et al., "P-FedAvg: Parallelizing Federated Learning with …", INFOCOM 2021.
        "p_fedavg": BoundedScheme(
            "Every step, everything sent, no caps; one gossip step after every edge round.",
            gossip=Gossip(every_edge_round=True),
        ),
        # Sun et al., "Semi-Decentralized Federated Edge Learning for Fast Convergence …", WCNC 2022.
        "sd_feel": BoundedScheme(
            "Every step, everything sent, no caps; several gossip steps per global round, weighted by "
            "samples.",
            gossip=_gossip_in_steps,
        ),
        # Wang et al., "MATCHA: Speeding Up Decentralized SGD via Matching Decomposition Sampling", ICC 2019.
        "matcha": BoundedScheme(
            "Every step, everything sent, no caps; gossip after every edge round over sampled links.",
            gossip=_gossip_over_sampled_links,
        ),
    }
)


def _make_builder(name: str, scheme: BoundedScheme) -> SchemeBuilder:
    def build(parameters: SchemeParameters) -> Scheme:
        return scheme.build(parameters)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = scheme.meaning
    return build


BOUNDED_SCHEMES: Mapping[str, SchemeBuilder] = MappingProxyType(
    {name: _make_builder(name, scheme) for name, scheme in _TABLE.items()}
)
