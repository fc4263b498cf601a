"""The round loop's executor on a Ray cluster: the same results as threads in this process, bit for bit.

Each edge model is put into the object store once, however many devices start from it. Device states stay with
the driver and travel with the jobs. Devices that keep neither momentum nor residuals cost the driver no
vector each.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import ray

from cfel.learning.device_messages import DeviceOrder, DeviceState
from cfel.learning.evaluate import Evaluation
from cfel.learning.local.algorithms import find_algorithm
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel
from cfel.learning.worker_threads import prepare_process, prepare_thread
from cfel.rounds.parameters import SimulationParameters
from cfel.scaleout.cluster import connect
from cfel.scaleout.worker import DeviceContext, JobOrder, WorkerInfo, send_tensors_as_arrays
from cfel.scaleout.worker_pool import STORE_FULL, Arguments, WorkerPool, store_full_error
from cfel.simulation.executors import Job, JobResult
from cfel.simulation.job_groups import group_jobs, largest_group
from cfel.world import World


class RayExecutor:
    """Worker processes on a cluster, one per core; each runs many devices.

    Args:
        world: what is run.
        parameters: workers and torch device.
        address: of the cluster; see `connect`.

    Attributes:
        busy_seconds: CPU seconds of all workers together on local training so far.
    """

    def __init__(self, world: World, parameters: SimulationParameters, address: str | None = None) -> None:
        prepare_process()
        prepare_thread()
        self.busy_seconds = 0.0
        # By id of the model, which is kept as well: an id is unique only while its object lives.
        self._stored: dict[int, tuple[FlatModel, Any]] = {}
        training = world.training
        algorithm = find_algorithm(training)
        kept = algorithm.list_kept(keep=training.local.momentum_state == "keep")
        vectors = 1 + len(kept) + training.error_feedback + len(world.new_device.memory)
        self._most = largest_group(world.start.parameters.numel(), vectors)
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
        """Where the workers run."""
        return self._pool.describe()

    def run_estimates(self, orders: Sequence[DeviceOrder]) -> Iterator[Estimates]:
        """See `Executor`."""
        self._store([order.model for order in orders])
        groups = group_jobs(orders, len(self._pool), self._most)
        for estimates in self._pool.map("estimates", map(self._estimate_arguments, groups)):
            yield from estimates

    def run_updates(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """See `Executor`."""
        self._store([order.model for order, _ in jobs])
        groups = group_jobs(jobs, len(self._pool), self._most)
        for seconds, answers in self._pool.map("updates", map(self._update_arguments, groups)):
            self.busy_seconds += seconds
            for report, state in answers:
                yield report, _copy_state(state)

    def run_evaluations(self, models: Sequence[FlatModel], samples: int) -> list[Evaluation]:
        """See `Executor`."""
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
            values = (order.seed, order.global_round, order.edge_round, order.device)
            orders.append(JobOrder(*values, order.rho, order.theta, order.tau, number, order.rate))
        return orders, *(self._stored[key][1] for key in numbers)

    def _update_arguments(self, group: Sequence[Job]) -> Arguments:
        orders, *models = self._estimate_arguments([order for order, _ in group])
        return orders, [state for _, state in group], *models


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
