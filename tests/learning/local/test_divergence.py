"""What counts as diverged, and that nothing of it leaves the device."""

import math

import pytest
import torch
from torch import Tensor

from cfel.errors import DivergedError
from cfel.learning.device import device_estimate, device_update
from cfel.learning.device_messages import DeviceState, Order
from cfel.learning.local.algorithm import LocalParameters
from cfel.learning.local.batched import device_updates_batched
from cfel.learning.local.estimates import Estimates
from cfel.learning.local.training import raise_if_diverged
from cfel.learning.models.flat import FlatModel
from cfel.learning.task import Task, initial_model
from tests.learning.conftest import Build, Make, Spread

NOTHING = FlatModel(torch.zeros(1), torch.zeros(0))
ORDER = Order(0, 4, 1, 3, 1.0, 1.0, 1, NOTHING)
LOCAL = LocalParameters(learning_rate=0.5)


@pytest.mark.parametrize(
    ("estimates", "losses", "difference", "words"),
    [
        (Estimates(1.0, 1.0), [1.0, math.nan], torch.ones(3), "the loss of local step 2 is nan"),
        (Estimates(math.inf, 1.0), [1.0], torch.ones(3), "the estimates are σ² = inf, G² = 1"),
        (None, [1.0], torch.tensor([1.0, -math.inf, 0.0]), "the update .*not finite"),
        (None, [], torch.tensor([math.inf, -math.inf]), "the update .*not finite"),
    ],
)
def test_what_is_rejected(
    estimates: Estimates | None, losses: list[float], difference: Tensor, words: str
) -> None:
    with pytest.raises(DivergedError, match=words) as caught:
        raise_if_diverged(ORDER, LOCAL, estimates, losses, difference)
    error = caught.value
    assert (error.device, error.global_round, error.edge_round, error.learning_rate) == (3, 4, 1, 0.5)


def test_what_is_not() -> None:
    """A sum that overflows is no sign of anything, nor is a negative estimate of G²."""
    raise_if_diverged(ORDER, LOCAL, None)
    raise_if_diverged(ORDER, LOCAL, Estimates(0.0, -1.0), [1e30], torch.full((4,), 3e38))


@pytest.mark.parametrize("kind", ["topk", "randomk", "jl", "quantise", "uveqfed", "atomo", "none"])
@pytest.mark.parametrize("batched", [False, True])
def test_training_that_diverges(
    digits_task: Task,
    spread: Spread,
    workspace: Build,
    order: Make,
    kind: str,
    batched: bool,
) -> None:
    """Whatever the compressor: it is not even asked."""
    data = spread(digits_task, 2)[1]
    scratch = workspace(digits_task, kind, learning_rate=1e30)
    task = order(initial_model(digits_task, 0), 1, theta=0.5)

    def train() -> None:
        if batched:
            device_updates_batched([task], [data], [DeviceState()], scratch)
        else:
            device_update(task, data, DeviceState(), scratch)

    with pytest.raises(DivergedError, match=r"device 1 .*round 1, edge round 0"):
        train()


def test_fresh_estimates_at_a_model_that_has_diverged(
    digits_task: Task,
    spread: Spread,
    workspace: Build,
    order: Make,
) -> None:
    start = initial_model(digits_task, 0)
    huge = FlatModel(start.parameters * 1e30, start.buffers)
    with pytest.raises(DivergedError, match=r"at device 0 .* the estimates are"):
        device_estimate(order(huge), spread(digits_task, 2)[0], workspace(digits_task))
