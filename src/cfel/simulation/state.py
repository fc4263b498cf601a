"""The state of a simulation after a global round, to and from a checkpoint: enough to resume it bit for bit.

It has everything that the loop carries from round to round, and nothing that can be computed again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from cfel.cost import Ledger
from cfel.errors import InputError, RunDirectoryError
from cfel.learning.device_messages import DeviceState
from cfel.learning.local.algorithms import find_algorithm
from cfel.learning.local.estimates import Estimates, stack_estimates, unstack_estimates
from cfel.learning.models.flat import FlatModel
from cfel.learning.models.personal import PARAMETERS
from cfel.rounds.edge_models import edge_tensors, read_edge_models, read_vector
from cfel.rounds.kernel import ControlState, initial_control
from cfel.runlog import Checkpoint, PlanTable, RoundRecord
from cfel.simulation.pending import PendingUpdate, pending_tensors, pending_values, read_pending
from cfel.world import World


@dataclass(frozen=True, slots=True, eq=False)
class RunState:
    """A run between two rounds.

    Attributes:
        control: finished rounds, the scheme's state, and what has been spent.
        models: edge models, by cluster.
        devices: what each device remembers.
        pending: updates on their way, by device, where edge servers do not wait for all (`buffered`).
    """

    control: ControlState
    models: tuple[FlatModel, ...]
    devices: tuple[DeviceState, ...]
    pending: tuple[PendingUpdate, ...] = ()

    @property
    def estimates(self) -> tuple[Estimates | None, ...]:
        """Every device's newest σ² and G²."""
        return tuple(device.estimates for device in self.devices)


@dataclass(frozen=True, slots=True, eq=False)
class RoundOutcome:
    """A finished global round: its line of the log, its plans, and the state to continue from."""

    record: RoundRecord
    plans: PlanTable
    state: RunState


def initial_state(world: World) -> RunState:
    """Before the first round."""
    fleet = world.setting.fleet
    return RunState(
        control=initial_control(world.setting),
        models=(world.start,) * fleet.clusters,
        devices=(world.new_device,) * fleet.devices,
    )


def to_checkpoint(state: RunState) -> Checkpoint:
    """The state as named tensors and JSON values."""
    control, tensors = state.control, edge_tensors(state.models)
    for number, device in enumerate(state.devices):
        tensors |= {f"device/{number}/{name}": tensor.numpy() for name, tensor in device.memory.items()}
        if device.residual is not None:
            tensors[f"device/{number}/residual"] = device.residual.numpy()
    tensors |= stack_estimates(state.estimates) | pending_tensors(state.pending)
    tensors["spent_joules"] = np.asarray(control.spent_joules)
    if control.losses is not None:
        tensors["losses"] = control.losses
    values = {
        "scheme": dict(control.scheme),
        "expected": control.expected.to_dict(),
        "realised": control.realised.to_dict(),
        "pending": pending_values(state.pending),
    }
    return Checkpoint(control.rounds_done, tensors, values)


def from_checkpoint(checkpoint: Checkpoint, world: World) -> RunState:
    """The state that `to_checkpoint` wrote."""
    tensors, values = checkpoint.tensors, checkpoint.state
    # Only a simulation stores all devices' estimates in one checkpoint.
    if "estimates" not in tensors:
        raise RunDirectoryError("the run is a deployment's: its devices keep their own state, see `cfel up`")
    control = ControlState(
        rounds_done=checkpoint.round,
        scheme=values["scheme"],
        expected=Ledger.from_dict(values["expected"]),
        realised=Ledger.from_dict(values["realised"]),
        spent_joules=np.array(tensors["spent_joules"], dtype=np.float64),
        losses=np.array(tensors["losses"], dtype=np.float64) if "losses" in tensors else None,
    )
    known = unstack_estimates(tensors)
    size, devices = world.start.parameters.numel(), world.setting.fleet.devices
    if len(known) != devices or control.spent_joules.shape != (devices,):
        raise InputError(f"it is of {len(known)} devices, this experiment has {devices}")
    return RunState(
        control=control,
        models=read_edge_models(checkpoint, world.setting.fleet.clusters, world.start),
        devices=tuple(
            DeviceState(
                _read_memory(tensors, number, world),
                _optional_vector(tensors, f"device/{number}/residual", size),
                estimates,
            )
            for number, estimates in enumerate(known)
        ),
        pending=read_pending(tensors, values.get("pending", ()), world.start),
    )


def _read_memory(tensors: Mapping[str, Any], device: int, world: World) -> dict[str, Tensor]:
    """What the device's algorithm remembers, and the device's own part of the model."""
    own = {name: first.numel() for name, first in world.new_device.memory.items()}
    size = world.start.parameters.numel() + own.get(PARAMETERS, 0)
    sizes = {
        name: size if is_vector else 1 for name, is_vector in find_algorithm(world.training).remembers.items()
    }
    found = {
        name: _optional_vector(tensors, f"device/{device}/{name}", length)
        for name, length in (sizes | own).items()
    }
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _optional_vector(tensors: Mapping[str, Any], name: str, size: int) -> Tensor | None:
    return read_vector(tensors, name, size) if name in tensors else None
