"""What runs in a worker process: the devices handed to it, one at a time, with one torch thread.

A worker remembers nothing about devices. What a device remembers comes with its order and goes back with its
report, so that a lost worker loses nothing but time. Data come once, through the object store, which all
workers of a machine share.
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
from cfel.learning.local.sgd import LocalParameters
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.learning.roles import device_estimate, device_update
from cfel.learning.task import DeviceData, Task
from cfel.learning.worker_threads import prepare_process, prepare_thread
from cfel.simulation.executors import Answer
from cfel.world import World

VERSIONS = (f"cfel {__version__}", f"torch {torch.__version__}", f"numpy {np.__version__}")


class Place(NamedTuple):
    """Where a worker runs, and with which versions of what results depend on."""

    node: str
    process: int
    versions: tuple[str, ...]


class Order(NamedTuple):
    """A `DeviceOrder` with its model's place among those that come with the task."""

    seed: int
    global_round: int
    edge_round: int
    device: int
    rho: float
    theta: float
    tau: int
    model: int

    def with_model(self, models: Sequence[FlatModel]) -> DeviceOrder:
        """The order as devices know it."""
        return DeviceOrder(*self[:-1], models[self.model])


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """The parts of a World that devices need; put into the object store once.

    Attributes:
        seed, task, local, compress: the World's.
        indices: every device's samples, one device's behind the other's.
        starts: where each device's begin, and the end.
    """

    seed: int
    task: Task
    local: LocalParameters
    compress: Compressor
    indices: IntArray
    starts: IntArray

    @classmethod
    def of(cls, world: World) -> "Share":
        """The devices' part of a World."""
        starts = np.cumsum([0, *(own.samples for own in world.data)])
        indices = np.concatenate([own.indices for own in world.data])
        return cls(world.seed, world.task, world.local, world.compress, indices, starts)

    def data(self, device: int) -> DeviceData:
        """What one device holds."""
        return DeviceData(self.task.data, self.indices[self.starts[device] : self.starts[device + 1]])


class DeviceWorker:
    """The body of a worker; lives as long as the executor.

    Args:
        search_path: folders of the driver's to look for the user's own modules in.
        share: the reference of a `Share`, in a list so that it is fetched only when modules can be found.
        device: torch device.
    """

    def __init__(self, search_path: Sequence[str], share: Sequence[Any], device: str) -> None:
        sys.path.extend(place for place in search_path if place not in sys.path)
        prepare_process()
        prepare_thread()
        send_tensors_as_arrays()
        self._share: Share = ray.get(share[0])
        self._workspace = Workspace(self._share.task, self._share.local, self._share.compress, device)

    def ready(self) -> Place:
        """Answers once the worker can work."""
        return Place(ray.get_runtime_context().get_node_id(), os.getpid(), VERSIONS)

    def estimates(self, orders: Sequence[Order], *models: FlatModel) -> list[Estimates]:
        """Fresh estimates of σ² and G², in order."""
        return [
            device_estimate(order.with_model(models), self._share.data(order.device), self._workspace)
            for order in orders
        ]

    def updates(
        self, orders: Sequence[Order], states: Sequence[DeviceState], *models: FlatModel
    ) -> tuple[float, list[Answer]]:
        """Local training of some devices, in order, and the seconds of CPU it took.

        States may lie in shared memory that cannot be written to: they are left as they are.
        """
        begin = time.thread_time()
        answers = [
            device_update(order.with_model(models), self._share.data(order.device), state, self._workspace)
            for order, state in zip(orders, states, strict=True)
        ]
        return time.thread_time() - begin, answers

    def evaluations(self, samples: int, *models: FlatModel) -> list[Evaluation]:
        """Models on the test set."""
        return [evaluate(model, self._workspace, samples or None, self._share.seed) for model in models]


def send_tensors_as_arrays() -> None:
    """Has Ray treat tensors as NumPy arrays in this process: read from shared memory without a copy."""
    frozen = np.zeros(1)
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        # Torch says once per process that it cannot keep anybody from writing to such memory. Nobody does:
        # models and data are never changed in place, and states are copied before they are.
        warnings.simplefilter("ignore")
        torch.from_numpy(frozen)
    ray.util.register_serializer(Tensor, serializer=_as_array, deserializer=torch.from_numpy)


def _as_array(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().numpy()
