"""What a round costs in seconds and joules: pure functions, no state. Budgets become caps in `control`."""

from cfel.cost.backhaul import PAPER_BITS_PER_SECOND, backhaul_seconds
from cfel.cost.device import device_joules, device_seconds, realised_joules, realised_seconds
from cfel.cost.ledger import Ledger, after_edge_round, after_exchange, after_global_round, open_ledger
from cfel.cost.rounds import (
    NO_DEVICE,
    EdgeRoundCost,
    GlobalRoundCost,
    cluster_seconds,
    edge_round_cost,
    global_round_cost,
)

__all__ = [
    "NO_DEVICE",
    "PAPER_BITS_PER_SECOND",
    "EdgeRoundCost",
    "GlobalRoundCost",
    "Ledger",
    "after_edge_round",
    "after_exchange",
    "after_global_round",
    "backhaul_seconds",
    "cluster_seconds",
    "device_joules",
    "device_seconds",
    "edge_round_cost",
    "global_round_cost",
    "open_ledger",
    "realised_joules",
    "realised_seconds",
]
