"""Worker processes on a Ray cluster: starts them, gives them jobs, and repeats the jobs of those it loses.

A job is one call of a `DeviceWorker` method. Each goes to the worker with the fewest jobs, and a bounded
number is in flight. Results come in the order of the jobs. When a worker dies, its jobs go to other workers,
and a replacement is requested that joins as soon as the cluster has room for it. Jobs are pure functions, so
it does no harm if one is computed twice. What a job computes is `worker`'s business.
"""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ray
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

from cfel.errors import ScaleoutError
from cfel.scaleout.cluster import cluster_cores, cluster_gpus, first_line
from cfel.scaleout.worker import VERSIONS, DeviceWorker, WorkerInfo

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
class Job:
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
        """Where the workers run."""
        return [worker.info for worker in self._workers]

    def add_missing_workers(self, seconds: float = 0.0) -> None:
        """Requests the workers that are missing, and adds those that are ready.

        Args:
            seconds: how long to wait for all of them. While there is no worker at all, it waits longer.

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
        """Ends all workers."""
        for handle in [*(worker.handle for worker in self._workers), *self._starting.values()]:
            ray.kill(handle)
        self._workers, self._starting = [], {}

    def map(self, method: str, arguments: Iterable[Arguments]) -> Iterator[Any]:
        """Calls a method of the workers once for each item; results come in the same order.

        Args:
            method: of `DeviceWorker`.
            arguments: of each call; read only as fast as jobs are submitted.

        Raises:
            ScaleoutError: workers are lost repeatedly, or the object store is full.
        """
        self.add_missing_workers()
        jobs: deque[Job] = deque()
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

    def _submit_jobs(self, jobs: deque[Job], source: Iterator[Arguments], method: str) -> bool:
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

    def _submit(self, method: str, arguments: Arguments, worker: PoolWorker, attempts: int = 1) -> Job:
        reference = getattr(worker.handle, method).remote(*arguments)
        worker.jobs += 1
        return Job(method, arguments, worker, reference, attempts)

    def _least_busy(self) -> PoolWorker:
        return min(self._workers, key=lambda worker: worker.jobs)

    def _wait(self, jobs: deque[Job]) -> None:
        """Waits until at least one more job is done, and marks all that are."""
        pending = {job.reference: job for job in jobs if not job.done}
        references = list(pending)
        # The first call blocks until one is done; the second one collects whatever else is done by then.
        ray.wait(references, num_returns=1)
        done, _ = ray.wait(references, num_returns=len(references), timeout=0)
        for reference in done:
            pending[reference].done = True
            pending[reference].worker.jobs -= 1

    def _resubmit(self, jobs: deque[Job], error: RayError) -> None:
        """Removes the worker of the first job, which was lost, and submits all its jobs again."""
        lost = jobs[0].worker
        self._remove_worker(lost)
        self.add_missing_workers()
        for place, job in enumerate(jobs):
            if job.worker is lost:
                jobs[place] = self._retry(job, error)

    def _retry(self, job: Job, error: RayError) -> Job:
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

    def _cancel(self, job: Job) -> None:
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
    """The error for an object store that is full."""
    return ScaleoutError(
        "the cluster's object store is full and cannot spill to disk; give it more memory "
        f"(ray start --object-store-memory …) or disk, and resume: {first_line(error)}"
    )
