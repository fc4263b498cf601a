"""A device of the embedded data, and what one edge round of an algorithm does to it."""

from collections.abc import Callable, Mapping

import pytest

from cfel.learning.compressors import compressor
from cfel.learning.device import device_update
from cfel.learning.device_messages import DeviceReport, DeviceState
from cfel.learning.edge import EdgeRules
from cfel.learning.local.algorithm import LocalAlgorithm, LocalParameters, TrainingParameters
from cfel.learning.local.workspace import Workspace
from cfel.learning.task import Task, initial_model
from tests.learning.conftest import Make, Spread

Round = Callable[..., tuple[DeviceReport, DeviceState]]


def make_workspace(task: Task, local: LocalParameters, algorithm: LocalAlgorithm | None = None) -> Workspace:
    """A workspace of an algorithm, uploads uncompressed; batches of all 100 samples of a device or fewer."""
    return Workspace(task, TrainingParameters(local, 20, algorithm=algorithm), compressor("none"))


@pytest.fixture
def run_round(digits_task: Task, order: Make, spread: Spread) -> Round:
    """Runs one edge round of device 0 from the initial model."""
    data, model = spread(digits_task, 4)[0], initial_model(digits_task, 0)

    def run(
        name: str,
        state: DeviceState | None = None,
        *,
        edge_round: int = 0,
        tau: int = 5,
        options: Mapping[str, float] | None = None,
        **local: object,
    ) -> tuple[DeviceReport, DeviceState]:
        parameters = LocalParameters(algorithm=name, options=options or {}, **local)  # type: ignore[arg-type]
        workspace = make_workspace(digits_task, parameters)
        edge = workspace.algorithm.edge
        start = EdgeRules(() if edge is None else (edge,)).add_memory(model)
        asked = order(start, tau=tau, edge_round=edge_round)
        return device_update(asked, data, state or DeviceState(), workspace)

    return run
