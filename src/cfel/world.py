"""The built parts of an experiment that the simulator and a deployment both run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cfel.control.setting import Setting
from cfel.errors import InputError
from cfel.learning.compressors import Compressor
from cfel.learning.device_messages import DeviceState
from cfel.learning.differences import Differences
from cfel.learning.edge import EdgeRules
from cfel.learning.local.algorithm import TrainingParameters
from cfel.learning.models.flat import FlatModel
from cfel.learning.task import DeviceData, Task
from cfel.membership import FleetChange, Membership, Place, RoundLoss


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
class Era:
    """The global rounds between two changes of the fleet."""

    first_round: int  # counted from 0
    setting: Setting
    membership: Membership


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Everything a run needs; never changed. What changes in the course of a run is its state."""

    setting: Setting  # who, how long, under which scheme and budgets; all that plans and costs depend on
    task: Task  # what is learned
    data: tuple[DeviceData, ...]  # what each device holds, by device id
    training: TrainingParameters  # how devices train
    compress: Compressor  # how uploads are compressed
    start: FlatModel  # the model every edge server begins with
    differences: Differences | None = None  # how edge servers send differences; None for whole models
    downloads: Differences | None = None  # the same of what devices fetch
    edge_rules: EdgeRules = field(default_factory=EdgeRules)  # what an edge server makes of updates
    # What a device remembers before its first order: its own part of the model.
    new_device: DeviceState = field(default_factory=DeviceState)
    evaluation: Evaluations = field(default_factory=Evaluations)  # when models are evaluated, and on what
    # Per number of the model's statistics, whether it is a variance; empty for none.
    variances: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    # The settings between changes of the fleet, in order; empty where it cannot change.
    eras: tuple[Era, ...] = ()
    changes: tuple[FleetChange, ...] = ()  # those changes
    # Makes the same world with other changes; None where the fleet cannot change.
    change: Callable[[Sequence[FleetChange]], "World"] | None = None
    losses: Mapping[Place, RoundLoss] = field(default_factory=dict)  # of a federation that is repeated
    model_name: str = ""  # of the model's builder; empty if the model belongs to a user-defined task

    def at(self, global_round: int) -> "World":
        """The world during a global round (from 0), with the setting that holds then."""
        return self if len(self.eras) < 2 else replace(self, setting=self._find_era(global_round).setting)

    def with_settings(self, alter: Callable[[Setting], Setting]) -> "World":
        """The world with every setting altered, also those of later changes."""
        change = self.change
        return replace(
            self,
            setting=alter(self.setting),
            eras=tuple(replace(each, setting=alter(each.setting)) for each in self.eras),
            change=None if change is None else lambda changes: change(changes).with_settings(alter),
        )

    def membership_at(self, global_round: int) -> Membership:
        """Who belongs to the fleet in a global round (from 0)."""
        return self._find_era(global_round).membership

    def _find_era(self, global_round: int) -> Era:
        return next(each for each in reversed(self.eras) if each.first_round <= global_round)

    def changes_after(self, rounds_done: int) -> tuple[FleetChange, ...]:
        """What takes effect when so many global rounds are done."""
        return tuple(each for each in self.changes if rounds_done and each.round == rounds_done + 1)

    def with_changes(self, changes: Sequence[FleetChange]) -> "World":
        """The world in which the fleet changes otherwise; rejects changes that are not possible."""
        if self.change is None:
            raise InputError("the fleet of this world cannot change")
        return self if tuple(changes) == self.changes else self.change(changes)
