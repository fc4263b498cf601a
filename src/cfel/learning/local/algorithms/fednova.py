"""FedNova: SGD whose updates count per step, so that devices that take more steps do not pull harder.

The edge server adds T · Σ p_i Δ_i / τ_i instead of Σ p_i Δ_i: Δ_i is device i's update, τ_i its number of
steps and T their weighted mean. Under HCEF, where devices take different shares ρ of the steps, the plain
mean favours the data of fast devices.

Wang, Liu, Liang, Joshi, Poor: Tackling the objective inconsistency problem in heterogeneous federated
optimization, NeurIPS 2020. Without momentum only: with it, a step's share in the update is not 1/τ_i.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from cfel.learning.edge_rule import EdgeRound, EdgeRule
from cfel.learning.local.algorithm import LocalAlgorithm
from cfel.learning.local.algorithms.sgd import reject_momentum, sgd
from cfel.learning.local.parameters import LocalParameters


def fednova(local: LocalParameters) -> LocalAlgorithm:
    """SGD with normalised averaging."""
    reject_momentum(local)

    def change(found: EdgeRound, _memory: Mapping[str, Tensor]) -> Tensor:
        return found.update_per_step * found.mean_steps

    return replace(sgd(local), edge=EdgeRule(change, per_step=True))
