"""User-defined parts of the golden experiments, made of whole numbers: a scheme, a data set, a model."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tests.golden.entries import DataSet, Observation, RoundPlan, Scheme, SchemeParameters, make_plan

SAMPLES = 240

SEEN: list[list[int]] = []
"""The batches that `recorder` was trained on in this process."""


def fixed(parameters: SchemeParameters) -> Scheme:
    """Plans that depend on the device and the round only, so that nothing measured enters the accounts."""
    del parameters

    def plan(seen: Observation) -> RoundPlan:
        number = np.arange(seen.cluster.size) + seen.edge_round
        rho = 0.25 + 0.125 * (number % 7)
        theta = 0.0625 * (1 + number % 5)
        return make_plan(
            rho.astype(np.float64), theta.astype(np.float64), np.where(number % 3 == 0, 0.75, 1.0)
        )

    return Scheme(dict, lambda state, seen: (plan(seen), state), plans_clocks=True)


def numbered(path: Path | None = None) -> DataSet:
    """A data set in which every input is the number of its sample; with twelve writers."""
    del path
    number = np.arange(SAMPLES)
    return DataSet(
        name="numbered",
        train_inputs=torch.from_numpy(number.astype(np.float32)[:, None]),
        train_targets=torch.from_numpy(number * 7 % 11 % 5),
        test_inputs=torch.from_numpy(number[:24].astype(np.float32)[:, None]),
        test_targets=torch.from_numpy(number[:24] % 5),
        classes=5,
        train_writers=number * 5 % 13 % 12,
        test_writers=number[:24] % 12,
    )


class Recorder(nn.Module):
    """A layer that notes the samples it is trained on."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.dense = nn.Linear(1, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of a batch."""
        if self.training:
            SEEN.append(x[:, 0].detach().to(torch.int64).tolist())
        scores: Tensor = self.dense(x / SAMPLES)
        return scores


def recorder(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Builds the model that notes its batches in `SEEN`."""
    del input_shape
    return Recorder(classes)
