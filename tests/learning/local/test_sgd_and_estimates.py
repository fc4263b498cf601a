"""Steps, batches and estimates against numbers derived by hand."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from cfel.errors import InputError
from cfel.learning.compressors import compressor
from cfel.learning.data import DataSet
from cfel.learning.device import device_estimate, device_update
from cfel.learning.device_messages import DeviceState, Order
from cfel.learning.local.algorithm import LocalParameters, TrainingParameters
from cfel.learning.local.algorithms import apply_momentum_step
from cfel.learning.local.estimates import (
    Estimates,
    check_estimates,
    estimate_from_halves,
    refresh_estimates,
    scale_noise,
    stack_estimates,
    unstack_estimates,
)
from cfel.learning.local.training import choose_iterations, draw_batches
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.learning.task import DeviceData, Task
from cfel.seeding import make_generator


@pytest.mark.parametrize("rule", ["bernoulli", "systematic"])
def test_both_step_rules_have_mean_rho(rule: str) -> None:
    """4,000 rounds of τ = 5 at ρ = 0.7: 3.5 steps on average, standard error below 0.02."""
    counts = [
        choose_iterations(rule, 0.7, 5, make_generator(0, "s", n)).sum()  # type: ignore[arg-type]
        for n in range(4000)
    ]
    assert np.mean(counts) == pytest.approx(3.5, abs=0.07)
    assert set(counts) == ({3, 4} if rule == "systematic" else {0, 1, 2, 3, 4, 5})


@given(st.floats(0, 1), st.integers(1, 20), st.integers(0, 99))
def test_systematic_steps_are_floor_or_ceiling_and_evenly_spread(rho: float, tau: int, seed: int) -> None:
    taken = choose_iterations("systematic", rho, tau, make_generator(seed, "s"))
    assert np.floor(rho * tau - 1e-9) <= taken.sum() <= np.ceil(rho * tau + 1e-9)
    for width in range(1, tau):
        windows = np.convolve(taken, np.ones(width), mode="valid")
        assert windows.max() - windows.min() <= 1


@pytest.mark.parametrize("rule", ["bernoulli", "systematic"])
def test_all_or_nothing(rule: str) -> None:
    assert choose_iterations(rule, 1.0, 6, make_generator(0, "s")).all()  # type: ignore[arg-type]
    assert not choose_iterations(rule, 0.0, 6, make_generator(0, "s")).any()  # type: ignore[arg-type]


def test_a_larger_rho_takes_the_same_iterations_and_more() -> None:
    """Common random numbers: the uniforms do not depend on ρ."""
    few, many = (choose_iterations("bernoulli", rho, 50, make_generator(0, "s")) for rho in (0.3, 0.6))
    assert not (few & ~many).any()


@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 12))
def test_batches_are_samples_without_replacement(samples: int, batch: int, count: int) -> None:
    rows = draw_batches(samples, batch, count, make_generator(0, "b"))
    assert rows.shape == (count, min(samples, batch))
    assert all(len(set(row)) == len(row) for row in rows.tolist())
    each = samples // min(samples, batch)
    assert len(set(rows[:each].ravel().tolist())) == rows[:each].size


def test_fewer_batches_are_the_first_of_more() -> None:
    few, many = (draw_batches(30, 7, count, make_generator(0, "b")) for count in (3, 9))
    assert np.array_equal(few, many[:3])


@pytest.mark.parametrize(
    ("momentum", "decay", "nesterov"),
    [(0.9, 0.0, False), (0.0, 0.0, False), (0.5, 0.1, False), (0.9, 0.1, True)],
)
def test_steps_equal_torch_sgd_whatever_the_strides(momentum: float, decay: float, nesterov: bool) -> None:
    local = LocalParameters(momentum=momentum, weight_decay=decay, nesterov=nesterov)
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(4, 3, 2, 2, generator=draw)
    own = nn.Parameter(start.clone().to(memory_format=torch.channels_last))
    theirs = nn.Parameter(start.clone())
    buffers = [torch.zeros_like(own).detach()] if momentum else []
    reference = torch.optim.SGD(
        [theirs], lr=0.1, momentum=momentum, weight_decay=decay, nesterov=nesterov, foreach=False
    )
    for _ in range(3):
        gradient = torch.randn(4, 3, 2, 2, generator=draw)
        apply_momentum_step([own], [gradient.clone()], buffers, local, 0.1)
        theirs.grad = gradient
        reference.step()
    torch.testing.assert_close(own, theirs)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", 0.0),
        ("momentum", 1.0),
        ("weight_decay", -1.0),
        ("fresh_batches", 1),
        ("kept_energy_at", (1.5,)),
        ("momentum_state", "drop"),
        ("steps", "bernouli"),
        ("estimator", "none"),
    ],
)
def test_bad_local_parameters_are_named(field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"local.{field}"):
        LocalParameters(**{field: value})  # type: ignore[arg-type]


def test_a_batch_has_a_sample() -> None:
    with pytest.raises(InputError, match=r"data\.batch = 0"):
        TrainingParameters(batch=0)


class _Centre(nn.Module):
    """Outputs its one weight vector for every sample; with loss ½‖w − x‖² the gradient is w − x."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.expand(len(x), -1)


SAMPLES, SIZE = 12, 3


def _quadratic(layered: bool) -> tuple[Task, float, float]:
    """A task with known σ² (per sample, population) and G² at w = 0, with and without the one-pass route.

    ∇ℓ_i(0) = −x_i, so G² = ‖mean x‖² and the variance of a batch of B of n drawn without replacement is
    S²/B·(1 − B/n) with S² = Σ‖x_i − x̄‖²/(n − 1).
    """
    points = torch.from_numpy(np.random.default_rng(3).standard_normal((SAMPLES, SIZE)).astype(np.float32))
    points += 0.5
    scatter = float((points - points.mean(0)).square().sum()) / (SAMPLES - 1)
    if layered:  # a dense layer fed with ones does the same
        data = DataSet("points", torch.ones(SAMPLES, 1), points, torch.ones(1, 1), points[:1], SIZE)

        def build(_shape: tuple[int, ...], classes: int) -> nn.Module:
            return nn.Sequential(nn.Linear(1, classes, bias=False))
    else:
        data = DataSet("points", points, points, points[:1], points[:1], SIZE)

        def build(_shape: tuple[int, ...], classes: int) -> nn.Module:
            return _Centre(classes)

    task = Task(
        data, build, loss=lambda out, x: 0.5 * (out - x).square().sum(1), metric=lambda out, _: -out[:, 0]
    )
    return task, scatter, float(points.mean(0).square().sum())


@pytest.mark.parametrize("layered", [True, False], ids=["one pass", "two passes"])
@pytest.mark.parametrize("batch", [4, 5, 12])
@pytest.mark.parametrize("estimator", ["reuse", "fresh"])
def test_estimates_are_unbiased_on_a_quadratic(layered: bool, batch: int, estimator: str) -> None:
    task, scatter, g2 = _quadratic(layered)
    training = TrainingParameters(LocalParameters(estimator=estimator), batch)  # type: ignore[arg-type]
    workspace = Workspace(task, training, compressor("none"))
    data = DeviceData(task.data, np.arange(SAMPLES))
    zero = FlatModel(torch.zeros(SIZE), torch.zeros(0))
    found: list[Estimates] = []
    for seed in range(400):
        order = Order(seed, 0, 0, 0, 1.0, 1.0, 1, zero)
        if estimator == "fresh":
            found.append(device_estimate(order, data, workspace))
        else:
            _, state = device_update(order, data, DeviceState(), workspace)
            assert state.estimates is not None
            found.append(state.estimates)
    sigma2 = scatter / batch * (1 - batch / SAMPLES)
    for values, truth in (([e.sigma2 for e in found], sigma2), ([e.g2 for e in found], g2)):
        error = np.std(values) / np.sqrt(len(values))
        assert np.mean(values) == pytest.approx(truth, abs=4.5 * error + 1e-5)


@pytest.mark.parametrize(
    ("sigma2", "g2", "finite"), [(1.0, -1.0, True), (math.nan, 0.0, False), (0.0, math.inf, False)]
)
def test_estimates_know_whether_they_are_finite(sigma2: float, g2: float, finite: bool) -> None:
    assert Estimates(sigma2, g2).is_finite is finite


@pytest.mark.parametrize(("sigma2", "g2"), [(math.nan, 0.0), (1.0, math.inf), (-1.0, 1.0)])
def test_estimates_from_elsewhere_must_be_possible(sigma2: float, g2: float) -> None:
    with pytest.raises(InputError, match="diverged"):
        check_estimates(Estimates(sigma2, g2))


def test_estimates_as_arrays_and_back() -> None:
    """Rows of devices without estimates, or without a curve, hold NaN."""
    known = [Estimates(1.0, -1.0, (0.5, 1.0)), None, Estimates(2.0, 0.5)]
    arrays = stack_estimates(known)
    np.testing.assert_array_equal(arrays["estimates"], [[1.0, -1.0], [np.nan, np.nan], [2.0, 0.5]])
    np.testing.assert_array_equal(arrays["kept_energy"], [[0.5, 1.0], [np.nan, np.nan], [np.nan, np.nan]])
    assert unstack_estimates(arrays) == known
    plain = [Estimates(1.0, 1.0), None]
    assert list(stack_estimates(plain)) == ["estimates"]
    assert unstack_estimates(stack_estimates(plain)) == plain


def test_a_fresh_measurement_keeps_the_curve_of_the_last_update() -> None:
    fresh = Estimates(3.0, 4.0)
    assert refresh_estimates(Estimates(1.0, 2.0, (0.5,)), fresh) == Estimates(3.0, 4.0, (0.5,))
    assert refresh_estimates(None, fresh) == fresh


@pytest.mark.parametrize(
    ("used", "full"), [(2, 5), (3, 5), (4, 5), (2, 2), (5, 5), (2, 6), (3, 6), (6, 6), (3, 50), (6, 50)]
)
def test_noise_of_a_small_batch_is_scaled_to_the_full_one(used: int, full: int) -> None:
    """On average over all batches and halves, it is the variance of full batches, counted out.

    The mean of b of n samples, drawn without replacement, has the variance S²/b·(1 − b/n), where S² is the
    samples' scatter over n − 1. Halves of a batch of b estimate that. So the variance for B is it times
    b/B·(1 − B/n)/(1 − b/n) = b/B·(n − B)/(n − b): zero where a full batch holds all samples.
    """
    samples = 6
    points = np.random.default_rng(5).normal(size=(samples, 3))
    found = []
    for each in itertools.permutations(range(samples)):
        batch, half = points[list(each[:used])], used // 2
        apart = np.square(batch[:half].mean(0) - batch[half:].mean(0)).sum() * half * (used - half) / used
        estimates = estimate_from_halves(apart, float(np.square(batch.mean(0)).sum()), used, samples)
        scaled = scale_noise(estimates, used=used, batch=full, samples=samples)
        assert scaled.g2 == estimates.g2
        found.append(scaled.sigma2)
    means = [
        points[list(each)].mean(0) for each in itertools.combinations(range(samples), min(full, samples))
    ]
    assert np.mean(found) == pytest.approx(np.var(means, axis=0).sum(), abs=1e-12)


def test_noise_of_few_samples() -> None:
    """10 of 60 samples for a batch of 50: the noise is 1/25 of the small batch's, not 1/5."""
    scaled = scale_noise(Estimates(2.5, 3.0), used=10, batch=50, samples=60)
    assert scaled == Estimates(pytest.approx(0.1), 3.0)  # type: ignore[arg-type]
