"""MATCHA: edge servers gossip over a random part of their links, those that matter most more often.

Reference: Wang, Sahu, Yang, Joshi, Kar, "MATCHA: Speeding Up Decentralized SGD via Matching Decomposition
Sampling", ICC 2019 (arXiv 1905.09435).

Kept: the graph is split into matchings; each is active with its own chance, and the chances maximise the
algebraic connectivity of the expected graph under a communication budget (`options = {links = 0.5}`, the
share of matchings active on average). Not kept: weights are Metropolis–Hastings weights of the active links,
where the paper optimises one common weight; nodes are edge servers, whose devices work as in CEF. The paper
charges a unit of time for every active matching. Here links work side by side, so a gossip step is charged
the same time however many are active, and fewer links save bytes only.
"""

from dataclasses import dataclass

from cfel import validation
from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Gossip, Scheme, SchemeParameters, read_options, stateless


@dataclass(frozen=True, slots=True)
class Options:
    """`[scheme.options]` of MATCHA: the share of matchings that are active on average, in (0, 1]."""

    links: float = 0.5

    def __post_init__(self) -> None:
        validation.check_number("scheme.options.links", self.links, above=0, most=1)


def matcha(parameters: SchemeParameters) -> Scheme:
    """Every step, everything sent, no caps; gossip after every edge round over sampled links."""
    options = read_options(Options, parameters.options)
    bounds = Bounds(rho=(1.0, 1.0), theta=(1.0, 1.0))
    gossip = Gossip(every_edge_round=True, link_budget=options.links)
    return stateless(lambda seen: plan_round(seen, parameters, bounds, within_budget=False), gossip)
