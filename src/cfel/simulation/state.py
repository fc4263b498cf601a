"""What a run has come to after a global round: enough to go on bit for bit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cfel.arrays import FloatArray
from cfel.control.scheme import State
from cfel.cost import Ledger, new_ledger
from cfel.errors import RunDirectoryError
from cfel.learning.device_messages import DeviceState
from cfel.learning.local.estimates import Estimates, stack_estimates, unstack_estimates
from cfel.learning.models.flat import FlatModel
from cfel.runlog import Checkpoint
from cfel.world import World


@dataclass(frozen=True, slots=True, eq=False)
class RunState:
    """A run between two rounds.

    Attributes:
        rounds_done: finished global rounds.
        models: edge models, by cluster.
        devices: what each device remembers.
        scheme: the scheme's state.
        expected, realised: what has been spent, in both accounts.
        spent_joules: per device, in the account that the budget counts.
    """

    rounds_done: int
    models: tuple[FlatModel, ...]
    devices: tuple[DeviceState, ...]
    scheme: State
    expected: Ledger
    realised: Ledger
    spent_joules: FloatArray

    @property
    def estimates(self) -> tuple[Estimates | None, ...]:
        """Every device's newest σ² and G²."""
        return tuple(device.estimates for device in self.devices)


def initial_state(world: World) -> RunState:
    """Before the first round."""
    clusters = world.fleet.clusters
    return RunState(
        rounds_done=0,
        models=(world.start,) * clusters,
        devices=(DeviceState(),) * world.fleet.devices,
        scheme=world.scheme.init(),
        expected=new_ledger(clusters),
        realised=new_ledger(clusters),
        spent_joules=np.zeros(world.fleet.devices),
    )


def to_checkpoint(state: RunState) -> Checkpoint:
    """The state as named tensors and JSON values."""
    tensors: dict[str, np.ndarray] = {}
    for number, model in enumerate(state.models):
        tensors[f"edge/{number}/parameters"] = model.parameters.numpy()
        tensors[f"edge/{number}/buffers"] = model.buffers.numpy()
    for number, device in enumerate(state.devices):
        for name in ("momentum", "residual"):
            tensor: Tensor | None = getattr(device, name)
            if tensor is not None:
                tensors[f"device/{number}/{name}"] = tensor.numpy()
    tensors |= stack_estimates(state.estimates)
    tensors["spent_joules"] = np.asarray(state.spent_joules)
    values = {
        "scheme": dict(state.scheme),
        "expected": state.expected.to_dict(),
        "realised": state.realised.to_dict(),
    }
    return Checkpoint(state.rounds_done, tensors, values)


def from_checkpoint(checkpoint: Checkpoint, world: World) -> RunState:
    """The state that `to_checkpoint` wrote."""
    tensors, values = checkpoint.tensors, checkpoint.state
    if "estimates" not in tensors:
        raise RunDirectoryError("the run is a deployment's: what devices remember is theirs, see `cfel up`")
    return RunState(
        rounds_done=checkpoint.round,
        models=edge_models(checkpoint, world.fleet.clusters),
        devices=tuple(
            DeviceState(
                _optional_tensor(tensors, f"device/{number}/momentum"),
                _optional_tensor(tensors, f"device/{number}/residual"),
                estimates,
            )
            for number, estimates in enumerate(unstack_estimates(tensors))
        ),
        scheme=values["scheme"],
        expected=Ledger.from_dict(values["expected"]),
        realised=Ledger.from_dict(values["realised"]),
        spent_joules=np.array(tensors["spent_joules"], dtype=np.float64),
    )


def edge_models(checkpoint: Checkpoint, clusters: int) -> tuple[FlatModel, ...]:
    """The edge models in a checkpoint, by cluster."""
    tensors = checkpoint.tensors
    return tuple(
        FlatModel(_tensor(tensors, f"edge/{i}/parameters"), _tensor(tensors, f"edge/{i}/buffers"))
        for i in range(clusters)
    )


def _optional_tensor(tensors: Mapping[str, Any], name: str) -> Tensor | None:
    return _tensor(tensors, name) if name in tensors else None


def _tensor(tensors: Mapping[str, Any], name: str) -> Tensor:
    return torch.from_numpy(np.array(tensors[name]))
