"""Where devices' work is done: a pool of workers, each with one torch thread and its own scratch memory.

An executor takes jobs and yields results in the same order, never more than a few ahead of their consumer:
memory grows with the number of workers, not of devices. With the batched engine the devices of a group are
trained as one model, which agrees with training them one by one up to rounding. For one engine, results have
the same bits for any number of workers, be they threads or processes.
"""

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from cfel.errors import InputError
from cfel.learning.device import device_estimate, device_update
from cfel.learning.device_messages import DeviceOrder, DeviceReport, DeviceState
from cfel.learning.evaluate import Evaluation, evaluate
from cfel.learning.local.algorithms import find_algorithm
from cfel.learning.local.batched import device_updates_batched, find_obstacle
from cfel.learning.local.estimates import Estimates
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.learning.torch_state import prepare_process, prepare_thread
from cfel.rounds.parameters import SimulationParameters
from cfel.simulation.worker_process import WorkerProcess, can_fork
from cfel.world import World

MOST_IN_A_GROUP = 64
# What the message of one group, or of its results, may hold; a worker and the driver keep a few of them.
GROUP_BYTES = 64 * 2**20
# A group takes this part of what is left for each worker.
SHARES = 3

Item = TypeVar("Item")


def largest_group(parameters: int, vectors: int) -> int:
    """How many devices may share a group, so that its message stays within `GROUP_BYTES`.

    So many dense vectors of the model's size travel with each device: its state, and its upload.
    """
    return max(1, min(MOST_IN_A_GROUP, GROUP_BYTES // (4 * parameters * max(1, vectors))))


def group_jobs(jobs: Sequence[Item], workers: int, most: int) -> Iterator[Sequence[Item]]:
    """The jobs in order, in groups: large ones first, to save messages, small ones last, to end together."""
    start = 0
    while start < len(jobs):
        left = len(jobs) - start
        size = min(most, max(1, left // (SHARES * workers)))
        yield jobs[start : start + size]
        start += size


# Jobs submitted beyond those being worked on, per worker: they keep all workers busy while results are used.
AHEAD = 2
# Devices trained as one batched model: half of the paper's fleet, so that two workers share it. It must not
# depend on the number of workers, or results would.
BATCHED_DEVICES = 32
# Up to this size models are trained in processes, where there are several workers: two threads of one process
# wait for each other's Python between operations this small (10 % of the time for 168,000 parameters).
MOST_FORKED_PARAMETERS = 300_000
# Devices sent to a process at a time, at most: their message holds one copy of their cluster's model.
MOST_AT_ONCE = 8

Job = tuple[DeviceOrder, DeviceState]
"""One device's training: what to do, and the device's state before."""
JobResult = tuple[DeviceReport, DeviceState]
"""What the device sends, and its state after."""


class Executor(Protocol):
    """What the round loop needs of an executor.

    Attributes:
        workers: how many work at a time; 0 for one per core.
    """

    workers: int

    def run_estimates(self, orders: Sequence[DeviceOrder]) -> Iterator[Estimates]:
        """Fresh σ² and G² by `learning.device.device_estimate`, in the order of the orders."""
        ...

    def run_updates(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """Each job by `learning.device.device_update`, in their order; the states may be overwritten."""
        ...

    def run_evaluations(self, models: Sequence[FlatModel], samples: int) -> list[Evaluation]:
        """Each model on the test set."""
        ...


class Worker(Protocol):
    """Does the work of an executor, one call at a time: a `LocalWorker`, here or in a process of its own."""

    def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 — whatever the method returns
        """Calls a method of `LocalWorker`."""
        ...


class LocalWorker:
    """Works in the thread that calls it."""

    def __init__(self, world: World, parameters: SimulationParameters) -> None:
        self._world = world
        self._batched = parameters.engine == "batched"
        self._workspace = Workspace(world.task, world.training, world.compress, parameters.device)

    @property
    def is_random(self) -> bool:
        """Whether the model draws random numbers."""
        return self._workspace.flat.behaviour.is_random

    def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 — whatever the method returns
        """See `Worker`."""
        return getattr(self, method)(*arguments)

    def estimate(self, order: DeviceOrder) -> Estimates:
        """Fresh estimates of one device."""
        return device_estimate(order, self._world.data[order.device], self._workspace)

    def update(self, jobs: Sequence[Job]) -> list[JobResult]:
        """Local training of one device, or of a group of them side by side."""
        orders, states = zip(*jobs, strict=True)
        data = [self._world.data[order.device] for order in orders]
        if self._batched:
            return device_updates_batched(orders, data, states, self._workspace)
        # The loop keeps only the new states, so the old ones may be overwritten.
        each = zip(orders, data, states, strict=True)
        return [device_update(*one, self._workspace, give_up_state=True) for one in each]

    def evaluate(self, model: FlatModel, samples: int) -> Evaluation:
        """One model on the test set."""
        return evaluate(model, self._workspace, samples or None, self._world.setting.seed)

    def cpu_seconds(self) -> float:
        """CPU time of the process this runs in."""
        return time.process_time()


class PoolExecutor:
    """Workers in threads of this process, or in processes where small models make threads slow.

    The engine in `parameters` is resolved.
    """

    def __init__(self, world: World, parameters: SimulationParameters) -> None:
        prepare_process()
        prepare_thread()
        # A loop of its own may remember things in this process, and need not be safe in several threads.
        self.workers = parameters.workers
        alone = find_algorithm(world.training).train is not None
        count = 1 if alone else parameters.workers or os.cpu_count() or 1
        self._count, self._ahead = count, count * (1 + AHEAD)
        self._batched = parameters.engine == "batched"
        if self._batched:
            obstacle = find_obstacle(
                world.task, world.training, world.start, world.data[0], parameters.device
            )
            if obstacle is not None:
                raise InputError(f"engine 'batched' cannot train this: {obstacle}; use --engine threads")
        local = [LocalWorker(world, parameters) for _ in range(count)]
        self._processes: list[WorkerProcess] = []
        small = world.start.parameters.numel() <= MOST_FORKED_PARAMETERS
        # A process has one generator of torch, so threads would wait for each other to draw from it.
        apart = small or local[0].is_random
        # A forked child cannot use a GPU that its parent has initialised.
        if count > 1 and apart and parameters.device == "cpu" and can_fork():
            for worker in local:
                # Before any thread is started: a fork copies locks in whatever state other threads hold them.
                self._processes.append(WorkerProcess(worker, self._processes))
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for each in self._processes or local:
            self._idle.put(each)
        self._pool = ThreadPoolExecutor(count, "device", initializer=prepare_thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for each in self._processes:
            each.close()

    def run_estimates(self, orders: Sequence[DeviceOrder]) -> Iterator[Estimates]:
        """See `Executor`."""
        return self._map("estimate", ((order,) for order in orders))

    def run_updates(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """See `Executor`."""
        for results in self._map("update", ((group,) for group in self._group(jobs))):
            yield from results

    def run_evaluations(self, models: Sequence[FlatModel], samples: int) -> list[Evaluation]:
        """See `Executor`."""
        return list(self._map("evaluate", ((model, samples) for model in models)))

    def cpu_seconds(self) -> float:
        """CPU time so far of this process and its workers; only between two of the calls above."""
        workers: list[float] = [each.call("cpu_seconds") for each in self._processes]
        return time.process_time() + sum(workers)

    def _map(self, method: str, calls: Iterable[tuple[object, ...]]) -> Iterator[Any]:
        """The results of a worker's method, in the order of its calls, of which few are under way."""

        def work(arguments: tuple[object, ...]) -> Any:  # noqa: ANN401 — whatever the method returns
            worker = self._idle.get()
            try:
                return worker.call(method, *arguments)
            finally:
                self._idle.put(worker)

        waiting: deque[Future[Any]] = deque()
        try:
            for arguments in calls:
                waiting.append(self._pool.submit(work, arguments))
                if len(waiting) > self._ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            # The consumer stopped early, after an error; what has not begun is not needed.
            for future in waiting:
                future.cancel()

    def _group(self, jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
        """The jobs as they are handed out; only training side by side depends on how they are grouped."""
        if self._batched:
            return (jobs[start : start + BATCHED_DEVICES] for start in range(0, len(jobs), BATCHED_DEVICES))
        return group_jobs(jobs, self._count, MOST_AT_ONCE if self._processes else 1)
