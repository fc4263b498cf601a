"""Algorithms with a loop of their own: what they get, what is taken over, what is rejected."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cfel
from cfel.errors import InputError
from cfel.learning.local.algorithm import LocalAlgorithm, LocalParameters, WholeResult, WholeRun
from cfel.learning.local.algorithms import sgd
from cfel.learning.local.estimates import Estimates

DEVICES = 4


class Model(nn.Module):
    """Trained weights, statistics and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.layer = nn.Linear(3, 2)
        self.layer.bias.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Classes of a batch."""
        found: Tensor = self.layer(self.norm(inputs))
        return found


def make_model() -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Model()


def simulate(train: Any, **local: Any) -> cfel.Simulation:
    inputs = torch.zeros(40, 3)
    half = (inputs.numpy(), torch.arange(40).remainder(2).numpy())
    return cfel.simulate(
        cfel.Experiment(
            model=make_model(),
            data=(half, half),
            scheme="cef",
            rounds={"global": 2, "edge": 1, "local": 3},
            fleet={"devices": DEVICES, "clusters": 2},
            local={"algorithm": lambda _local: LocalAlgorithm(train=train), **local},
        )
    )


def test_a_loop_trains_the_model_and_its_statistics_but_nothing_frozen() -> None:
    """Each device adds 1 to its weights and the number of steps to its statistics."""
    runs: list[WholeRun] = []

    def train(run: WholeRun) -> WholeResult:
        runs.append(run)
        values = {name: value + 1 for name, value in run.module.state_dict().items()}
        values["norm.running_mean"] = run.module.state_dict()["norm.running_mean"] + run.steps
        return WholeResult(values, loss=0.5, estimates=Estimates(3.0, 2.0))

    simulation = simulate(train, learning_rate=0.25)
    records = list(simulation)
    before, after = make_model().state_dict(), simulation.model().state_dict()
    assert [record.loss for record in records] == [0.5, 0.5]
    assert (records[0].sigma2, records[0].g2) == (1.0, 1.0)
    assert (records[1].sigma2, records[1].g2) == (3.0, 2.0)
    assert after["norm.running_mean"].tolist() == [6.0] * 3
    torch.testing.assert_close(after["norm.weight"], before["norm.weight"] + 2)
    assert not torch.equal(after["layer.weight"], before["layer.weight"])
    assert [(run.global_round, run.device, run.steps, run.rate) for run in runs] == [
        (number, device, 3, 0.25) for number in range(2) for device in range(DEVICES)
    ]
    assert len({run.seed for run in runs}) == 2 * DEVICES
    frozen = runs[-1].module.state_dict()["layer.bias"]
    assert torch.equal(frozen, runs[0].module.state_dict()["layer.bias"])
    assert torch.equal(frozen, after["layer.bias"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda values: values.pop("layer.weight"), "device 0: .*'layer.weight'"),
        (lambda values: values.update({"layer.weight": torch.zeros(3)}), "of shape"),
    ],
)
def test_values_that_do_not_fit_are_rejected(change: Any, words: str) -> None:
    def train(run: WholeRun) -> WholeResult:
        values = dict(run.module.state_dict())
        change(values)
        return WholeResult(values, loss=0.0)

    with pytest.raises(InputError, match=words):
        list(simulate(train))


def test_a_loss_that_is_not_finite_ends_the_run() -> None:
    with pytest.raises(cfel.CfelError, match="loss of local step 1 is nan"):
        list(simulate(lambda run: WholeResult(run.module.state_dict(), loss=float("nan"))))


def test_fresh_estimates_are_rejected() -> None:
    with pytest.raises(InputError, match="its own training loop"):
        simulate(lambda run: WholeResult(run.module.state_dict(), 0.0), estimator="fresh")


def test_an_algorithm_has_steps_or_a_loop() -> None:
    with pytest.raises(InputError, match="`step`, or `train`"):
        LocalAlgorithm()
    with pytest.raises(InputError, match="`step`, or `train`"):
        replace(sgd(LocalParameters()), train=lambda _run: WholeResult({}, 0.0))
