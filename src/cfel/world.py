"""The built parts of an experiment that the simulator and a deployment both run.

Small on purpose: a World is handed around whole, does nothing by itself and is never changed. What changes in
the course of a run belongs to the simulator's state or the coordinator's.
"""

from dataclasses import dataclass, field

from cfel.control.setting import Setting
from cfel.learning.compressors import Compressor
from cfel.learning.device_messages import DeviceState
from cfel.learning.edge_update import EdgeRules
from cfel.learning.local.parameters import TrainingParameters
from cfel.learning.models.flat import FlatModel
from cfel.learning.task import DeviceData, Task


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Everything a run needs.

    Attributes:
        setting: who, how long, under which scheme and budgets; all that plans and costs depend on.
        task: what is learned.
        data: what each device holds, by device id.
        training: how devices train.
        compress: how uploads are compressed.
        start: the model every edge server begins with.
        edge_rules: what an edge server makes of updates.
        new_device: what a device remembers before its first order: its own part of the model.
    """

    setting: Setting
    task: Task
    data: tuple[DeviceData, ...]
    training: TrainingParameters
    compress: Compressor
    start: FlatModel
    edge_rules: EdgeRules = field(default_factory=EdgeRules)
    new_device: DeviceState = field(default_factory=DeviceState)
