"""Ditto: every device also trains a whole model of its own, which is pulled towards the edge model.

The personal model v begins as the edge model. In every local step, v ← v − η (∇F(v) + λ (v − y)) on the batch
of the step, with the edge model y at the beginning of the edge round. The edge model itself is trained as
with SGD, one device at a time, to the same bits. With λ = 0, v is purely local training; a large λ keeps v
near the edge model, and η λ must stay below 1.

Options: `lambda` ≥ 0, 0.1 by default.

Li, Hu, Beirami, Smith: Ditto: fair and robust federated learning through personalization, ICML 2021. Kept:
the objective, and v trained beside the global model. Not kept: a number of personal steps of its own (here
one per local step, on the same batch, so that ρ limits both). v is trained without momentum. Time and energy
are charged for two gradients per step. Statistics of batch norm are the edge model's.
"""

from dataclasses import replace

from torch import Tensor

from cfel.errors import InputError
from cfel.learning.local.algorithm import LocalAlgorithm, LocalRun
from cfel.learning.local.algorithms.sgd import sgd
from cfel.learning.local.parameters import LocalParameters

PERSONAL = "personal_model"


def ditto(local: LocalParameters) -> LocalAlgorithm:
    """SGD, and a personal model beside it."""
    pull = local.read_option("lambda", 0.1, least=0)
    if pull * local.learning_rate >= 1:
        raise InputError(
            f"local.options.lambda = {pull:g}: with local.learning_rate = {local.learning_rate:g} it pulls "
            "personal models past the edge model; their product must be below 1"
        )

    def begin(run: LocalRun) -> None:
        # Only a device's first order finds zeros: nobody trains a model of zeros.
        if not run.memory[PERSONAL].any():
            run.memory[PERSONAL].copy_(run.start)

    def step_aside(run: LocalRun, _: Tensor) -> None:
        own = run.memory[PERSONAL]
        change = run.gradient_at(own).add_(own - run.start, alpha=pull)
        own.sub_(change, alpha=run.rate)

    return replace(
        sgd(local),
        lasting=(PERSONAL,),
        begin=begin,
        change_gradient=step_aside,
        options=("lambda",),
        personal_model=PERSONAL,
        gradients=2,
    )
