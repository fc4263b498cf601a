"""FedProx: SGD on the loss plus μ/2 · ‖x − edge model‖², which keeps devices with unlike data close together.

Option: `mu` ≥ 0; with 0 it is SGD.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks, MLSys 2020. The
paper's inexact local solutions are here the devices' shares ρ of the steps.
"""

from dataclasses import replace

from torch import Tensor

from cfel.learning.local.algorithm import LocalAlgorithm, LocalRun
from cfel.learning.local.algorithms.sgd import sgd
from cfel.learning.local.parameters import LocalParameters


def fedprox(local: LocalParameters) -> LocalAlgorithm:
    """SGD with a proximal term."""
    mu = local.read_option("mu", 0.01, least=0)

    def pull(run: LocalRun, gradient: Tensor) -> None:
        gradient.add_(run.parameters - run.start, alpha=mu)

    return replace(sgd(local), change_gradient=pull, options=("mu",))
