"""The role functions: special cases with known answers, and purity."""

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from cfel.errors import InputError
from cfel.learning import torch_state as worker_threads
from cfel.learning.compressors import SparseUpdate
from cfel.learning.data import DataSet, synthetic
from cfel.learning.data.images import augmentation, crop_and_flip
from cfel.learning.device import device_estimate, device_update
from cfel.learning.device_messages import DeviceReport, DeviceState, Order
from cfel.learning.edge import edge_aggregate, gossip_mix, weighted_model
from cfel.learning.evaluate import evaluate
from cfel.learning.local.estimates import Estimates
from cfel.learning.local.training import draw_batches
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.builders import model_builder
from cfel.learning.models.flat import FlatModel, model_sha256
from cfel.learning.task import DeviceData, Task, initial_model, load_custom_task
from cfel.learning.torch_state import prepare_process, prepare_thread
from cfel.plugins import ANY_CODE
from tests.learning.conftest import Build, Make, Spread, dense


def _fedavg(task: Task, devices: list[DeviceData], start: FlatModel, rounds: int, batch: int) -> torch.Tensor:
    """FedAvg in ten lines of plain torch: every device trains, the mean becomes the model."""
    flat, (tau, rate, beta) = task.build(), (5, 0.05, 0.9)
    module, own = flat.module, flat.leaves
    weights = start.parameters.clone()
    for edge_round in range(rounds):
        trained = []
        for n, data in enumerate(devices):
            nn.utils.vector_to_parameters(weights.clone(), own)
            optimiser = torch.optim.SGD(own, lr=rate, momentum=beta)
            stream = Order(0, 0, edge_round, n, 1, 1, tau, start).stream("batches")
            for rows in draw_batches(data.samples, batch, tau, stream):
                places = torch.from_numpy(data.indices[rows])
                optimiser.zero_grad()
                inputs = task.data.scale(task.data.train_inputs[places])
                F.cross_entropy(module(inputs), task.data.train_targets[places]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            trained.append(nn.utils.parameters_to_vector(own).detach())
        weights = torch.stack(trained).mean(0)
    return weights


def test_everything_at_one_in_one_cluster_is_fedavg(
    digits_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    devices, scratch = spread(digits_task, 4), workspace(digits_task, momentum_state="reset", batch=32)
    model = start = initial_model(digits_task, 0)
    for edge_round in range(3):
        reports = [
            device_update(order(model, n, edge_round=edge_round), data, DeviceState(), scratch)[0]
            for n, data in enumerate(devices)
        ]
        model = edge_aggregate(model, reports)
    expected = _fedavg(digits_task, devices, start, 3, 32)
    torch.testing.assert_close(model.parameters, expected, rtol=1e-4, atol=1e-6)


def test_thin_and_whole_it_learns_the_digits(
    digits_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    devices, scratch = spread(digits_task, 8), workspace(digits_task, error_feedback=True)
    states, models = [DeviceState()] * 8, [initial_model(digits_task, 0)] * 2
    for edge_round in range(12):
        reports = []
        for n, data in enumerate(devices):
            asked = order(models[n // 4], n, rho=0.8, theta=0.1, edge_round=edge_round)
            report, states[n] = device_update(asked, data, states[n], scratch)
            reports.append(report)
        models = [edge_aggregate(models[i], reports[4 * i : 4 * i + 4]) for i in range(2)]
        models = gossip_mix(models, np.asarray([[0.75, 0.25], [0.25, 0.75]]))
    result = evaluate(models[0], scratch)
    assert result.metric > 0.9
    assert result.samples == 359
    sample = evaluate(models[0], scratch, samples=100, seed=1)
    assert sample.samples == 100
    assert sample == evaluate(models[0], scratch, samples=100, seed=1)


@pytest.mark.parametrize("task_name", ["digits_task", "image_task", "norm_task"])
def test_a_full_share_is_exact(
    task_name: str, workspace: Build, order: Make, spread: Spread, request: pytest.FixtureRequest
) -> None:
    """At θ = 1 compression changes nothing: top-k equals no compression bit for bit."""
    task: Task = request.getfixturevalue(task_name)
    data, model = spread(task, 2)[0], initial_model(task, 0)
    one, two = (
        device_update(order(model, tau=2), data, DeviceState(), workspace(task, kind, batch=8))[0]
        for kind in ("topk", "none")
    )
    assert torch.equal(dense(one), dense(two))
    assert one.steps == 2
    assert float(dense(one).abs().max()) > 0


@pytest.mark.parametrize("task_name", ["digits_task", "norm_task"])
def test_the_same_order_gives_the_same_bits_on_any_worker(
    task_name: str, workspace: Build, order: Make, spread: Spread, request: pytest.FixtureRequest
) -> None:
    task: Task = request.getfixturevalue(task_name)
    devices, model = spread(task, 4), initial_model(task, 0)
    orders = [order(model, n, rho=0.7, theta=0.2, tau=3) for n in range(4)]

    def digest(report: DeviceReport) -> tuple[bytes, bytes, Estimates | None]:
        return dense(report).numpy().tobytes(), report.buffers.numpy().tobytes(), report.estimates

    alone = [
        digest(device_update(asked, data, DeviceState(), workspace(task, batch=8))[0])
        for asked, data in zip(orders, devices, strict=True)
    ]

    def work(half: int) -> list[tuple[bytes, bytes, Estimates | None]]:
        prepare_thread()
        scratch = workspace(task, batch=8)
        return [
            digest(device_update(orders[n], devices[n], DeviceState(), scratch)[0])
            for n in (3 - half, 1 - half)
        ]

    with torch.random.fork_rng(devices=[]), ThreadPoolExecutor(2) as pool:
        (three, one), (two, zero) = pool.map(work, (0, 1))
    assert [zero, one, two, three] == alone


def test_arguments_stay_as_they_are(digits_task: Task, workspace: Build, order: Make, spread: Spread) -> None:
    data, model = spread(digits_task, 4)[0], initial_model(digits_task, 0)
    scratch = workspace(digits_task, error_feedback=True)
    _, state = device_update(order(model, theta=0.1), data, DeviceState(), scratch)
    assert state.residual is not None
    kept = [model.parameters.clone(), state.memory["momentum"].clone(), state.residual.clone()]
    report, after = device_update(order(model, theta=0.1, edge_round=1), data, state, scratch)
    edge_aggregate(model, [report])
    assert all(
        torch.equal(a, b)
        for a, b in zip(kept, [model.parameters, state.memory["momentum"], state.residual], strict=True)
    )
    _, given_up = device_update(
        order(model, theta=0.1, edge_round=1), data, state, scratch, give_up_state=True
    )
    assert torch.equal(after.memory["momentum"], given_up.memory["momentum"])


def test_a_device_that_takes_no_step_changes_nothing_but_reports(
    digits_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    data, model = spread(digits_task, 4)[0], initial_model(digits_task, 0)
    scratch = workspace(digits_task)
    _, before = device_update(order(model), data, DeviceState(), scratch)
    report, after = device_update(order(model, rho=0.0, theta=0.5, edge_round=1), data, before, scratch)
    assert (report.steps, np.isnan(report.loss)) == (0, True)
    assert not dense(report).any()
    assert torch.equal(after.memory["momentum"], before.memory["momentum"])
    assert after.estimates == before.estimates
    assert before.estimates is not None
    assert report.estimates == before.estimates


def test_skipped_iterations_leave_the_rest_their_batches(
    digits_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    """A device's batches do not depend on ρ: with a single common step the updates agree."""
    data, model = spread(digits_task, 4)[0], initial_model(digits_task, 0)
    scratch = workspace(digits_task, "none")
    whole, _ = device_update(order(model, tau=1), data, DeviceState(), scratch)
    for seed in range(50):
        report, _ = device_update(order(model, rho=0.3, tau=1, seed=seed), data, DeviceState(), scratch)
        expected, _ = device_update(order(model, tau=1, seed=seed), data, DeviceState(), scratch)
        assert report.steps == 0 or torch.equal(dense(report), dense(expected))
    assert whole.steps == 1


def test_kept_momentum_differs_from_reset(
    digits_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    data, model = spread(digits_task, 4)[0], initial_model(digits_task, 0)
    kept, reset = workspace(digits_task), workspace(digits_task, momentum_state="reset")
    _, state = device_update(order(model), data, DeviceState(), kept)
    one, _ = device_update(order(model, edge_round=1), data, state, kept)
    two, dropped = device_update(order(model, edge_round=1), data, state, reset)
    assert not dropped.memory
    assert not torch.equal(dense(one), dense(two))
    assert device_update(order(model), data, DeviceState(), workspace(digits_task, momentum=0.0))[
        1
    ] == DeviceState(estimates=state.estimates)


@pytest.mark.parametrize("kind", ["topk", "randomk", "jl", "quantise", "uveqfed", "atomo"])
def test_error_feedback_loses_nothing_over_time(
    kind: str, digits_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    """Σ sent + last residual = Σ learned, where learned is what an uncompressed device would have sent."""
    data, model = spread(digits_task, 4)[0], initial_model(digits_task, 0)
    scratch, plain = workspace(digits_task, kind, error_feedback=True), workspace(digits_task, "none")
    state, plain_state = DeviceState(), DeviceState()
    sent = learned = torch.zeros(model.parameters.numel())
    for edge_round in range(6):
        asked = order(model, theta=0.1, edge_round=edge_round)
        report, state = device_update(asked, data, state, scratch)
        reference, plain_state = device_update(asked, data, plain_state, plain)
        sent, learned = sent + dense(report), learned + dense(reference)
        assert float((sent - learned).norm()) > 1e-3
    assert state.residual is not None
    torch.testing.assert_close(sent + state.residual, learned, rtol=1e-4, atol=1e-5)


def test_estimates_come_before_the_first_step(
    norm_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    data, model = spread(norm_task, 4)[0], initial_model(norm_task, 0)
    estimates = device_estimate(order(model), data, workspace(norm_task, batch=6, fresh_batches=3))
    assert estimates.sigma2 > 0
    assert estimates.kept_energy == ()


def test_one_pass_and_two_passes_agree(
    image_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    """The same network with an activation that overwrites its input leaves the shortcut, and agrees."""

    class Overwriting(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.inner(x)
            return scores.mul_(1.0)

    wrapped = Task(image_task.data, lambda shape, classes: Overwriting(image_task.model(shape, classes)))
    data, model = spread(image_task, 2)[0], initial_model(image_task, 0)
    one, two = (
        device_update(order(model), data, DeviceState(), workspace(task, "none", batch=9))[0]
        for task in (image_task, wrapped)
    )
    assert workspace(image_task).is_layered
    torch.testing.assert_close(dense(one), dense(two), rtol=1e-3, atol=1e-5)
    assert one.estimates is not None
    assert two.estimates is not None
    assert (one.estimates.sigma2, one.estimates.g2) == pytest.approx(
        (two.estimates.sigma2, two.estimates.g2), rel=1e-3
    )
    assert one.loss == pytest.approx(two.loss, rel=1e-4)


@pytest.mark.parametrize("how", [{"padding": "same"}, {"padding": 1, "padding_mode": "circular"}])
def test_padding_by_name_or_not_with_zeros(
    how: dict[str, Any], image_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    """Such convolutions are taken in two passes; the shortcut would get them wrong."""

    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        flat = 2 * shape[1] * shape[2]
        convolution = nn.Conv2d(shape[0], 2, 3, **how)
        return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(flat, classes))

    task = Task(image_task.data, build)
    data, model = spread(task, 2)[0], initial_model(task, 0)
    report, _ = device_update(order(model), data, DeviceState(), workspace(task, "none", batch=9))
    assert report.estimates is not None
    assert report.estimates.sigma2 > 0


def _report(device: int, values: list[float], buffers: list[float] | None = None) -> DeviceReport:
    update = SparseUpdate(4, torch.tensor([0, 2], dtype=torch.int32), torch.tensor(values))
    return DeviceReport(device, update, torch.tensor(buffers or []), Estimates(1.0, 1.0), 5, 0.1, 10)


def test_aggregation_by_hand() -> None:
    """Weights 3 and 1: ¾·(4, 8) + ¼·(8, 0) = (5, 6) on entries 0 and 2; buffers ¾·2 + ¼·6 = 3."""
    model = FlatModel(torch.ones(4), torch.zeros(1))
    reports = [_report(7, [8.0, 0.0], [6.0]), _report(2, [4.0, 8.0], [2.0])]
    result = edge_aggregate(model, reports, {2: 3.0, 7: 1.0})
    assert result.parameters.tolist() == [6.0, 1.0, 7.0, 1.0]
    assert result.buffers.tolist() == [3.0]
    assert edge_aggregate(model, []) is model


def test_aggregation_does_not_depend_on_the_order_of_arrival() -> None:
    draw = np.random.default_rng(0)
    reports = [_report(n, draw.standard_normal(2).tolist()) for n in range(9)]
    model = FlatModel(torch.ones(4), torch.zeros(0))
    digests = {edge_aggregate(model, [reports[i] for i in draw.permutation(9)]).sha256() for _ in range(20)}
    assert len(digests) == 1


def test_aggregation_rejects_what_does_not_fit() -> None:
    with pytest.raises(InputError, match=r"device 3: 4 entries, .* 5"):
        edge_aggregate(FlatModel(torch.ones(5), torch.zeros(0)), [_report(3, [1.0, 1.0])])
    with pytest.raises(InputError, match=r"device 3 .* nan"):
        edge_aggregate(FlatModel(torch.ones(4), torch.zeros(0)), [_report(3, [1.0, 1.0])], {2: 1.0})


def _mixing(graph: np.ndarray, pi: np.ndarray) -> np.ndarray:
    """Metropolis–Hastings towards π."""
    degree, m = graph.sum(1), len(pi)
    weights = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            if graph[i, j]:
                weights[i, j] = min(1 / (degree[i] + 1), pi[j] / (pi[i] * (degree[j] + 1)))
        weights[i, i] = 1 - weights[i].sum()
    return weights


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1, 1], [5, 1, 2, 8, 4]])
def test_gossip_keeps_the_weighted_mean_and_contracts_by_zeta(sizes: list[int]) -> None:
    ring = np.roll(np.eye(5), 1, 0) + np.roll(np.eye(5), -1, 0)
    pi = np.asarray(sizes) / sum(sizes)
    mixing = _mixing(ring, pi)
    root = np.sqrt(pi)
    values = np.sort(np.abs(np.linalg.eigvals(np.diag(root) @ mixing @ np.diag(1 / root))))
    zeta = float(values[-2])
    draw = np.random.default_rng(0)
    models = [
        FlatModel(torch.from_numpy(draw.standard_normal(50).astype(np.float32)), torch.full((2,), float(i)))
        for i in range(5)
    ]

    def mean(of: list[FlatModel]) -> np.ndarray:
        return np.asarray(sum(p * model.parameters.double().numpy() for p, model in zip(pi, of, strict=True)))

    def disagreement(of: list[FlatModel]) -> float:
        centre = mean(of)
        gaps = [np.square(model.parameters.double().numpy() - centre).sum() for model in of]
        return float(np.sqrt(pi @ gaps))

    for _ in range(4):
        mixed = gossip_mix(models, mixing)
        np.testing.assert_allclose(mean(mixed), mean(models), atol=1e-6)
        assert disagreement(mixed) <= zeta * disagreement(models) * (1 + 1e-5)
        models = mixed
    buffers = sum(p * float(model.buffers[0]) for p, model in zip(pi, models, strict=True))
    assert buffers == pytest.approx(float(pi @ np.arange(5)), rel=1e-5)


def test_gossip_rejects_a_matrix_of_another_size() -> None:
    with pytest.raises(InputError, match=r"shape \(2, 2\) for 1 edge models"):
        gossip_mix([FlatModel(torch.ones(2), torch.zeros(0))], np.eye(2))


@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (2, 2), (9, 5), (0, 5)])
def test_gossip_and_digests_use_no_more_threads_than_workers(
    workers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five models keep at most five threads busy; 0 workers means one per core, here eight."""
    opened: list[int | None] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, max_workers: int | None = None, **options: Any) -> None:
            opened.append(max_workers)
            super().__init__(max_workers, **options)

    monkeypatch.setattr(worker_threads, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    models = [FlatModel(torch.ones(2), torch.zeros(0))] * 5
    gossip_mix(models, np.eye(5), workers)
    model_sha256(models, workers)
    assert opened == [threads, threads]
    with pytest.raises(InputError, match="weights: all are zero"):
        weighted_model({0: FlatModel(torch.ones(2), torch.zeros(0))}, {0: 0.0})


@pytest.mark.parametrize(
    ("field", "value"), [("rho", 1.2), ("rho", float("nan")), ("theta", 0.0), ("tau", 0)]
)
def test_a_bad_order_is_rejected(field: str, value: float, order: Make) -> None:
    with pytest.raises(InputError, match=f"{field} of device 0"):
        order(FlatModel(torch.ones(2), torch.zeros(0)), **{field: value})


def test_regression_is_just_another_task(workspace: Build, order: Make) -> None:
    """Y = 2x₀ − x₁ is found by a linear model with a squared loss and no classes at all."""
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.standard_normal((200, 2)).astype(np.float32))
    y = (x @ torch.tensor([2.0, -1.0]))[:, None]
    data = DataSet("line", x[50:], y[50:], x[:50], y[:50], classes=1)

    def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square().mean(1)

    task = Task(
        data,
        lambda shape, outputs: nn.Linear(shape[0], outputs),
        loss=squared,
        metric=lambda outputs, targets: -squared(outputs, targets),
    )
    model, state, device = initial_model(task, 0), DeviceState(), DeviceData(data, np.arange(150))
    scratch = workspace(task, learning_rate=0.1, batch=30)
    for edge_round in range(20):
        report, state = device_update(order(model, edge_round=edge_round), device, state, scratch)
        model = edge_aggregate(model, [report])
    assert evaluate(model, scratch).metric > -1e-3
    assert model.parameters[:2].tolist() == pytest.approx([2.0, -1.0], abs=0.02)


def test_kept_energy_is_reported(digits_task: Task, workspace: Build, order: Make, spread: Spread) -> None:
    data, model = spread(digits_task, 4)[0], initial_model(digits_task, 0)
    report, _ = device_update(
        order(model, theta=0.1), data, DeviceState(), workspace(digits_task, kept_energy_at=(0.1, 0.5, 1.0))
    )
    sent = float(dense(report).square().sum())
    whole, _ = device_update(order(model), data, DeviceState(), workspace(digits_task))
    assert report.estimates is not None
    kept = report.estimates.kept_energy
    assert kept[0] == pytest.approx(sent / float(dense(whole).square().sum()), rel=1e-3)
    assert kept[2] == 1.0


def test_augmentation_crops_flips_and_is_keyed() -> None:
    batch = torch.arange(1, 2 * 1 * 4 * 4 + 1, dtype=torch.uint8).view(2, 1, 4, 4)
    augment = crop_and_flip(1)
    seen = set()
    for seed in range(60):
        result = augment(batch, np.random.default_rng(seed))
        assert result.shape == batch.shape
        assert result.dtype == torch.uint8
        seen.add(result[0].numpy().tobytes())
        assert torch.equal(result, augment(batch, np.random.default_rng(seed)))
    padded = F.pad(batch[:1], (1, 1, 1, 1))[0]
    crops = [padded[:, i : i + 4, j : j + 4] for i in range(3) for j in range(3)]
    allowed = {c.contiguous().numpy().tobytes() for crop in crops for c in (crop, crop.flip(2))}
    assert seen == allowed
    assert torch.equal(crop_and_flip(0)(batch, np.random.default_rng(0)).sort(-1).values, batch)
    with pytest.raises(InputError, match="padding"):
        crop_and_flip(-1)


def test_augmentation_is_part_of_training(
    image_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    data, model = spread(image_task, 2)[0], initial_model(image_task, 0)
    moved = Task(image_task.data, image_task.model, augment=crop_and_flip(2))
    plain, one, two = (
        dense(device_update(order(model), data, DeviceState(), workspace(task, batch=8))[0])
        for task in (image_task, moved, moved)
    )
    assert torch.equal(one, two)
    assert not torch.equal(plain, one)


def test_preparing_twice_is_fine() -> None:
    assert prepare_process() == prepare_process()
    prepare_thread()
    assert torch.get_num_threads() == 1


def test_device_names(digits_task: Task, workspace: Build) -> None:
    scratch = Workspace(digits_task, workspace(digits_task).training, workspace(digits_task).compress, "auto")
    assert scratch.device.type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_a_device_without_samples_is_rejected(digits_task: Task) -> None:
    with pytest.raises(InputError, match="at least one sample"):
        DeviceData(digits_task.data, np.asarray([], dtype=np.int64))
    with pytest.raises(InputError, match="evaluate_samples"):
        evaluate(initial_model(digits_task, 0), None, samples=0)  # type: ignore[arg-type]


def own_task(path: object) -> Task:
    """Named below as "module:function"."""
    assert path is None
    return Task(synthetic(30), model_builder("mlp"))


def test_a_whole_task_comes_from_outside() -> None:
    name = f"{__name__}:own_task"
    sys.modules.setdefault(__name__, sys.modules[own_task.__module__])
    assert load_custom_task(name, code=ANY_CODE).data.name == "synthetic"
    with pytest.raises(InputError, match="returned a datetime, not a Task"):
        load_custom_task(f"{__name__}:no_task", code=ANY_CODE)
    with pytest.raises(InputError, match="unknown 'nothing'"):
        load_custom_task("nothing")


def no_task(path: object) -> object:
    return datetime(2000, 1, 1, tzinfo=UTC) if path is None else None


def test_augmentations_by_name() -> None:
    assert augmentation("none") is None
    assert callable(augmentation("crop_flip"))
    with pytest.raises(InputError, match="did you mean 'crop_flip'"):
        augmentation("cropflip")
