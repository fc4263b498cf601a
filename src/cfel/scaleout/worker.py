"""A worker process of the Ray engine: runs one device after another, with one torch thread.

A worker keeps nothing about devices. A device's state arrives with its order and goes back with its report,
so losing a worker loses only time. The data arrive once, through the object store, which all workers of a
machine share. Starting workers and distributing jobs is `worker_pool`.
"""

import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor

from cfel import __version__
from cfel.arrays import IntArray
from cfel.learning.compression.compressors import Compressor
from cfel.learning.device_messages import DeviceOrder, DeviceState
from cfel.learning.evaluate import Evaluation, evaluate
from cfel.learning.local.estimates import Estimates
from cfel.learning.local.parameters import TrainingParameters
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.learning.roles import device_estimate, device_update
from cfel.learning.task import DeviceData, Task
from cfel.learning.worker_threads import prepare_process, prepare_thread
from cfel.simulation.executors import JobResult
from cfel.world import World

VERSIONS = (f"cfel {__version__}", f"torch {torch.__version__}", f"numpy {np.__version__}")


class WorkerInfo(NamedTuple):
    """Where a worker runs, and the versions that its results depend on."""

    node: str
    process: int
    versions: tuple[str, ...]


class JobOrder(NamedTuple):
    """A `DeviceOrder` whose model is a position among the models of the job."""

    seed: int
    global_round: int
    edge_round: int
    device: int
    rho: float
    theta: float
    tau: int
    model: int
    rate: float

    def with_model(self, models: Sequence[FlatModel]) -> DeviceOrder:
        """The order itself."""
        return DeviceOrder(*self[:-2], models[self.model], self.rate)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceContext:
    """The parts of a World that devices need; put into the object store once.

    Attributes:
        seed, task, training, compress: the World's.
        indices: the samples of all devices in one array, as thousands of small ones load slowly.
        starts: where the samples of each device start in it, and the end.
    """

    seed: int
    task: Task
    training: TrainingParameters
    compress: Compressor
    indices: IntArray
    starts: IntArray

    @classmethod
    def from_world(cls, world: World) -> "DeviceContext":
        """The parts that devices need."""
        starts = np.cumsum([0, *(own.samples for own in world.data)])
        indices = np.concatenate([own.indices for own in world.data])
        return cls(world.setting.seed, world.task, world.training, world.compress, indices, starts)

    def data(self, device: int) -> DeviceData:
        """What one device holds."""
        return DeviceData(self.task.data, self.indices[self.starts[device] : self.starts[device + 1]])


class DeviceWorker:
    """The Ray actor of a worker; lives as long as the executor.

    Args:
        search_path: the driver's import path, where user-defined modules are.
        context: Ray's reference of a `DeviceContext`, in a list: Ray would resolve a bare reference, and
            import user-defined modules, before the search path is set.
        device: torch device.
    """

    def __init__(self, search_path: Sequence[str], context: Sequence[Any], device: str) -> None:
        extend_search_path(search_path)
        prepare_process()
        prepare_thread()
        send_tensors_as_arrays()
        self._context: DeviceContext = ray.get(context[0])
        self._workspace = Workspace(
            self._context.task, self._context.training, self._context.compress, device
        )

    def ready(self) -> WorkerInfo:
        """Returns as soon as the worker has started."""
        return WorkerInfo(ray.get_runtime_context().get_node_id(), os.getpid(), VERSIONS)

    def estimates(self, orders: Sequence[JobOrder], *models: FlatModel) -> list[Estimates]:
        """Fresh estimates of σ² and G², in order."""
        return [
            device_estimate(order.with_model(models), self._context.data(order.device), self._workspace)
            for order in orders
        ]

    def updates(
        self, orders: Sequence[JobOrder], states: Sequence[DeviceState], *models: FlatModel
    ) -> tuple[float, list[JobResult]]:
        """Local training of some devices, in order, and the CPU seconds it took.

        States may be in shared memory that is read-only: they are not changed.
        """
        begin = time.thread_time()
        answers = [
            device_update(order.with_model(models), self._context.data(order.device), state, self._workspace)
            for order, state in zip(orders, states, strict=True)
        ]
        return time.thread_time() - begin, answers

    def evaluations(self, samples: int, *models: FlatModel) -> list[Evaluation]:
        """The models on the test set."""
        return [evaluate(model, self._workspace, samples or None, self._context.seed) for model in models]


def extend_search_path(folders: Sequence[str]) -> None:
    """Adds the driver's import path to this process's."""
    sys.path.extend(folder for folder in folders if folder not in sys.path)


def send_tensors_as_arrays() -> None:
    """Makes Ray serialise tensors as NumPy arrays, which are read from shared memory without a copy."""
    frozen = np.zeros(1)
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        # Torch warns once per process that it cannot protect such memory from writes. There are none:
        # models and data are never changed in place, and states are copied first.
        warnings.simplefilter("ignore")
        torch.from_numpy(frozen)
    ray.util.register_serializer(Tensor, serializer=_as_array, deserializer=torch.from_numpy)


def _as_array(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().numpy()
