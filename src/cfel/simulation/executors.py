"""Where devices' work is done: a pool of workers, each with one torch thread and its own scratch memory.

An executor takes jobs and yields results in the same order, never more than a few ahead of their consumer:
memory grows with the number of workers, not of devices. Workers are threads of this process, or processes
forked from it, which share the vectors of models and devices with it. With the batched engine the devices of
a group are trained as one model, which agrees with training them one by one up to rounding. Results have the
same bits for any number of workers, and the same with threads as with processes.
"""

import heapq
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from cfel.errors import InputError
from cfel.learning.device import device_estimate, device_update
from cfel.learning.device_messages import DeviceOrder, DeviceReport, DeviceState
from cfel.learning.edge import EdgeRules, update_edge_model
from cfel.learning.evaluate import Evaluation, evaluate
from cfel.learning.local.algorithms import find_algorithm
from cfel.learning.local.batched import device_updates_batched, find_obstacle
from cfel.learning.local.estimates import Estimates
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.learning.torch_state import prepare_process, prepare_thread
from cfel.rounds.kernel import DeviceWork
from cfel.simulation.parameters import SimulationParameters
from cfel.simulation.worker_process import SharedVectors, WorkerProcess, can_fork
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
# Devices sent to a process at a time, at most, which saves messages.
MOST_AT_ONCE = 8

Job = tuple[DeviceOrder, DeviceState]
"""One device's training: what to do, and the device's state before."""
JobResult = tuple[DeviceReport, DeviceState]
"""What the device sends, and its state after."""


class Executor(Protocol):
    """What the round loop needs of an executor."""

    workers: int  # how many work at a time; 0 for one per core

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
    """Works in the thread that calls it.

    Attributes:
        shared: where it leaves the vectors that devices keep, if other processes are to find them.
    """

    def __init__(self, world: World, parameters: SimulationParameters) -> None:
        self._world = world
        self._batched = parameters.engine == "batched"
        self._workspace = Workspace(world.task, world.training, world.compress, parameters.device)
        self.shared: SharedState | None = None

    def share_state(self, models: int) -> "SharedState":
        """Shared memory for so many models, and for every vector that a device of this world keeps."""
        flat, remembers = self._workspace.flat, self._workspace.algorithm.remembers
        names = [name for name in self._workspace.kept_names if remembers.get(name)]
        length = sum(each.numel() for each in (flat.parameters, flat.buffers, self._world.start.memory))
        vectors = SharedVectors(models + len(self._world.data) * (len(names) + 1), length)
        return SharedState(vectors, tuple(names), models)

    def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 — whatever the method returns
        return getattr(self, method)(*arguments)

    def estimate(self, order: DeviceOrder) -> Estimates:
        return device_estimate(order, self._world.data[order.device], self._workspace)

    def update(self, jobs: Sequence[Job]) -> list[JobResult]:
        """Local training of one device, or of a group of them side by side."""
        orders, states = zip(*jobs, strict=True)
        data = [self._world.data[order.device] for order in orders]
        if self._batched:
            results = device_updates_batched(orders, data, states, self._workspace)
        else:
            # The loop keeps only the new states, so the old ones may be overwritten.
            each = zip(orders, data, states, strict=True)
            results = [device_update(*one, self._workspace, give_up_state=True) for one in each]
        if self.shared is None:
            return results
        return [(report, self.shared.keep(report.device, state)) for report, state in results]

    def evaluate(self, asked: tuple[FlatModel, int]) -> Evaluation:
        """One model on so many samples of the test set."""
        model, samples = asked
        return evaluate(model, self._workspace, samples or None, self._world.setting.seed)

    def cpu_seconds(self) -> float:
        """CPU time of the process this runs in."""
        return time.process_time()


@dataclass(frozen=True, slots=True)
class SharedState:
    """Where models on their way to workers are, and what devices keep."""

    vectors: SharedVectors  # places for `models` models, then for the vectors of every device
    names: tuple[str, ...]  # of the vectors that a device's algorithm keeps; the residual comes after them
    models: int  # number of models under way, at most

    def keep(self, device: int, state: DeviceState) -> DeviceState:
        """The state with its vectors in shared memory."""
        first = self.models + device * (len(self.names) + 1)
        memory = dict(state.memory)
        for number, name in enumerate(self.names):
            if name in memory:
                (memory[name],) = self.vectors.put(first + number, [memory[name]])
        residual = state.residual
        if residual is not None:
            (residual,) = self.vectors.put(first + len(self.names), [residual])
        return replace(state, memory=memory, residual=residual)


class ModelsUnderWay:
    """Copies of models in shared memory, each for as long as a worker may read it."""

    def __init__(self, shared: SharedState) -> None:
        self._vectors = shared.vectors
        self._free = list(range(shared.models))[::-1]
        self._used: dict[int, tuple[FlatModel, FlatModel, int]] = {}
        self._users: Counter[int] = Counter()

    def lend(self, model: FlatModel) -> FlatModel:
        """The model in shared memory; give it back as often as it was lent."""
        if not self._vectors.fits(model.parts):
            return model
        # The entry holds the model itself, so that no other one can get the same id.
        if id(model) not in self._used:
            place = self._free.pop()
            copy = FlatModel(*self._vectors.put(place, model.parts))
            self._used[id(model)] = model, copy, place
        self._users[id(model)] += 1
        return self._used[id(model)][1]

    def give_back(self, models: Iterable[FlatModel]) -> None:
        """Frees the places of models that nobody else uses."""
        for model in (each for each in models if id(each) in self._used):
            self._users[id(model)] -= 1
            if not self._users[id(model)]:
                self._free.append(self._used.pop(id(model))[2])
                del self._users[id(model)]


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a worker: the models it needs, and its argument, made of them."""

    models: Sequence[FlatModel]
    make_argument: Callable[..., object]


class PoolExecutor:
    """Workers in threads of this process, or in processes forked from it.

    The engine in `parameters` is resolved.
    """

    def __init__(self, world: World, parameters: SimulationParameters) -> None:
        prepare_process()
        prepare_thread()
        self.workers = parameters.workers
        # A user's training loop may remember things in this process, and need not be safe in several threads.
        alone = find_algorithm(world.training).train is not None
        count = 1 if alone else parameters.workers or os.cpu_count() or 1
        self._count, self._ahead = count, count * (1 + AHEAD)
        self._batched = parameters.engine == "batched"
        _check_engine(world, parameters)
        local = [LocalWorker(world, parameters) for _ in range(count)]
        self._processes: list[WorkerProcess] = []
        self._models: ModelsUnderWay | None = None
        if count > 1 and parameters.engine != "threads" and parameters.device == "cpu" and can_fork():
            self._fork(local)
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for each in self._processes or local:
            self._idle.put(each)
        self._pool = ThreadPoolExecutor(count, "device", initializer=prepare_thread)

    def _fork(self, local: Sequence[LocalWorker]) -> None:
        """Starts a process for each worker, with memory that all share."""
        most = max(MOST_AT_ONCE, BATCHED_DEVICES if self._batched else 0)
        shared = local[0].share_state((self._ahead + 2) * most)
        self._models = ModelsUnderWay(shared)
        for worker in local:
            worker.shared = shared
            # Before any thread is started: a fork copies locks in whatever state other threads hold them.
            self._processes.append(WorkerProcess(worker, self._processes, shared.vectors))

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
        return self._map("estimate", (_Call([order.model], order.with_model) for order in orders))

    def run_updates(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        def make_call(group: Sequence[Job]) -> _Call:
            def hand_out(*models: FlatModel) -> list[Job]:
                pairs = zip(group, models, strict=True)
                return [(order.with_model(model), state) for (order, state), model in pairs]

            return _Call([order.model for order, _ in group], hand_out)

        for results in self._map("update", map(make_call, self._group(jobs))):
            yield from results

    def run_evaluations(self, models: Sequence[FlatModel], samples: int) -> list[Evaluation]:
        calls = (_Call([model], lambda each: (each, samples)) for model in models)
        return list(self._map("evaluate", calls))

    def cpu_seconds(self) -> float:
        """CPU time so far of this process and its workers; only between two of the calls above."""
        workers: list[float] = [each.call("cpu_seconds") for each in self._processes]
        return time.process_time() + sum(workers)

    def _map(self, method: str, calls: Iterable["_Call"]) -> Iterator[Any]:
        """The results of a worker's method, in the order of its calls, of which few are under way."""

        def work(argument: object) -> Any:  # noqa: ANN401 — whatever the method returns
            worker = self._idle.get()
            try:
                return worker.call(method, argument)
            finally:
                self._idle.put(worker)

        waiting: deque[tuple[Future[Any], _Call]] = deque()

        def finish() -> Any:  # noqa: ANN401
            future, call = waiting[0]
            try:
                return future.result()
            finally:
                self._give_back(call)
                waiting.popleft()

        try:
            for call in calls:
                waiting.append((self._pool.submit(work, self._lend(call)), call))
                if len(waiting) > self._ahead:
                    yield finish()
            while waiting:
                yield finish()
        finally:
            # The consumer stopped early, after an error; what has not begun is not needed.
            for future, _ in waiting:
                future.cancel()
            for future, call in waiting:
                wait([future])
                self._give_back(call)

    def _lend(self, call: "_Call") -> object:
        """The argument of a call, with its models where workers find them."""
        return call.make_argument(
            *(call.models if self._models is None else map(self._models.lend, call.models))
        )

    def _give_back(self, call: "_Call") -> None:
        if self._models is not None:
            self._models.give_back(call.models)

    def _group(self, jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
        """The jobs as they are handed out; only training side by side depends on how they are grouped."""
        if self._batched:
            return (jobs[start : start + BATCHED_DEVICES] for start in range(0, len(jobs), BATCHED_DEVICES))
        return group_jobs(jobs, self._count, MOST_AT_ONCE if self._processes else 1)


def _check_engine(world: World, parameters: SimulationParameters) -> None:
    """Raises an `InputError` if the engine cannot do what is asked, and says what can."""
    if parameters.engine == "batched":
        obstacle = find_obstacle(world.task, world.training, world.start, world.data[0], parameters.device)
        if obstacle is not None:
            raise InputError(f"engine 'batched' cannot train this: {obstacle}; use --engine threads")
    if parameters.engine == "processes" and not can_fork():
        raise InputError("engine 'processes' needs Linux; use --engine threads, which gives the same results")
    if parameters.engine == "processes" and parameters.device != "cpu":
        # A forked child cannot use a GPU that its parent has initialised.
        raise InputError(
            f"engine 'processes' with simulation.device = {parameters.device!r}: trains on the CPU only; use "
            "--engine threads, or batched"
        )


# Edge rounds in which a worker trains a whole cluster and adds its updates up, so that one model comes back.
# An executor that reaches other machines can do so: the driver then neither receives nor adds up what devices
# send. Results have the same bits, because a cluster's updates are added up in the order of ids by one
# worker, with the functions that the round loop calls.
#
# Device by device, as with any executor, it stays where
#
# * vectors of devices travel (momentum that is kept, residuals of error feedback, personal parts): the driver
#   receives as much as before;
# * there is a deadline: who is late is known only from the plan and conditions of the driver;
# * aggregation is semi-asynchronous: an update may wait for a later edge round;
# * clusters are too few or too uneven to keep all workers busy.


# Part of the workers' time that must be used, if all devices take the same time.
_LEAST_USE = 0.9


@dataclass(frozen=True, slots=True)
class EdgeUpdate:
    """How an edge server updates its model in an edge round; see `learning.edge.update_edge_model`."""

    weights: Mapping[int, float]  # of the devices that took part
    share: float  # of the cluster's devices that took part
    rate: float  # the learning rate of the devices
    used: float  # share of the run that is over

    def apply(self, model: FlatModel, reports: Iterable[DeviceReport], rules: EdgeRules) -> FlatModel:
        rates = {"rate": self.rate, "used": self.used}
        return update_edge_model(model, reports, self.weights, rules, share=self.share, **rates)


class ClusterJob(NamedTuple):
    """An edge round of one cluster."""

    jobs: Sequence[Job]
    update: EdgeUpdate
    model: FlatModel  # that it updates; devices may train from another one


class ClusterResult(NamedTuple):
    """Its edge model, and what its devices did and keep."""

    model: FlatModel
    devices: Sequence[tuple[DeviceWork, DeviceState]]


@runtime_checkable
class ClusterExecutor(Protocol):
    """An executor whose workers can train whole clusters."""

    def can_run_clusters(self, sizes: Sequence[int]) -> bool:
        """Whether it should be asked to, for clusters of so many devices."""
        ...

    def run_clusters(self, jobs: Sequence[ClusterJob]) -> Iterator[ClusterResult]:
        """Each job by `run_cluster`, in their order."""
        ...


def run_cluster(
    model: FlatModel, answers: Iterable[JobResult], update: EdgeUpdate, rules: EdgeRules
) -> ClusterResult:
    """Adds up the updates of a cluster, by ascending id, and keeps none of them."""
    devices: list[tuple[DeviceWork, DeviceState]] = []

    def note(answer: JobResult) -> DeviceReport:
        report, state = answer
        work = DeviceWork(report.device, report.steps, report.update.wire_bits, report.loss)
        devices.append((work, state))
        return report

    return ClusterResult(update.apply(model, map(note, answers), rules), devices)


def is_even(sizes: Sequence[int], workers: int) -> bool:
    """Whether clusters of so many devices keep all workers busy, if the next one goes to the first to end."""
    load = [0] * workers
    for size in sizes:
        heapq.heapreplace(load, load[0] + size)
    return sum(sizes) >= _LEAST_USE * workers * max(load)
