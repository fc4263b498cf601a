"""The round loop's executor on a Ray cluster: the same results as threads in this process, bit for bit.

Each edge model is put into the object store once for as long as it is the model, whatever the number of
devices that start from it. What devices remember travels with their tasks and stays with the driver: where
they remember nothing (no momentum kept, no error feedback), the driver's memory grows by no vector of theirs.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import ray

from cfel.learning.device_messages import DeviceOrder, DeviceState
from cfel.learning.evaluate import Evaluation
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel
from cfel.learning.worker_threads import prepare_process, prepare_thread
from cfel.scaleout.cluster import connected
from cfel.scaleout.roster import FULL, Message, Roster, no_room
from cfel.scaleout.worker import Order, Place, Share, send_tensors_as_arrays
from cfel.simulation import SimulationParameters
from cfel.simulation.executors import Answer, Task
from cfel.simulation.task_groups import guided_groups, most_in_a_task
from cfel.world import World


class RayExecutor:
    """Worker processes on a cluster, one per core, each with many virtual devices.

    Args:
        world: what is run.
        parameters: workers and torch device.
        address: of the cluster; see `connected`.

    Attributes:
        busy_seconds: of CPU that workers spent on local training so far, all together.
    """

    def __init__(self, world: World, parameters: SimulationParameters, address: str | None = None) -> None:
        prepare_process()
        prepare_thread()
        self.busy_seconds = 0.0
        self._placed: dict[int, tuple[FlatModel, Any]] = {}
        keeps = (
            world.local.momentum > 0 and world.local.momentum_state == "keep"
        ) + world.local.error_feedback
        self._most = most_in_a_task(world.start.parameters.numel(), 1 + keeps)
        with ExitStack() as stack:
            stack.enter_context(connected(address, parameters.workers))
            send_tensors_as_arrays()
            self._roster = Roster(_put(Share.of(world)), parameters.workers, parameters.device)
            stack.callback(self._roster.dismiss)
            self._ending = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._placed = {}
        self._ending.close()

    def places(self) -> list[Place]:
        """Where the workers are."""
        return self._roster.places()

    def estimates(self, orders: Sequence[DeviceOrder]) -> Iterator[Estimates]:
        """See `Executor`."""
        self._place([order.model for order in orders])
        groups = guided_groups(orders, len(self._roster), self._most)
        for estimates in self._roster.results("estimates", map(self._orders, groups)):
            yield from estimates

    def updates(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """See `Executor`."""
        self._place([order.model for order, _ in tasks])
        groups = guided_groups(tasks, len(self._roster), self._most)
        for seconds, answers in self._roster.results("updates", map(self._orders_and_states, groups)):
            self.busy_seconds += seconds
            for report, state in answers:
                yield report, _owned(state)

    def evaluations(self, models: Sequence[FlatModel], samples: int) -> list[Evaluation]:
        """See `Executor`."""
        self._place(models)
        messages = ((samples, self._placed[id(model)][1]) for model in models)
        return [own for several in self._roster.results("evaluations", messages) for own in several]

    def _place(self, models: Sequence[FlatModel]) -> None:
        """Puts models into the object store that are not there, and lets go of those no longer asked for."""
        distinct = {id(model): model for model in models}
        self._placed = {
            key: self._placed[key] if key in self._placed else (model, _put(model))
            for key, model in distinct.items()
        }

    def _orders(self, group: Sequence[DeviceOrder]) -> Message:
        """The orders of a group and the models they speak of, each model once."""
        numbers: dict[int, int] = {}
        orders = []
        for order in group:
            number = numbers.setdefault(id(order.model), len(numbers))
            values = (order.seed, order.global_round, order.edge_round, order.device)
            orders.append(Order(*values, order.rho, order.theta, order.tau, number))
        return orders, *(self._placed[key][1] for key in numbers)

    def _orders_and_states(self, group: Sequence[Task]) -> Message:
        orders, *models = self._orders([order for order, _ in group])
        return orders, [state for _, state in group], *models


def _put(value: object) -> Any:  # noqa: ANN401 — Ray's reference
    try:
        return ray.put(value)
    except FULL as error:
        raise no_room(error) from error


def _owned(state: DeviceState) -> DeviceState:
    """The state in this process's own memory: what was read from the object store would fill it up."""
    momentum = None if state.momentum is None else state.momentum.clone()
    residual = None if state.residual is None else state.residual.clone()
    return replace(state, momentum=momentum, residual=residual)
