"""Small tasks and fleets the learning tests share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from cfel.learning.compressors import compressor
from cfel.learning.data import digits, synthetic
from cfel.learning.data.partition import DataParameters, partition
from cfel.learning.device_messages import DeviceOrder, DeviceReport, Order
from cfel.learning.local.parameters import LocalParameters, TrainingParameters
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.builders import model_builder
from cfel.learning.models.flat import FlatModel
from cfel.learning.task import DeviceData, Task

Build = Callable[..., Workspace]
Make = Callable[..., DeviceOrder]
Spread = Callable[[Task, int], list[DeviceData]]


def dense(report: DeviceReport) -> torch.Tensor:
    """The update that a device sent, every entry of it."""
    result = torch.zeros(report.update.size)
    report.update.add_to(result, 1.0)
    return result


@pytest.fixture(autouse=True)
def _one_thread_and_no_global_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One torch thread, a separate cache, and an unchanged global generator of torch."""
    monkeypatch.setenv("CFEL_CACHE", str(tmp_path / "cache"))
    torch.set_num_threads(1)
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state()), "somebody drew from torch's global generator"


@pytest.fixture(scope="session")
def digits_task() -> Task:
    return Task(digits(), model_builder("mlp"))


@pytest.fixture(scope="session")
def image_task() -> Task:
    return Task(synthetic(300, (1, 8, 8), classes=4), model_builder("small_cnn"))


@pytest.fixture(scope="session")
def norm_task() -> Task:
    return Task(synthetic(120, (3, 16, 16), classes=4), model_builder("resnet20"))


@pytest.fixture(scope="session")
def spread() -> Spread:
    def deal(task: Task, devices: int) -> list[DeviceData]:
        data, parts = partition(task.data, np.zeros(devices, np.int64), DataParameters(partition="iid"), 0)
        return [DeviceData(data, part) for part in parts]

    return deal


@pytest.fixture(scope="session")
def workspace() -> Build:
    def build(
        task: Task, kind: str = "topk", batch: int = 50, error_feedback: bool = False, **local: object
    ) -> Workspace:
        training = TrainingParameters(LocalParameters(**local), batch, error_feedback)  # type: ignore[arg-type]
        return Workspace(task, training, compressor(kind))

    return build


@pytest.fixture(scope="session")
def order() -> Make:
    def make(
        model: FlatModel,
        device: int = 0,
        *,
        rho: float = 1.0,
        theta: float = 1.0,
        tau: int = 5,
        edge_round: int = 0,
        seed: int = 0,
    ) -> DeviceOrder:
        return Order(seed, 0, edge_round, device, rho, theta, tau, model)

    return make
