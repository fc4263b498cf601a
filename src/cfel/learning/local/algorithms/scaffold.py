"""SCAFFOLD: SGD with control variates, which correct the drift of devices with unlike data.

Device i adds c − c_i to its gradient: c_i is the mean gradient along its last edge round, c the mean over all
devices, which its edge server keeps. Afterwards c_i ← c_i − c − Δ_i/(K_i η), with its update Δ_i as it was
sent and its K_i steps (the paper's option II). The edge server knows Δ_i and K_i, so it changes c by the mean
of the same differences, and nothing but the update is uploaded. c goes to devices with the model, and to
neighbours in gossip, where it is charged. If an upload is lost on its way, c misses one device's difference.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: stochastic controlled averaging for federated
learning, ICML 2020. Without momentum only, as Δ_i/(K_i η) would not be a mean gradient.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from cfel.learning.edge_rule import EdgeRound, EdgeRule
from cfel.learning.local.algorithm import LocalAlgorithm, LocalRun
from cfel.learning.local.algorithms.sgd import reject_momentum, sgd
from cfel.learning.local.parameters import LocalParameters


def scaffold(local: LocalParameters) -> LocalAlgorithm:
    """SGD with control variates."""
    reject_momentum(local)

    def correct(run: LocalRun, gradient: Tensor) -> None:
        gradient.add_(run.edge_memory["variate"]).sub_(run.memory["variate"])

    def remember(run: LocalRun, update: Tensor) -> None:
        if run.steps and run.rate:
            run.memory["variate"].sub_(run.edge_memory["variate"])
            run.memory["variate"].sub_(update, alpha=1 / (run.steps * run.rate))

    def change(found: EdgeRound, memory: Mapping[str, Tensor]) -> Tensor:
        if found.rate:
            memory["variate"].mul_(1 - found.share * found.active)
            memory["variate"].sub_(found.update_per_step, alpha=found.share / found.rate)
        return found.update

    return replace(
        sgd(local),
        lasting=("variate",),
        change_gradient=correct,
        sent=remember,
        edge=EdgeRule(change, memory=("variate",), per_step=True),
    )
