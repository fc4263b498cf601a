"""The state of a simulation after a global round, to and from a checkpoint: enough to resume it bit for bit.

It has everything that the loop carries from round to round, and nothing that can be computed again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cfel.control.scheme import RoundPlan
from cfel.cost import Ledger
from cfel.errors import InputError, RunDirectoryError
from cfel.learning.compressors import DenseUpdate, Update
from cfel.learning.device_messages import DeviceOrder, DeviceReport, DeviceState
from cfel.learning.edge import edge_tensors, read_edge_models, read_vector
from cfel.learning.local.algorithms import find_algorithm
from cfel.learning.local.estimates import Estimates, stack_estimates, unstack_estimates
from cfel.learning.models.flat import PARAMETERS, FlatModel
from cfel.learning.packing import pack_update, unpack_update
from cfel.rounds import kernel
from cfel.rounds.kernel import ControlState, initial_control
from cfel.runlog import Checkpoint, PlanTable, RoundRecord
from cfel.system.conditions import Conditions
from cfel.world import World


@dataclass(frozen=True, slots=True, eq=False)
class PendingUpdate:
    """An in-flight update: that of a device that is at work, in virtual time."""

    report: DeviceReport  # what it will send
    begun: int  # number of the edge round in which it fetched its model, counted through the whole run
    seconds_left: float  # until the update arrives, by the steps really taken
    expected_left: float  # the same by the plan
    weight: float  # how much it counts in its cluster

    @property
    def device(self) -> int:
        return self.report.device

    def wait(self, seconds: float, expected: float) -> "PendingUpdate":
        """The same after some time, in both accounts."""
        return replace(
            self,
            seconds_left=max(0.0, self.seconds_left - seconds),
            expected_left=max(0.0, self.expected_left - expected),
        )

    def keep(self) -> "PendingUpdate":
        """The same, fit for a checkpoint, and in memory of its own: workers may have shared theirs."""
        sent = self.report.update
        update: Update
        try:
            update = unpack_update(pack_update(sent))
        except InputError:
            # User-defined compressors have no wire format. A checkpoint must not change a bit, so the update
            # becomes dense now and not only when it is read back.
            dense = torch.zeros(sent.size)
            sent.add_to(dense, 1.0)
            update = DenseUpdate(dense)
        return replace(self, report=replace(self.report, update=update, buffers=self.report.buffers.clone()))


def pending_tensors(pending: Sequence[PendingUpdate]) -> dict[str, np.ndarray]:
    """In-flight updates as tensors of a checkpoint."""
    tensors: dict[str, np.ndarray] = {}
    for each in pending:
        packed = pack_update(each.report.update)
        tensors[f"pending/{each.device}/update"] = np.frombuffer(packed, dtype=np.uint8)
        tensors[f"pending/{each.device}/buffers"] = each.report.buffers.numpy()
    return tensors


def pending_values(pending: Sequence[PendingUpdate]) -> list[dict[str, float]]:
    """The rest of them as JSON values; loss and estimates were used when the work began."""
    return [
        {
            "device": each.device,
            "begun": each.begun,
            "seconds_left": each.seconds_left,
            "expected_left": each.expected_left,
            "weight": each.weight,
            "steps": each.report.steps,
            "samples": each.report.samples,
        }
        for each in pending
    ]


def read_pending(
    tensors: Mapping[str, Any], values: Sequence[Mapping[str, Any]], like: FlatModel
) -> tuple[PendingUpdate, ...]:
    """What `pending_tensors` and `pending_values` wrote.

    Raises:
        InputError: an update is missing, or of another size.
    """
    found = []
    for each in values:
        name = f"pending/{each['device']}"
        if f"{name}/update" not in tensors:
            raise InputError(f"tensor {name + '/update'!r} is missing")
        report = DeviceReport(
            device=int(each["device"]),
            update=unpack_update(tensors[f"{name}/update"].tobytes(), like.parameters.numel()),
            buffers=read_vector(tensors, f"{name}/buffers", like.buffers.numel()),
            estimates=None,
            steps=int(each["steps"]),
            loss=math.nan,
            samples=int(each["samples"]),
        )
        left = float(each["seconds_left"]), float(each["expected_left"])
        found.append(PendingUpdate(report, int(each["begun"]), *left, float(each["weight"])))
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class RunState:
    """A run between two rounds."""

    control: ControlState  # finished rounds, the scheme's state, and what has been spent
    models: tuple[FlatModel, ...]  # edge models, by cluster
    devices: tuple[DeviceState, ...]  # what each device remembers
    # In-flight updates, by device, where edge servers do not wait for all (`buffered`).
    pending: tuple[PendingUpdate, ...] = ()
    # Public models, by cluster, where edge servers send differences (`learning.differences`).
    public: tuple[FlatModel, ...] = ()
    # Issued models, by cluster, where devices fetch differences: what they trained from last.
    issued: tuple[FlatModel, ...] = ()

    @property
    def offered(self) -> tuple[FlatModel, ...]:
        """What devices train from, by cluster."""
        return self.issued or self.models

    @property
    def estimates(self) -> tuple[Estimates | None, ...]:
        """Every device's newest σ² and G²."""
        return tuple(map(attrgetter("estimates"), self.devices))


@dataclass(frozen=True, slots=True, eq=False)
class RoundOutcome:
    """A finished global round: its line of the log, its plans, and the state to continue from.

    The next round may train in the same memory. Copy the state to keep it longer.
    """

    record: RoundRecord
    plans: PlanTable
    state: RunState


def initial_state(world: World) -> RunState:
    setting = world.at(0).setting
    return RunState(
        control=initial_control(setting),
        models=(world.start,) * setting.fleet.clusters,
        devices=(world.new_device,) * setting.fleet.devices,
        public=() if world.differences is None else (world.start,) * setting.fleet.clusters,
        issued=() if world.downloads is None else (world.start,) * setting.fleet.clusters,
    )


def enter_round(world: World, state: RunState) -> RunState:
    """The state at the start of a global round, with places for those that join.

    An edge server that joins begins with the model of the first one that was there before.
    """
    number = state.control.rounds_done
    before, now = (world.at(each).setting.fleet for each in (max(number - 1, 0), number))
    if before is now:
        return state
    first, new = state.models[before.list_edges()[0]], set(now.list_edges()) - set(before.list_edges())

    def place(models: Sequence[FlatModel]) -> tuple[FlatModel, ...]:
        known = [*models, *[first] * (now.clusters - len(models))]
        return tuple(first if i in new else model for i, model in enumerate(known))

    members = set(now.list_members())
    control = kernel.enter_round(world.at(number).setting, state.control)
    return replace(
        state,
        control=kernel.forget_models(control, before, now),
        models=place(state.models),
        public=place(state.public) if state.public else (),
        issued=place(state.issued) if state.issued else (),
        devices=(*state.devices, *(world.new_device,) * (now.devices - len(state.devices))),
        pending=tuple(each for each in state.pending if each.device in members),
    )


def to_checkpoint(state: RunState) -> Checkpoint:
    """The state as named tensors and JSON values."""
    control, tensors = state.control, edge_tensors(state.models)
    for number, device in enumerate(state.devices):
        tensors |= {f"device/{number}/{name}": tensor.numpy() for name, tensor in device.memory.items()}
        if device.residual is not None:
            tensors[f"device/{number}/residual"] = device.residual.numpy()
    tensors |= stack_estimates(state.estimates) | pending_tensors(state.pending)
    tensors |= {f"edge/{i}/public": each.parameters.numpy() for i, each in enumerate(state.public)}
    tensors |= {f"edge/{i}/issued": each.parameters.numpy() for i, each in enumerate(state.issued)}
    tensors["spent_joules"] = np.asarray(control.spent_joules)
    if control.losses is not None:
        tensors["losses"] = control.losses
    if control.habits is not None:
        tensors["habits"] = control.habits
    if control.missed is not None:
        tensors["missed"] = control.missed
    values = {
        "scheme": dict(control.scheme),
        "expected": control.expected.to_dict(),
        "realised": control.realised.to_dict(),
        "pending": pending_values(state.pending),
    }
    return Checkpoint(control.rounds_done, tensors, values)


def from_checkpoint(checkpoint: Checkpoint, world: World) -> RunState:
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
        habits=np.array(tensors["habits"], dtype=np.float64) if "habits" in tensors else None,
        missed=np.array(tensors["missed"], dtype=np.float64) if "missed" in tensors else None,
    )
    known = unstack_estimates(tensors)
    # Those of the last finished round; who joins after it comes with the next.
    fleet = world.at(max(checkpoint.round - 1, 0)).setting.fleet
    size, devices = world.start.parameters.numel(), fleet.devices
    if len(known) != devices or control.spent_joules.shape != (devices,):
        raise InputError(f"it is of {len(known)} devices, this experiment has {devices}")
    models = read_edge_models(checkpoint, fleet.clusters, world.start)

    def read_known(name: str) -> tuple[FlatModel, ...]:
        # Of these, only the parameters are used again.
        vectors = (read_vector(tensors, f"edge/{i}/{name}", size) for i in range(len(models)))
        pairs = zip(models, vectors, strict=True)
        return tuple(replace(model, parameters=vector) for model, vector in pairs)

    return RunState(
        control=control,
        models=models,
        public=() if world.differences is None else read_known("public"),
        issued=() if world.downloads is None else read_known("issued"),
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


class EdgeRoundOrders(NamedTuple):
    """What begins in an edge round."""

    number: int  # of the edge round, counted through the whole run
    conditions: Conditions  # of the devices that begin now
    plan: RoundPlan  # what these are asked
    used: float  # share of the run that is over, by which learning rates fall
    # The orders with the devices' states, by cluster and device.
    jobs: Sequence[tuple[DeviceOrder, DeviceState]]
