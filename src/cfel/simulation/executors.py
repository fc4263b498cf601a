"""Where devices' work is done: a pool of workers, each with one torch thread and its own scratch memory.

An executor gets orders and gives results in the order asked for, and never more than a few ahead of whoever
consumes them: memory grows with the number of workers, not of devices. With `group` above one the devices of
a group are trained as one batched model. The results are the same bits whatever the number of workers, and
whether they are threads or processes.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Protocol, Self, TypeVar, cast

from cfel.learning.device_messages import DeviceOrder, DeviceReport, DeviceState
from cfel.learning.evaluate import Evaluation, evaluate
from cfel.learning.local.batched import device_updates_batched
from cfel.learning.local.estimates import Estimates
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.learning.roles import device_estimate, device_update
from cfel.learning.worker_threads import prepare_process, prepare_thread
from cfel.rounds.parameters import SimulationParameters
from cfel.simulation.task_groups import guided_groups
from cfel.simulation.worker_process import Child, can_fork
from cfel.world import World

# Tasks handed out beyond those being worked on, per worker: they keep everybody busy while results are used.
AHEAD = 2
# Devices trained as one batched model: half of the paper's fleet, so that two workers share it. Not to depend
# on the number of workers, or results would.
MOST_IN_A_GROUP = 32
# Up to this size models are trained in processes, where there are several workers: two threads of one process
# wait for each other's Python between operations this small (a tenth of the time for 168,000 parameters).
MOST_FORKED_PARAMETERS = 300_000
# Devices handed to a process at a time, at most: they share one copy of their cluster's model on the way.
MOST_AT_ONCE = 8

Task = tuple[DeviceOrder, DeviceState]
Answer = tuple[DeviceReport, DeviceState]
Item = TypeVar("Item")
Result = TypeVar("Result")


class Executor(Protocol):
    """What the round loop needs of an executor."""

    def estimates(self, orders: Sequence[DeviceOrder]) -> Iterator[Estimates]:
        """Fresh estimates of σ² and G², in the order of the orders."""
        ...

    def updates(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """Local training and compression, in task order. The states handed in are given up."""
        ...

    def evaluations(self, models: Sequence[FlatModel], samples: int) -> list[Evaluation]:
        """Each model on the test set."""
        ...


class Worker(Protocol):
    """One at a time of what an executor is asked for."""

    def estimate(self, order: DeviceOrder) -> Estimates:
        """Fresh estimates of one device."""
        ...

    def update(self, tasks: Sequence[Task]) -> list[Answer]:
        """Local training of one device, or of a group of them side by side."""
        ...

    def evaluation(self, model: FlatModel, samples: int) -> Evaluation:
        """One model on the test set."""
        ...


class WorkerHere:
    """Does the work in whatever thread calls it.

    Args:
        world: what is run.
        parameters: engine (resolved) and torch device.
    """

    def __init__(self, world: World, parameters: SimulationParameters) -> None:
        self._world = world
        self._batched = parameters.engine == "batched"
        self._workspace = Workspace(world.task, world.local, world.compress, parameters.device)

    def estimate(self, order: DeviceOrder) -> Estimates:
        """See `Worker`."""
        return device_estimate(order, self._world.data[order.device], self._workspace)

    def update(self, tasks: Sequence[Task]) -> list[Answer]:
        """See `Worker`."""
        orders, states = zip(*tasks, strict=True)
        data = [self._world.data[order.device] for order in orders]
        if self._batched:
            return device_updates_batched(orders, data, states, self._workspace)
        each = zip(orders, data, states, strict=True)
        return [device_update(*one, self._workspace, give_up_state=True) for one in each]

    def evaluation(self, model: FlatModel, samples: int) -> Evaluation:
        """See `Worker`."""
        return evaluate(model, self._workspace, samples or None, self._world.setting.seed)

    def cpu_seconds(self) -> float:
        """CPU time of the process this runs in."""
        return time.process_time()


class WorkerInChild:
    """Has the work done by a process of its own.

    Args:
        worker: who does it there.
        siblings: those that were started before.
    """

    def __init__(self, worker: WorkerHere, siblings: "Sequence[WorkerInChild]") -> None:
        self.child: Child = Child(worker, [sibling.child for sibling in siblings])

    def estimate(self, order: DeviceOrder) -> Estimates:
        """See `Worker`."""
        return cast(Estimates, self.child.call("estimate", order))

    def update(self, tasks: Sequence[Task]) -> list[Answer]:
        """See `Worker`."""
        return cast(list[Answer], self.child.call("update", tasks))

    def evaluation(self, model: FlatModel, samples: int) -> Evaluation:
        """See `Worker`."""
        return cast(Evaluation, self.child.call("evaluation", model, samples))

    def cpu_seconds(self) -> float:
        """CPU time of the worker's process."""
        return cast(float, self.child.call("cpu_seconds"))


class PoolExecutor:
    """Workers in threads of this process, or in processes where models are so small that threads do not pay.

    Args:
        world: what is run.
        parameters: engine (resolved), workers and torch device.
    """

    def __init__(self, world: World, parameters: SimulationParameters) -> None:
        prepare_process()
        prepare_thread()
        count = parameters.workers or os.cpu_count() or 1
        self._count, self._ahead = count, count * (1 + AHEAD)
        self._batched = parameters.engine == "batched"
        here = [WorkerHere(world, parameters) for _ in range(count)]
        self._children: list[WorkerInChild] = []
        small = world.start.parameters.numel() <= MOST_FORKED_PARAMETERS
        if count > 1 and small and parameters.device == "cpu" and can_fork():
            for worker in here:
                self._children.append(WorkerInChild(worker, self._children))
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for each in self._children or here:
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
        for each in self._children:
            each.child.close()

    def estimates(self, orders: Sequence[DeviceOrder]) -> Iterator[Estimates]:
        """See `Executor`."""
        return self._map(lambda worker, order: worker.estimate(order), orders)

    def updates(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """See `Executor`."""
        for answers in self._map(lambda worker, group: worker.update(group), self._groups(tasks)):
            yield from answers

    def evaluations(self, models: Sequence[FlatModel], samples: int) -> list[Evaluation]:
        """See `Executor`."""
        return list(self._map(lambda worker, model: worker.evaluation(model, samples), models))

    def cpu_seconds(self) -> float:
        """CPU time so far of this process and its workers; only between two of the calls above."""
        return time.process_time() + sum(each.cpu_seconds() for each in self._children)

    def _map(self, function: Callable[[Worker, Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The function over the items, in order, a bounded number of them under way."""

        def work(item: Item) -> Result:
            worker = self._idle.get()
            try:
                return function(worker, item)
            finally:
                self._idle.put(worker)

        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(work, item))
                if len(waiting) > self._ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def _groups(self, tasks: Sequence[Task]) -> Iterator[Sequence[Task]]:
        """The tasks as they are handed out; only training side by side depends on how they are grouped."""
        if self._batched:
            return (tasks[start : start + MOST_IN_A_GROUP] for start in range(0, len(tasks), MOST_IN_A_GROUP))
        return guided_groups(tasks, self._count, MOST_AT_ONCE if self._children else 1)
