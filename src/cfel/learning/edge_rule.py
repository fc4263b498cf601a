"""What an edge server does with the mean of its devices' updates, and what it remembers for that.

An `EdgeRule` turns the mean update into the change of the edge model: server momentum, FedAdam, or the edge
server's half of a local algorithm. What it remembers is part of the edge model (`FlatModel.memory`), so it
goes where the model goes: into checkpoints, onto disks, to neighbours in gossip, and to devices. The backhaul
is charged for it. `edge_update` applies the rules.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cfel.errors import InputError
from cfel.learning.models.flat import FlatModel


@dataclass(frozen=True, slots=True, eq=False)
class EdgeRound:
    """The devices' work in one edge round, as the rules of their edge server see it.

    Attributes:
        update: the weighted mean of the updates; what earlier rules made of it.
        update_per_step: the weighted mean of every update divided by its steps; zero without `per_step`.
        mean_steps: the weighted mean of the steps taken.
        active: weight of the devices that took a step, in [0, 1].
        share: of the cluster's devices that took part, in (0, 1].
        rate: the learning rate of the devices.
    """

    update: Tensor
    update_per_step: Tensor
    mean_steps: float
    active: float
    share: float
    rate: float


@dataclass(frozen=True, slots=True)
class EdgeRule:
    """One rule.

    Attributes:
        change: (round, memory) → the change of the edge model; may change the memory in place.
        memory: names of the vectors that it remembers, zero at first.
        per_step: whether it needs `EdgeRound.update_per_step`.
    """

    change: Callable[[EdgeRound, Mapping[str, Tensor]], Tensor]
    memory: tuple[str, ...] = ()
    per_step: bool = False


@dataclass(frozen=True, slots=True)
class EdgeRules:
    """All rules of an edge server, in order, and the average it keeps of its models.

    Attributes:
        rules: each gets what the one before it returned.
        average: share of every global round's model in the average of models, in (0, 1); 0 for no average.
    """

    rules: tuple[EdgeRule, ...] = ()
    average: float = 0.0

    def __post_init__(self) -> None:
        if len(set(self.names)) < len(self.names):
            raise InputError(f"edge server: two rules remember the same name: {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """What the edge server remembers, in the order of the vector."""
        return tuple(name for rule in self.rules for name in rule.memory)

    @property
    def vectors(self) -> int:
        """How many more vectors of the model's size an edge server exchanges with its neighbours."""
        return len(self.names) + (1 if self.average else 0)

    def add_memory(self, model: FlatModel) -> FlatModel:
        """The model with the memory before the first round; the average is the model itself."""
        kept = [model.parameters, model.buffers] if self.average else []
        memory = torch.cat([torch.zeros(len(self.names) * model.parameters.numel()), *kept])
        return replace(model, memory=memory)

    def add_to_average(self, model: FlatModel) -> FlatModel:
        """The model after a global round: it is part of the average now."""
        if not self.average:
            return model
        start = len(self.names) * model.parameters.numel()
        memory = model.memory.clone()
        memory[start:].lerp_(torch.cat([model.parameters, model.buffers]), self.average)
        return replace(model, memory=memory)

    def read_average(self, model: FlatModel) -> FlatModel:
        """The model to evaluate and export: the average, where there is one."""
        if not self.average:
            return model
        size = model.parameters.numel()
        average = model.memory[len(self.names) * size :]
        return FlatModel(average[:size], average[size:])


def read_memory(model: FlatModel, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The first vectors of an edge server's memory, by name; views of it."""
    size = model.parameters.numel()
    return {name: model.memory[size * n : size * (n + 1)] for n, name in enumerate(names)}
