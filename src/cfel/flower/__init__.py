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

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cfel.flower.clients import train_with
    from cfel.flower.local_grid import LocalGrid
    from cfel.flower.mods import describe_node, send_sparse
    from cfel.flower.planner import NodeConditions, RoundPlanner
    from cfel.flower.strategy import PlannedFedAvg

__all__ = [
    "LocalGrid",
    "NodeConditions",
    "PlannedFedAvg",
    "RoundPlanner",
    "describe_node",
    "send_sparse",
    "train_with",
]

_MODULES = {
    "LocalGrid": "local_grid",
    "NodeConditions": "planner",
    "PlannedFedAvg": "strategy",
    "RoundPlanner": "planner",
    "describe_node": "mods",
    "send_sparse": "mods",
    "train_with": "clients",
}

if not TYPE_CHECKING:
    # Hidden from type checkers, which would otherwise accept any name.
    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from cfel.extras import explain_missing_extra

        with explain_missing_extra():
            return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
