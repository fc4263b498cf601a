"""Every algorithm by its defining property, on one device; the seam itself with a few user-defined ones."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cfel.errors import InputError
from cfel.learning.device import device_update
from cfel.learning.device_messages import DeviceState
from cfel.learning.edge_rule import EdgeRound
from cfel.learning.local.algorithm import LocalAlgorithm, LocalParameters, LocalRun
from cfel.learning.local.algorithms import ALGORITHMS, build_algorithm, sgd
from cfel.learning.models.flat import FlatModel
from cfel.learning.task import Task, initial_model
from cfel.plugins import ANY_CODE
from tests.learning.conftest import Make, Spread, dense
from tests.learning.local.algorithms.conftest import Round, make_workspace


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_steps_equal_torch(name: str, decay: float) -> None:
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    algorithm = build_algorithm(LocalParameters(algorithm=name, weight_decay=decay, options={"beta2": 0.9}))
    assert algorithm.step is not None
    draw = torch.Generator().manual_seed(0)
    own = torch.randn(7, generator=draw)
    theirs = torch.nn.Parameter(own.clone())
    reference = kinds[name]([theirs], lr=0.1, betas=(0.9, 0.9), weight_decay=decay)
    memory = {each: torch.zeros(7 if vector else 1) for each, vector in algorithm.remembers.items()}
    for _ in range(4):
        theirs.grad = torch.randn(7, generator=draw)
        algorithm.step(own, theirs.grad.clone(), memory, 0.1)
        reference.step()
    torch.testing.assert_close(own, theirs.detach())


def test_adam_counts_its_steps_across_edge_rounds(run_round: Round) -> None:
    _, state = run_round("adam", learning_rate=0.001)
    _, after = run_round("adam", state, edge_round=1, learning_rate=0.001)
    assert [state.memory["steps"].item(), after.memory["steps"].item()] == [5.0, 10.0]
    assert not run_round("adam", momentum_state="reset")[1].memory


def test_fedprox_without_its_term_is_sgd(run_round: Round) -> None:
    plain, _ = run_round("sgd")
    same, _ = run_round("fedprox", options={"mu": 0.0})
    torch.testing.assert_close(dense(same), dense(plain))


def test_fedprox_stays_closer_to_the_edge_model(run_round: Round) -> None:
    """Its first step is SGD's, as it starts at the edge model; after that it is pulled back."""
    lengths = [float(dense(run_round("fedprox", options={"mu": mu})[0]).norm()) for mu in (0.0, 1.0, 10.0)]
    assert lengths == sorted(lengths, reverse=True)
    one, plain = run_round("fedprox", tau=1, options={"mu": 10.0})[0], run_round("sgd", tau=1)[0]
    torch.testing.assert_close(dense(one), dense(plain))


def test_dittos_edge_model_is_that_of_sgd(run_round: Round) -> None:
    plain, _ = run_round("sgd")
    beside, _ = run_round("ditto", options={"lambda": 5.0})
    assert torch.equal(dense(beside), dense(plain))
    assert build_algorithm(LocalParameters(algorithm="ditto")).gradients == 2


def test_dittos_own_model_is_local_training_without_the_pull(
    run_round: Round, digits_task: Task, order: Make, spread: Spread
) -> None:
    """With λ = 0 it is what SGD alone makes of the device's data, whatever edge models come."""
    _, state = run_round("ditto", options={"lambda": 0.0})
    data, model = spread(digits_task, 4)[0], initial_model(digits_task, 0)
    local = LocalParameters(algorithm="ditto", options={"lambda": 0.0})
    moved = FlatModel(model.parameters + 1.0, model.buffers)
    asked = order(moved, tau=5, edge_round=1)
    _, after = device_update(asked, data, state, make_workspace(digits_task, local))
    workspace = make_workspace(digits_task, LocalParameters(momentum=0.0))
    alone = model
    for edge_round in (0, 1):
        report, _ = device_update(order(alone, tau=5, edge_round=edge_round), data, DeviceState(), workspace)
        alone = FlatModel(alone.parameters + dense(report), alone.buffers)
    torch.testing.assert_close(after.memory["personal_model"], alone.parameters)


def test_dittos_own_model_is_pulled_towards_the_edge_model(run_round: Round, digits_task: Task) -> None:
    """Its first step is from the edge model; after that, the larger λ, the closer it stays."""
    start = initial_model(digits_task, 0).parameters
    distances = [
        float((run_round("ditto", options={"lambda": pull})[1].memory["personal_model"] - start).norm())
        for pull in (0.0, 2.0, 15.0)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[2] < 0.7 * distances[0]
    with pytest.raises(InputError, match="must be below 1"):
        build_algorithm(LocalParameters(algorithm="ditto", options={"lambda": 20.0}))


def test_clipping_bounds_a_step(run_round: Round) -> None:
    """A step of SGD without momentum is the learning rate times the gradient."""
    free, _ = run_round("sgd", tau=1, momentum=0.0, learning_rate=0.1)
    clipped, _ = run_round("sgd", tau=1, momentum=0.0, learning_rate=0.1, clip_gradient=0.5)
    assert float(dense(free).norm()) > 0.06
    assert float(dense(clipped).norm()) == pytest.approx(0.05)
    torch.testing.assert_close(
        dense(clipped) / dense(clipped).norm(), dense(free) / dense(free).norm(), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"fedbalancer"}))
def test_estimates_and_loss_come_from_the_plain_gradient(run_round: Round, name: str) -> None:
    """Whatever the algorithm does, the first step's σ² and G² are SGD's: plans mean the same.

    Only `fedbalancer` uses other samples.
    """
    momentum = 0.0 if name in ("scaffold", "fednova") else 0.9
    plain, _ = run_round("sgd", tau=1)
    report, _ = run_round(name, tau=1, clip_gradient=0.1, momentum=momentum)
    assert report.estimates == plain.estimates
    assert report.loss == plain.loss


def test_an_algorithm_draws_and_computes_gradients_elsewhere(
    digits_task: Task, order: Make, spread: Spread
) -> None:
    """The gradient at the present parameters is the one it was given; draws repeat, and differ by step."""
    seen: list[tuple[float, float]] = []

    def note(run: LocalRun, gradient: Tensor) -> None:
        before = run.parameters.clone()
        again = run.gradient_at(run.parameters)
        assert torch.equal(before, run.parameters)
        seen.append((float((again - gradient).norm() / gradient.norm()), run.draw("test").random()))

    local = LocalParameters(estimator="fresh")
    workspace = make_workspace(digits_task, local, replace(sgd(local), change_gradient=note))
    data, model = spread(digits_task, 4)[0], initial_model(digits_task, 0)
    for _ in range(2):
        device_update(order(model, tau=3), data, DeviceState(), workspace)
    assert max(distance for distance, _ in seen) < 1e-5
    assert seen[:3] == seen[3:]
    assert len({drawn for _, drawn in seen}) == 3


def _no_algorithm(local: LocalParameters) -> object:
    return local


def _short_step(local: LocalParameters) -> LocalAlgorithm:
    return replace(sgd(local), step=_no_algorithm)  # type: ignore[arg-type]


def _reserved(local: LocalParameters) -> LocalAlgorithm:
    return replace(sgd(local), memory=("residual",))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_no_algorithm, "returned a LocalParameters"),
        (_short_step, r"step: is called with \(x, gradient, memory, rate\)"),
        (_reserved, "memory 'residual' has a reserved name"),
    ],
)
def test_mistakes_are_named(function: Callable[..., object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_algorithm(LocalParameters(algorithm=f"{__name__}:{function.__name__}"), ANY_CODE)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedprx", {}, "did you mean 'fedprox'"),
        ("fedprox", {"nu": 1.0}, "'fedprox': unknown 'nu'"),
        ("fedprox", {"mu": -1.0}, r"local.options.mu = -1.0"),
        ("sgd", {"mu": 1.0}, "'mu'"),
    ],
)
def test_unknown_names_and_options(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_algorithm(LocalParameters(algorithm=name, options=options))


def test_shared_momentum_starts_at_the_clusters_mean(run_round: Round) -> None:
    """In the first edge round it is SGD; after it, the edge server knows the mean momentum on the way."""
    rate = LocalParameters().learning_rate
    plain, state = run_round("sgd")
    shared, _ = run_round("shared_momentum")
    torch.testing.assert_close(dense(shared), dense(plain))
    rule = build_algorithm(LocalParameters(algorithm="shared_momentum")).edge
    assert rule is not None
    memory = {"mean_momentum": torch.zeros_like(dense(plain))}
    found = EdgeRound(dense(plain), torch.empty(0), 5.0, 1.0, 1.0, rate)
    assert rule.change(found, memory) is found.update
    torch.testing.assert_close(memory["mean_momentum"], -dense(plain) / (5 * rate))
    # What the device itself remembers does not matter.
    again, _ = run_round("shared_momentum", state)
    torch.testing.assert_close(dense(again), dense(shared))


def test_shared_momentum_needs_momentum() -> None:
    with pytest.raises(InputError, match=r"shared_momentum.*local.momentum > 0"):
        build_algorithm(LocalParameters(algorithm="shared_momentum", momentum=0.0))
