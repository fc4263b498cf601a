"""Where devices' work is done: a pool of threads, each with one torch thread and its own scratch memory.

An executor gets orders and gives results in the order asked for, and never more than a few ahead of whoever
consumes them: memory grows with the number of workers, not of devices. With `group` above one the devices of
a group are trained as one batched model; with one at a time the results are the same bits whatever the number
of workers.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Protocol, Self, TypeVar

from cfel.learning.batched import device_updates_batched
from cfel.learning.evaluate import Evaluation, evaluate
from cfel.learning.exchange import DeviceOrder, DeviceReport, DeviceState
from cfel.learning.flat import FlatModel
from cfel.learning.roles import device_estimate, device_update
from cfel.learning.workers import prepare_process, prepare_thread
from cfel.learning.workspace import Workspace
from cfel.rounds import SimulationParameters
from cfel.world import World

# Tasks handed out beyond those being worked on, per worker: they keep everybody busy while results are used.
AHEAD = 2
# Devices trained as one batched model: half of the paper's fleet, so that two workers share it. Not to depend
# on the number of workers, or results would.
MOST_IN_A_GROUP = 32

Task = tuple[DeviceOrder, DeviceState]
Answer = tuple[DeviceReport, DeviceState]
Item = TypeVar("Item")
Result = TypeVar("Result")


class Executor(Protocol):
    """What the round loop needs of an executor."""

    def estimates(self, tasks: Sequence[Task]) -> Iterator[DeviceState]:
        """Fresh estimates of σ² and G², in task order."""
        ...

    def updates(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """Local training and compression, in task order. The states handed in are given up."""
        ...

    def evaluations(self, models: Sequence[FlatModel], samples: int) -> list[Evaluation]:
        """Each model on the test set."""
        ...


class PoolExecutor:
    """Threads in this process.

    Args:
        world: what is run.
        parameters: engine (resolved), workers and torch device.
    """

    def __init__(self, world: World, parameters: SimulationParameters) -> None:
        prepare_process()
        prepare_thread()
        self._world = world
        self._workers = parameters.workers or os.cpu_count() or 1
        self._group = MOST_IN_A_GROUP if parameters.engine == "batched" else 1
        self._pool = ThreadPoolExecutor(self._workers, "device", initializer=prepare_thread)
        self._workspaces: SimpleQueue[Workspace] = SimpleQueue()
        for _ in range(self._workers):
            self._workspaces.put(Workspace(world.task, world.local, world.compress, parameters.device))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def estimates(self, tasks: Sequence[Task]) -> Iterator[DeviceState]:
        """See `Executor`."""

        def estimate(workspace: Workspace, task: Task) -> DeviceState:
            order, state = task
            return device_estimate(order, self._world.data[order.device], state, workspace)

        return self._map(estimate, tasks)

    def updates(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """See `Executor`."""
        for answers in self._map(self._updated, _groups(tasks, self._group)):
            yield from answers

    def evaluations(self, models: Sequence[FlatModel], samples: int) -> list[Evaluation]:
        """See `Executor`."""
        seed = self._world.seed

        def test(workspace: Workspace, model: FlatModel) -> Evaluation:
            return evaluate(model, workspace, samples or None, seed)

        return list(self._map(test, models))

    def _updated(self, workspace: Workspace, tasks: Sequence[Task]) -> list[Answer]:
        if self._group == 1:
            order, state = tasks[0]
            data = self._world.data[order.device]
            return [device_update(order, data, state, workspace, give_up_state=True)]
        orders, states = zip(*tasks, strict=True)
        data_of_group = [self._world.data[order.device] for order in orders]
        return device_updates_batched(orders, data_of_group, states, workspace)

    def _map(self, function: Callable[[Workspace, Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The function over the items, in order, a bounded number of them under way."""

        def work(item: Item) -> Result:
            workspace = self._workspaces.get()
            try:
                return function(workspace, item)
            finally:
                self._workspaces.put(workspace)

        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(work, item))
                if len(waiting) > self._workers * (1 + AHEAD):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _groups(tasks: Sequence[Task], size: int) -> Iterator[Sequence[Task]]:
    return (tasks[start : start + size] for start in range(0, len(tasks), size))
