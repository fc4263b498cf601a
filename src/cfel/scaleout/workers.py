"""The round loop's executor on a Ray cluster: the same results as threads in this process, bit for bit.

A `DeviceWorker` is a process that runs one device after another, with one torch thread. It keeps nothing
about devices: a device's state stays with the driver, arrives with its order and goes back with its report,
so losing a worker loses only time. Data and edge models arrive through the object store, which all workers of
a machine share.

Where no vectors of devices travel, a worker trains a whole cluster and returns its next edge model instead of
all updates (`ClusterExecutor`).

A `WorkerPool` starts workers and gives each job, one call of a worker's method, to the one with the fewest.
When a worker dies, its jobs go to others, and a replacement joins as soon as the cluster has room for it.
Jobs are pure functions, so it does no harm if one is computed twice.
"""

import logging
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from torch import Tensor

from cfel import __version__
from cfel.arrays import IntArray
from cfel.errors import ScaleoutError
from cfel.learning.compressors import Compressor
from cfel.learning.device import device_estimate, device_update
from cfel.learning.device_messages import DeviceOrder, DeviceState, Order
from cfel.learning.edge import EdgeRules
from cfel.learning.evaluate import Evaluation, evaluate
from cfel.learning.local.algorithm import TrainingParameters
from cfel.learning.local.algorithms import find_algorithm
from cfel.learning.local.estimates import Estimates
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.learning.task import DeviceData, Task
from cfel.learning.torch_state import prepare_process, prepare_thread
from cfel.scaleout import address_to_join
from cfel.simulation.executors import (
    ClusterJob,
    ClusterResult,
    EdgeUpdate,
    Job,
    JobResult,
    group_jobs,
    is_even,
    largest_group,
    run_cluster,
)
from cfel.simulation.parameters import SimulationParameters
from cfel.world import World

VERSIONS = (f"cfel {__version__}", f"torch {torch.__version__}", f"numpy {np.__version__}")


class WorkerInfo(NamedTuple):
    """Where a worker runs, and the versions that its results depend on."""

    node: str
    process: int
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceContext:
    """The parts of a World that devices need; put into the object store once."""

    # `seed`, `task`, `training`, `compress`, `edge_rules`: the World's.
    seed: int
    task: Task
    training: TrainingParameters
    compress: Compressor
    edge_rules: EdgeRules
    indices: IntArray  # the samples of all devices in one array, as thousands of small ones load slowly
    starts: IntArray  # where the samples of each device start in it, and the end

    @classmethod
    def from_world(cls, world: World) -> "DeviceContext":
        """The parts that devices need."""
        starts = np.cumsum([0, *(own.samples for own in world.data)])
        indices = np.concatenate([own.indices for own in world.data])
        parts = (world.task, world.training, world.compress, world.edge_rules)
        return cls(world.setting.seed, *parts, indices, starts)

    def data(self, device: int) -> DeviceData:
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

    def estimates(self, orders: Sequence[Order[int]], *models: FlatModel) -> list[Estimates]:
        """Fresh estimates of σ² and G², in order."""
        return [
            device_estimate(
                order.with_model(models[order.model]), self._context.data(order.device), self._workspace
            )
            for order in orders
        ]

    def updates(
        self, orders: Sequence[Order[int]], states: Sequence[DeviceState], *models: FlatModel
    ) -> tuple[float, list[JobResult]]:
        """Local training of some devices, in order, and the CPU seconds it took.

        States may be in shared memory that is read-only: they are not changed.
        """
        begin = time.thread_time()
        answers = list(self._train(orders, states, models))
        return time.thread_time() - begin, answers

    def clusters(
        self,
        orders: Sequence[Order[int]],
        states: Sequence[DeviceState],
        update: EdgeUpdate,
        model: FlatModel,
        issued: FlatModel,
    ) -> tuple[float, ClusterResult]:
        """Local training of a cluster's devices, its next edge model, and the CPU seconds that both took."""
        begin = time.thread_time()
        answers = self._train(orders, states, [issued])
        result = run_cluster(model, answers, update, self._context.edge_rules)
        return time.thread_time() - begin, result

    def _train(
        self, orders: Sequence[Order[int]], states: Sequence[DeviceState], models: Sequence[FlatModel]
    ) -> Iterator[JobResult]:
        for order, state in zip(orders, states, strict=True):
            whole, data = order.with_model(models[order.model]), self._context.data(order.device)
            yield device_update(whole, data, state, self._workspace)

    def evaluations(self, samples: int, *models: FlatModel) -> list[Evaluation]:
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


# Jobs that one worker has at a time: one runs while the other waits, so that the worker is never idle.
JOBS_PER_WORKER = 2
# Jobs per worker that are in flight, or done but not used yet. It bounds the memory for results.
JOBS_IN_FLIGHT = 4
# A job that was lost with so many workers probably kills them, and is not tried again.
MOST_ATTEMPTS = 5
# How long to wait for workers. Each loads torch; a busy machine starts them one after another.
START_SECONDS = 120.0

WORKER_LOST = (RayActorError, ObjectLostError, WorkerCrashedError, NodeDiedError, OutOfMemoryError)
STORE_FULL = (ObjectStoreFullError, OutOfDiskError)

Arguments = tuple[Any, ...]


@dataclass(eq=False, slots=True)
class PoolWorker:
    """A running worker: its Ray handle, where it runs, and how many jobs it has."""

    handle: Any
    info: WorkerInfo
    jobs: int = 0


@dataclass(eq=False, slots=True)
class PoolJob:
    """A submitted call: the method and its arguments, the worker that runs it, and Ray's reference."""

    method: str
    arguments: Arguments
    worker: PoolWorker
    reference: Any
    attempts: int = 1
    done: bool = False


class WorkerPool:
    """The workers of one executor.

    Args:
        context: Ray's reference of the `DeviceContext` that workers need.
        workers: how many; 0 for one per core, even as the cluster grows or shrinks.
        device: torch device; unless it is "cpu", the workers share the cluster's GPUs evenly.
    """

    def __init__(self, context: Any, workers: int, device: str) -> None:  # noqa: ANN401 — Ray's references
        self._context, self._wanted, self._device = context, workers, device
        self._workers: list[PoolWorker] = []
        self._starting: dict[Any, Any] = {}
        self.add_missing_workers(START_SECONDS)

    def __len__(self) -> int:
        return len(self._workers)

    def describe(self) -> list[WorkerInfo]:
        return [worker.info for worker in self._workers]

    def add_missing_workers(self, seconds: float = 0.0) -> None:
        """Requests the workers that are missing, and adds those that are ready within so many seconds.

        While there is no worker at all, it waits longer.

        Raises:
            ScaleoutError: there is no worker, and none became ready.
        """
        cores = cluster_cores()
        wanted = min(self._wanted, cores) if self._wanted else cores
        for _ in range(wanted - len(self._workers) - len(self._starting)):
            self._start_worker(wanted)
        self._add_ready_workers(seconds, len(self._starting))
        if not self._workers:
            self._add_ready_workers(START_SECONDS, 1)
        if not self._workers:
            raise ScaleoutError(
                f"no worker could be started within {START_SECONDS:.0f} s; the cluster has "
                f"{cluster_cores()} cores alive, {ray.available_resources().get('CPU', 0):g} of them free"
            )

    def close(self) -> None:
        for handle in [*(worker.handle for worker in self._workers), *self._starting.values()]:
            ray.kill(handle)
        self._workers, self._starting = [], {}

    def map(self, method: str, arguments: Iterable[Arguments]) -> Iterator[Any]:
        """Calls a method of `DeviceWorker` with each item; results come in the same order.

        Items are read only as fast as jobs are submitted.

        Raises:
            ScaleoutError: workers are lost repeatedly, or the object store is full.
        """
        self.add_missing_workers()
        jobs: deque[PoolJob] = deque()
        source = iter(arguments)
        try:
            while self._submit_jobs(jobs, source, method) or jobs:
                if not jobs[0].done:
                    self._wait(jobs)
                    continue
                try:
                    result = ray.get(jobs[0].reference)
                except WORKER_LOST as error:
                    self._resubmit(jobs, error)
                    continue
                jobs.popleft()
                yield result
        except RayTaskError as error:
            raise unwrap_error(error) from error
        except STORE_FULL as error:
            raise store_full_error(error) from error
        finally:
            # The caller may stop reading results early: nobody needs the jobs that are left.
            for job in jobs:
                self._cancel(job)

    def _start_worker(self, total: int) -> None:
        # Ray takes shares of a GPU in steps of 0.0001; rounding up would leave the last worker without one.
        gpus = 0.0 if self._device == "cpu" else int(1e4 * cluster_gpus() / total) / 1e4
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        handle = ray.remote(DeviceWorker).options(**options).remote(sys.path, [self._context], self._device)
        self._starting[handle.ready.remote()] = handle

    def _add_ready_workers(self, seconds: float, count: int) -> None:
        """Adds the workers that have started; waits up to `seconds` for `count` of them."""
        if not self._starting:
            return
        count = max(1, min(count, len(self._starting)))
        ready, _ = ray.wait(list(self._starting), num_returns=count, timeout=seconds)
        for reference in ready:
            handle = self._starting.pop(reference)
            try:
                info = ray.get(reference)
            except WORKER_LOST:
                continue  # it died while starting; the next call of add_missing_workers requests another
            except RayTaskError as error:
                raise unwrap_error(error) from error
            if tuple(info.versions) != VERSIONS:
                there, here = ", ".join(info.versions), ", ".join(VERSIONS)
                raise ScaleoutError(
                    f"node {info.node} runs {there}, this process {here}: results would differ"
                )
            self._workers.append(PoolWorker(handle, info))

    def _submit_jobs(self, jobs: deque[PoolJob], source: Iterator[Arguments], method: str) -> bool:
        """Submits jobs while workers have room; returns whether it submitted any."""
        submitted = False
        while len(jobs) < JOBS_IN_FLIGHT * len(self):
            worker = self._least_busy()
            arguments = None if worker.jobs >= JOBS_PER_WORKER else next(source, None)
            if arguments is None:
                break
            jobs.append(self._submit(method, arguments, worker))
            submitted = True
        return submitted

    def _submit(self, method: str, arguments: Arguments, worker: PoolWorker, attempts: int = 1) -> PoolJob:
        reference = getattr(worker.handle, method).remote(*arguments)
        worker.jobs += 1
        return PoolJob(method, arguments, worker, reference, attempts)

    def _least_busy(self) -> PoolWorker:
        return min(self._workers, key=lambda worker: worker.jobs)

    def _wait(self, jobs: deque[PoolJob]) -> None:
        """Waits until at least one more job is done, and marks all that are."""
        pending = {job.reference: job for job in jobs if not job.done}
        references = list(pending)
        # The first call blocks until one is done; the second one collects whatever else is done by then.
        ray.wait(references, num_returns=1)
        done, _ = ray.wait(references, num_returns=len(references), timeout=0)
        for reference in done:
            pending[reference].done = True
            pending[reference].worker.jobs -= 1

    def _resubmit(self, jobs: deque[PoolJob], error: RayError) -> None:
        """Removes the worker of the first job, which was lost, and submits all its jobs again."""
        lost = jobs[0].worker
        self._remove_worker(lost)
        self.add_missing_workers()
        for place, job in enumerate(jobs):
            if job.worker is lost:
                jobs[place] = self._retry(job, error)

    def _retry(self, job: PoolJob, error: RayError) -> PoolJob:
        if job.attempts >= MOST_ATTEMPTS:
            raise ScaleoutError(
                f"a job was lost {job.attempts} times with the workers it ran on "
                f"(out of memory?): {first_line(error)}"
            ) from error
        return self._submit(job.method, job.arguments, self._least_busy(), job.attempts + 1)

    def _remove_worker(self, worker: PoolWorker) -> None:
        """Kills a worker that cannot be reached: it must not use a core beside its replacement."""
        if worker in self._workers:
            self._workers.remove(worker)
            ray.kill(worker.handle)

    def _cancel(self, job: PoolJob) -> None:
        if not job.done:
            job.worker.jobs -= 1
            if ray.is_initialized():
                ray.cancel(job.reference)


def unwrap_error(error: RayTaskError) -> BaseException:
    """The exception that a worker raised, without Ray's wrapping."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, STORE_FULL):
        return store_full_error(cause)
    return cause if isinstance(cause, BaseException) else error


def store_full_error(error: BaseException) -> ScaleoutError:
    return ScaleoutError(
        "the cluster's object store is full and cannot spill to disk; give it more memory "
        f"(ray start --object-store-memory …) or disk, and resume: {first_line(error)}"
    )


class RayExecutor:
    """Worker processes on a cluster, one per core; each runs many devices.

    Attributes:
        busy_seconds: CPU seconds of all workers together on local training so far.
    """

    def __init__(self, world: World, parameters: SimulationParameters, address: str | None = None) -> None:
        prepare_process()
        prepare_thread()
        self.busy_seconds, self.workers = 0.0, parameters.workers
        # By id of the model, which is kept as well: an id is unique only while its object lives.
        self._stored: dict[int, tuple[FlatModel, Any]] = {}
        training = world.training
        algorithm = find_algorithm(training)
        kept = algorithm.list_kept(keep=training.local.momentum_state == "keep")
        vectors = len(kept) + training.error_feedback + len(world.new_device.memory)
        self._keeps_vectors = vectors > 0
        self._most = largest_group(world.start.parameters.numel(), 1 + vectors)
        with ExitStack() as stack:
            stack.enter_context(connect(address, parameters.workers))
            send_tensors_as_arrays()
            context = _put(DeviceContext.from_world(world))
            self._pool = WorkerPool(context, parameters.workers, parameters.device)
            stack.callback(self._pool.close)
            self._cleanup = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stored = {}
        self._cleanup.close()

    def describe_workers(self) -> list[WorkerInfo]:
        return self._pool.describe()

    def run_estimates(self, orders: Sequence[DeviceOrder]) -> Iterator[Estimates]:
        self._store([order.model for order in orders])
        groups = group_jobs(orders, len(self._pool), self._most)
        for estimates in self._pool.map("estimates", map(self._estimate_arguments, groups)):
            yield from estimates

    def run_updates(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        self._store([order.model for order, _ in jobs])
        groups = group_jobs(jobs, len(self._pool), self._most)
        for seconds, answers in self._pool.map("updates", map(self._update_arguments, groups)):
            self.busy_seconds += seconds
            for report, state in answers:
                yield report, _copy_state(state)

    def can_run_clusters(self, sizes: Sequence[int]) -> bool:
        return not self._keeps_vectors and is_even(sizes, len(self._pool))

    def run_clusters(self, jobs: Sequence[ClusterJob]) -> Iterator[ClusterResult]:
        self._store([model for each in jobs for model in (each.model, each.jobs[0][0].model)])
        for seconds, result in self._pool.map("clusters", map(self._cluster_arguments, jobs)):
            self.busy_seconds += seconds
            model = result.model
            # Copied for the same reason as states, see `_copy_state`.
            own = FlatModel(*(each.clone() for each in (model.parameters, model.buffers, model.memory)))
            yield result._replace(model=own)

    def run_evaluations(self, models: Sequence[FlatModel], samples: int) -> list[Evaluation]:
        self._store(models)
        arguments = ((samples, self._stored[id(model)][1]) for model in models)
        return [each for found in self._pool.map("evaluations", arguments) for each in found]

    def _store(self, models: Sequence[FlatModel]) -> None:
        """Puts new models into the object store, and releases those that are not in use any more."""
        distinct = {id(model): model for model in models}
        self._stored = {
            key: self._stored[key] if key in self._stored else (model, _put(model))
            for key, model in distinct.items()
        }

    def _estimate_arguments(self, group: Sequence[DeviceOrder]) -> Arguments:
        """The orders of a group and the models they refer to, each model once."""
        numbers: dict[int, int] = {}
        orders = []
        for order in group:
            number = numbers.setdefault(id(order.model), len(numbers))
            orders.append(order.with_model(number))
        return orders, *(self._stored[key][1] for key in numbers)

    def _update_arguments(self, group: Sequence[Job]) -> Arguments:
        orders, *models = self._estimate_arguments([order for order, _ in group])
        return orders, [state for _, state in group], *models

    def _cluster_arguments(self, job: ClusterJob) -> Arguments:
        orders, states, issued = self._update_arguments(job.jobs)
        return orders, states, job.update, self._stored[id(job.model)][1], issued


def _put(value: object) -> Any:  # noqa: ANN401 — Ray's reference
    try:
        return ray.put(value)
    except STORE_FULL as error:
        raise store_full_error(error) from error


def _copy_state(state: DeviceState) -> DeviceState:
    """Copies a state to this process's memory: tensors read from the object store would keep it full."""
    memory = {name: tensor.clone() for name, tensor in state.memory.items()}
    residual = None if state.residual is None else state.residual.clone()
    return replace(state, memory=memory, residual=residual)


# Joining a Ray cluster, or starting one on this machine while a command runs. Ray runs code for everyone who
# reaches its ports, and listens on every interface: see docs/guides/scale.md. `cfel.scaleout.prepare` does
# what must happen before Ray is imported.


@contextmanager
def connect(address: str | None = None, cores: int = 0) -> Iterator[None]:
    """Makes this process the driver of a cluster.

    The address is that of a cluster's head ("host:6379", or "auto" on one of its machines). None takes
    RAY_ADDRESS from the environment, or starts a cluster on this machine, with so many cores, 0 for all.

    Raises:
        ScaleoutError: there is no cluster at the address, or it rejected the connection.
    """
    if ray.is_initialized():  # by an outer `connect`, or by a program that uses cfel as a library
        yield
        return
    joined = address_to_join(address)
    try:
        if joined is None:
            _start_local(cores)
        else:
            ray.init(address=joined, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        where = "on this machine" if joined is None else f"at {joined!r}"
        raise ScaleoutError(f"no Ray cluster {where}: {first_line(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


def cluster_cores() -> int:
    """Cores of all living machines; at least one."""
    return max(1, int(sum(node["Resources"].get("CPU", 0) for node in list_live_nodes())))


def cluster_gpus() -> float:
    return float(sum(node["Resources"].get("GPU", 0) for node in list_live_nodes()))


def list_live_nodes() -> list[dict[str, Any]]:
    """Ray's description of every living machine."""
    return [node for node in ray.nodes() if node["Alive"]]


def first_line(error: BaseException) -> str:
    """The first line of an error's text: Ray appends whole stack traces."""
    return str(error).strip().partition("\n")[0]


def _start_local(cores: int) -> None:
    ray.init(
        address="local",
        num_cpus=cores or os.cpu_count() or 1,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
