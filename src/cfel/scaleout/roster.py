"""Workers, who has what to do, and what is to be done again when one of them is lost.

Tasks are handed to whoever has least to do, a bounded number of them under way; results come in task order.
A worker that dies is struck off, its tasks go to others, and another is asked for in its place, which begins
as soon as there is room. What a task computes is Ray's business as little as ours: it may be computed twice.
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
from cfel.scaleout.cluster import cluster_cores, cluster_gpus
from cfel.scaleout.worker import VERSIONS, DeviceWorker, Place

# Tasks a worker has at a time, one of them waiting, so that it need not; and tasks in all that may be under
# way or done and not yet used, for each worker.
TASKS_OF_A_WORKER = 2
TASKS_IN_ALL = 4
# A task that took so many workers with it is not tried on another.
MOST_ATTEMPTS = 5
# How long to wait for workers: processes start and load torch, on a busy machine one after the other.
START_SECONDS = 120.0

LOST = (RayActorError, ObjectLostError, WorkerCrashedError, NodeDiedError, OutOfMemoryError)
FULL = (ObjectStoreFullError, OutOfDiskError)

Message = tuple[Any, ...]


@dataclass(eq=False, slots=True)
class Member:
    """A worker at work: its handle, where it is, and how many tasks it has."""

    handle: Any
    place: Place
    tasks: int = 0


@dataclass(eq=False, slots=True)
class Job:
    """A task under way: what was asked, of whom, and what will hold the answer."""

    method: str
    message: Message
    member: Member
    answer: Any
    attempts: int = 1
    done: bool = False


class Roster:
    """The workers of one executor.

    Args:
        share: the reference of the `Share` that workers need.
        workers: how many; 0 for one per core of the cluster, whatever its size from round to round.
        device: torch device; GPUs, where there are any, are shared evenly unless it is "cpu".
    """

    def __init__(self, share: Any, workers: int, device: str) -> None:  # noqa: ANN401 — Ray's references
        self._share, self._wanted, self._device = share, workers, device
        self._members: list[Member] = []
        self._coming: dict[Any, Any] = {}
        self.enlarge(START_SECONDS)

    def __len__(self) -> int:
        return len(self._members)

    def places(self) -> list[Place]:
        """Where the workers are."""
        return [member.place for member in self._members]

    def enlarge(self, seconds: float = 0.0) -> None:
        """Asks for the workers that are missing and takes in those that have come.

        Args:
            seconds: wait so long for all of them; one at least is waited for in any case.
        """
        cores = cluster_cores()
        wanted = min(self._wanted, cores) if self._wanted else cores
        for _ in range(wanted - len(self._members) - len(self._coming)):
            self._ask_for_one(wanted)
        self._take_in(seconds, len(self._coming))
        if not self._members:
            self._take_in(START_SECONDS, 1)
        if not self._members:
            raise ScaleoutError(
                f"no worker could be started within {START_SECONDS:.0f} s; the cluster has "
                f"{cluster_cores()} cores alive, {ray.available_resources().get('CPU', 0):g} of them free"
            )

    def dismiss(self) -> None:
        """Ends all workers."""
        for handle in [*(member.handle for member in self._members), *self._coming.values()]:
            ray.kill(handle)
        self._members, self._coming = [], {}

    def results(self, method: str, messages: Iterable[Message]) -> Iterator[Any]:
        """What a method of the workers answers to each message, in their order.

        Raises:
            ScaleoutError: workers are lost again and again, or there is no room for objects.
        """
        self.enlarge()
        waiting: deque[Job] = deque()
        source = iter(messages)
        try:
            while self._fill(waiting, source, method) or waiting:
                if not waiting[0].done:
                    self._wait(waiting)
                    continue
                try:
                    answer = ray.get(waiting[0].answer)
                except LOST as error:
                    self._redo(waiting, error)
                    continue
                waiting.popleft()
                yield answer
        except RayTaskError as error:
            raise cause_of(error) from error
        except FULL as error:
            raise no_room(error) from error
        finally:
            for job in waiting:
                self._forget(job)

    def _ask_for_one(self, of: int) -> None:
        gpus = 0.0 if self._device == "cpu" else int(1e4 * cluster_gpus() / of) / 1e4
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        handle = ray.remote(DeviceWorker).options(**options).remote(sys.path, [self._share], self._device)
        self._coming[handle.ready.remote()] = handle

    def _take_in(self, seconds: float, count: int) -> None:
        if not self._coming:
            return
        ready, _ = ray.wait(
            list(self._coming), num_returns=max(1, min(count, len(self._coming))), timeout=seconds
        )
        for reference in ready:
            handle = self._coming.pop(reference)
            try:
                place = ray.get(reference)
            except LOST:
                continue  # gone before it began; asked for again when next the roster is enlarged
            except RayTaskError as error:
                raise cause_of(error) from error
            if tuple(place.versions) != VERSIONS:
                there, here = ", ".join(place.versions), ", ".join(VERSIONS)
                raise ScaleoutError(
                    f"node {place.node} runs {there}, this process {here}: results would differ"
                )
            self._members.append(Member(handle, place))

    def _fill(self, waiting: deque[Job], source: Iterator[Message], method: str) -> bool:
        """Hands out tasks while there is room for them; says whether any were."""
        some = False
        while len(waiting) < TASKS_IN_ALL * len(self):
            member = min(self._members, key=lambda member: member.tasks)
            message = None if member.tasks >= TASKS_OF_A_WORKER else next(source, None)
            if message is None:
                break
            waiting.append(self._hand_out(method, message, member))
            some = True
        return some

    def _hand_out(self, method: str, message: Message, member: Member, attempts: int = 1) -> Job:
        answer = getattr(member.handle, method).remote(*message)
        member.tasks += 1
        return Job(method, message, member, answer, attempts)

    def _wait(self, waiting: deque[Job]) -> None:
        """Waits until one more task is done, and marks all that are."""
        under_way = {job.answer: job for job in waiting if not job.done}
        references = list(under_way)
        ray.wait(references, num_returns=1)
        done, _ = ray.wait(references, num_returns=len(references), timeout=0)
        for reference in done:
            under_way[reference].done = True
            under_way[reference].member.tasks -= 1

    def _redo(self, waiting: deque[Job], error: RayError) -> None:
        """Strikes off whoever had the first task, and hands its tasks out anew."""
        lost = waiting[0].member
        self._strike_off(lost)
        self.enlarge()
        for place, job in enumerate(waiting):
            if job.member is lost:
                waiting[place] = self._again(job, error)

    def _again(self, job: Job, error: RayError) -> Job:
        if job.attempts >= MOST_ATTEMPTS:
            raise ScaleoutError(
                f"a task was lost {job.attempts} times with the workers it ran on "
                f"(out of memory?): {str(error).strip().partition(chr(10))[0]}"
            ) from error
        member = min(self._members, key=lambda member: member.tasks)
        return self._hand_out(job.method, job.message, member, job.attempts + 1)

    def _strike_off(self, member: Member) -> None:
        """Has a worker that cannot be reached ended for good, lest it work beside its successor."""
        if member in self._members:
            self._members.remove(member)
            ray.kill(member.handle)

    def _forget(self, job: Job) -> None:
        if not job.done:
            job.member.tasks -= 1
            if ray.is_initialized():
                ray.cancel(job.answer)


def cause_of(error: RayTaskError) -> BaseException:
    """What was raised in a worker, as if it had been raised here."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, FULL):
        return no_room(cause)
    return cause if isinstance(cause, BaseException) else error


def no_room(error: BaseException) -> ScaleoutError:
    """The error for an object store that is full."""
    return ScaleoutError(
        "the cluster's object store is full and cannot spill to disk; give it more memory "
        f"(ray start --object-store-memory …) or disk, and resume: {str(error).strip().partition(chr(10))[0]}"
    )
