"""For users of Flower: its clients under cfel's controller, and cfel's plans in a Flower federation.

    train_with      an existing ClientApp trains the devices of a cfel simulation
    PlannedFedAvg   a strategy for a ServerApp that plans steps and sparsity per client, within budgets
    send_sparse     a mod for its ClientApps: top-k with error feedback
    describe_node   answers the strategy's question what a step and an upload cost
    LocalGrid       runs a ClientApp in this process, for trials without a SuperLink

This is the only package that imports flwr (`pip install 'cfel[flower]'`), and it does so on first use.
`RoundPlanner` and what `sparse` computes need NumPy alone. There is no gossip here: a Flower federation has
one server. `docs/guides/flower.md` says what else is different.
"""

from typing import TYPE_CHECKING

from cfel.extras import import_on_use

if TYPE_CHECKING:
    from cfel.flower.clients import LocalGrid, train_with
    from cfel.flower.planner import NodeConditions, RoundPlanner
    from cfel.flower.strategy import PlannedFedAvg, describe_node, send_sparse

__all__ = [
    "LocalGrid",
    "NodeConditions",
    "PlannedFedAvg",
    "RoundPlanner",
    "describe_node",
    "send_sparse",
    "train_with",
]

_NAMES = {
    "clients": ("LocalGrid", "train_with"),
    "planner": ("NodeConditions", "RoundPlanner"),
    "strategy": ("PlannedFedAvg", "describe_node", "send_sparse"),
}

if not TYPE_CHECKING:
    # Hidden from type checkers, which would otherwise accept any name.
    __getattr__, __dir__ = import_on_use(__name__, _NAMES)
