"""How a scheme uses the backhaul: when edge servers exchange models, in how many steps, with what weights.

Every scheme has a `Gossip`. The default is the paper's: one step with the neighbours at the end of a global
round, all devices weighing the same. Time is counted by one rule: at an exchange all clusters wait for the
slowest, and the exchange then takes each of them its own backhaul seconds. Nothing is mixed here; these are
the numbers that the round loop, the caps and the accounts share.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray
from cfel.errors import InputError, unknown_name

Weights = Literal["equal", "samples"]
Reach = Literal["neighbours", "everybody"]

# A cloud server receives every model, averages them, and sends the average back.
TRIPS_TO_EVERYBODY = 2


@dataclass(frozen=True, slots=True)
class Gossip:
    """The use of the backhaul.

    Attributes:
        every_edge_round: an exchange after every edge aggregation, instead of one per global round.
        steps: gossip steps in a row at each exchange.
        weights: all devices weigh the same ("equal"), or by their number of training samples ("samples"):
            within a cluster, and between clusters in what gossip averages towards.
        reach: models are averaged with those of the "neighbours", or at once over "everybody", as a cloud
            server does; the latter is charged two transfers of the full model.
        link_budget: share of links in use on average, in (0, 1]; below 1 each gossip step uses a random part
            of them, see `system.sampled_links`.
    """

    every_edge_round: bool = False
    steps: int = 1
    weights: Weights = "equal"
    reach: Reach = "neighbours"
    link_budget: float = 1.0

    def __post_init__(self) -> None:
        validation.check_whole("gossip.steps", self.steps, least=1)
        for field, allowed in (("weights", get_args(Weights)), ("reach", get_args(Reach))):
            if getattr(self, field) not in allowed:
                raise InputError(unknown_name(f"gossip.{field}", getattr(self, field), allowed))
        validation.check_number("gossip.link_budget", self.link_budget, above=0, most=1)
        if self.reach == "everybody" and self.link_budget < 1:
            raise InputError("gossip.link_budget: a cloud server reaches everybody, over no links")
        if self.reach == "everybody" and self.steps > 1:
            raise InputError(f"gossip.steps = {self.steps}: one step reaches everybody already")

    def exchange_seconds(self, backhaul_seconds: FloatArray) -> FloatArray:
        """Seconds of one exchange, per cluster.

        Args:
            backhaul_seconds: of a full model over the slowest link, per cluster.
        """
        trips = TRIPS_TO_EVERYBODY if self.reach == "everybody" else self.steps
        return np.asarray(backhaul_seconds * trips)

    def count_exchanges(self, edge_round: int, edge_rounds: int) -> int:
        """Exchanges in a global round from this edge round (counted from 0) on."""
        # The exchange that ends the global round is always one of them.
        return edge_rounds - edge_round if self.every_edge_round else 1

    def is_due_within(self, edge_round: int, edge_rounds: int) -> bool:
        """Whether an exchange follows this edge round, other than the one that ends the global round."""
        return self.every_edge_round and edge_round + 1 < edge_rounds

    def compute_contraction(self, zeta: float) -> float:
        """Share of disagreement that survives one exchange, where ζ survives one gossip step.

        Raises:
            InputError: links are sampled, so that no such number is known.
        """
        if self.link_budget < 1:
            raise InputError("Theorem 1 does not cover gossip over sampled links")
        return 0.0 if self.reach == "everybody" else float(zeta**self.steps)

    def models_sent(self, clusters: int, links: int) -> int:
        """Full models on the wire at one exchange, both directions counted."""
        if self.reach == "everybody":
            # A single edge server has nobody to exchange models with.
            return TRIPS_TO_EVERYBODY * clusters if clusters > 1 else 0
        return 2 * links * self.steps
