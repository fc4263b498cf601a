"""FedDyn: SGD on a loss that is changed in every round so that devices' optima move towards the common one.

Device i adds −g_i + α(x − edge model) to its gradient, and after the edge round takes g_i ← g_i − αΔ_i, with
its update Δ_i as it was sent. The edge server remembers the sum z of its mean updates, which is the mean of
−g_i/α, and adds it to every change: x ← x + mean Δ_i + z. Edge servers gossip z with their models. Option:
`alpha` > 0.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated learning based on dynamic regularization,
ICLR 2021. The paper has one server; here each cluster has one, and they gossip z as they gossip models.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from cfel.learning.edge_rule import EdgeRound, EdgeRule
from cfel.learning.local.algorithm import LocalAlgorithm, LocalRun
from cfel.learning.local.algorithms.sgd import sgd
from cfel.learning.local.parameters import LocalParameters


def feddyn(local: LocalParameters) -> LocalAlgorithm:
    """SGD with a dynamic regulariser."""
    alpha = local.read_option("alpha", 0.01, above=0)

    def regularise(run: LocalRun, gradient: Tensor) -> None:
        gradient.sub_(run.memory["drift"]).add_(run.parameters - run.start, alpha=alpha)

    def remember(run: LocalRun, update: Tensor) -> None:
        run.memory["drift"].sub_(update, alpha=alpha)

    def change(found: EdgeRound, memory: Mapping[str, Tensor]) -> Tensor:
        return found.update + memory["total_drift"].add_(found.update, alpha=found.share)

    return replace(
        sgd(local),
        lasting=("drift",),
        change_gradient=regularise,
        sent=remember,
        edge=EdgeRule(change, memory=("total_drift",)),
        options=("alpha",),
    )
