"""Shared momentum: SGD whose momentum starts every edge round at the mean of the cluster's.

A device's own momentum carries the noise of its batches and the bias of its data from edge round to edge
round, and pulls its model away from the others' in every step. Averaging momentum along with the models
removes both. Nothing more has to be uploaded: −Δ/(Kη), the mean update Δ over the mean number of steps K and
the learning rate, is the mean momentum along the edge round, as far as it is sent. The edge server keeps it,
sends it to devices with the model, and mixes it with its neighbours' in gossip, where it is charged. What
error feedback sends late counts as momentum of the present, so that the learning rate must not fall then.

Yu, Jin, Yang: On the linear speedup analysis of communication efficient momentum SGD for distributed
non-convex optimization, ICML 2019, average momentum, too, but upload it. Xu, Wang, Wang, Yao: FedCM, 2021,
send devices the mean update as a direction that stays the same in all steps of a round.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from cfel.errors import InputError
from cfel.learning.edge_rule import EdgeRound, EdgeRule
from cfel.learning.local.algorithm import LocalAlgorithm, LocalRun
from cfel.learning.local.algorithms.sgd import sgd
from cfel.learning.local.parameters import LocalParameters


def shared_momentum(local: LocalParameters) -> LocalAlgorithm:
    """SGD with the momentum of the cluster."""
    if not local.momentum:
        raise InputError("local.algorithm = 'shared_momentum': needs local.momentum > 0")

    def begin(run: LocalRun) -> None:
        run.memory["momentum"].copy_(run.edge_memory["mean_momentum"])

    def change(found: EdgeRound, memory: Mapping[str, Tensor]) -> Tensor:
        if found.rate and found.mean_steps:
            memory["mean_momentum"].copy_(found.update).div_(-found.rate * found.mean_steps)
        return found.update

    return replace(sgd(local), begin=begin, edge=EdgeRule(change, memory=("mean_momentum",)))
