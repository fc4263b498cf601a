"""What an edge server does with the mean of its devices' updates, and what it remembers for that.

An `EdgeRule` turns the mean update into the change of the edge model: server momentum, FedAdam, or the edge
server's half of a local algorithm. What it remembers is part of the edge model (`FlatModel.memory`), so it
goes where the model goes: into checkpoints, onto disks, to neighbours in gossip, and to devices. The backhaul
is charged for it. `edge_update` has the optimisers that come with cfel, and applies the rules.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cfel.learning.models.flat import FlatModel, Slot, Tensors


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
        server_rate: share of the optimiser's learning rate that its schedule leaves.
        matrices: where the weight matrices between inputs and the last layer are in the update.
    """

    update: Tensor
    update_per_step: Tensor
    mean_steps: float
    active: float
    share: float
    rate: float
    server_rate: float = 1.0
    matrices: tuple[Slot, ...] = ()


@dataclass(frozen=True, slots=True)
class EdgeRule:
    """One rule.

    Attributes:
        change: (round, memory) → the change of the edge model; may change the memory in place.
        memory: names of the vectors that it remembers, zero at first.
        per_step: whether it needs `EdgeRound.update_per_step`.
        any_aggregate: whether the update may come from any rule of `[aggregation]`, not only from the mean.
    """

    change: Callable[[EdgeRound, Tensors], Tensor]
    memory: tuple[str, ...] = ()
    per_step: bool = False
    any_aggregate: bool = False


def read_memory(model: FlatModel, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The first vectors of an edge server's memory, by name; views of it."""
    size = model.parameters.numel()
    return {name: model.memory[size * n : size * (n + 1)] for n, name in enumerate(names)}
