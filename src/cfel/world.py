"""The built parts of an experiment that the simulator and a deployment both run."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cfel.control.setting import Setting
from cfel.learning.compressors import Compressor
from cfel.learning.device_messages import DeviceState
from cfel.learning.edge import EdgeRules
from cfel.learning.local.parameters import TrainingParameters
from cfel.learning.models.flat import FlatModel
from cfel.learning.task import DeviceData, Task


@dataclass(frozen=True, slots=True)
class Evaluations:
    """When models are evaluated, and on what; `SimulationParameters` says what the values mean."""

    every: int = 1
    samples: int = 0
    on: str = "edge"
    device_accuracy: str = "never"

    def measures_devices(self, *, over: bool) -> bool:
        """Whether edge models are measured per device, too, in a round with which the run is over or not."""
        return self.device_accuracy == "every" or (over and self.device_accuracy == "end")


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Everything a run needs; never changed. What changes in the course of a run is its state.

    Attributes:
        setting: who, how long, under which scheme and budgets; all that plans and costs depend on.
        task: what is learned.
        data: what each device holds, by device id.
        training: how devices train.
        compress: how uploads are compressed.
        start: the model every edge server begins with.
        edge_rules: what an edge server makes of updates.
        new_device: what a device remembers before its first order: its own part of the model.
        evaluation: when models are evaluated, and on what.
        variances: per number of the model's statistics, whether it is a variance; empty for none.
    """

    setting: Setting
    task: Task
    data: tuple[DeviceData, ...]
    training: TrainingParameters
    compress: Compressor
    start: FlatModel
    edge_rules: EdgeRules = field(default_factory=EdgeRules)
    new_device: DeviceState = field(default_factory=DeviceState)
    evaluation: Evaluations = field(default_factory=Evaluations)
    variances: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
