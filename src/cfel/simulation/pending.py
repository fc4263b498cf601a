"""An update on its way to its edge server, in virtual time, and the same as part of a checkpoint."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from cfel.errors import InputError
from cfel.learning.compression.compressors import DenseUpdate, Update
from cfel.learning.compression.packing import pack_update, unpack_update
from cfel.learning.device_messages import DeviceReport
from cfel.learning.models.flat import FlatModel
from cfel.rounds.edge_models import read_vector


@dataclass(frozen=True, slots=True, eq=False)
class PendingUpdate:
    """The update of a device that is at work.

    Attributes:
        report: what it will send.
        begun: number of the edge round in which it fetched its model, counted through the whole run.
        seconds_left: until the update arrives, by the steps really taken.
        expected_left: the same by the plan.
        weight: how much it counts in its cluster.
    """

    report: DeviceReport
    begun: int
    seconds_left: float
    expected_left: float
    weight: float

    @property
    def device(self) -> int:
        """Whose it is."""
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
    """What is on its way as tensors of a checkpoint."""
    tensors: dict[str, np.ndarray] = {}
    for each in pending:
        packed = pack_update(each.report.update)
        tensors[f"pending/{each.device}/update"] = np.frombuffer(packed, dtype=np.uint8)
        tensors[f"pending/{each.device}/buffers"] = each.report.buffers.numpy()
    return tensors


def pending_values(pending: Sequence[PendingUpdate]) -> list[dict[str, float]]:
    """The rest of it as JSON values; loss and estimates were used when the work began."""
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
