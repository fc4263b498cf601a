r"""A user-defined algorithm: FedProx, which pulls every device back towards the edge model.

    cfel run examples/tiny.toml --set local.algorithm=custom_algorithm:proximal \
        --set local.options.mu=0.1

An algorithm is SGD, or another optimiser, with functions around its steps: `begin` and `end` once per edge
round, `change_gradient` before every step. Their argument `run` has the parameters, the edge model, what the
device remembers, and more; docs/guides/algorithms.md lists it. Settings come from `[local.options]`. FedProx
is also built in, as `local.algorithm = "fedprox"`.
"""

from dataclasses import replace

from torch import Tensor

from cfel.learning.local.algorithm import LocalAlgorithm, LocalParameters, LocalRun
from cfel.learning.local.algorithms import sgd


def proximal(local: LocalParameters) -> LocalAlgorithm:
    """SGD on the loss plus mu/2 · ‖x − edge model‖²."""
    mu = local.read_option("mu", 0.01, least=0)

    def pull(run: LocalRun, gradient: Tensor) -> None:
        gradient.add_(run.parameters - run.start, alpha=mu)

    return replace(sgd(local), change_gradient=pull, options=("mu",))
