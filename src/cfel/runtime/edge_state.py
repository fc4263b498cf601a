"""What an edge server must not forget: where it is, its models, and what it told the coordinator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cfel.learning.flat import FlatModel
from cfel.runtime import persisted
from cfel.runtime.stages import Position, position


@dataclass(frozen=True, slots=True, eq=False)
class EdgeState:
    """An edge server between two edge rounds.

    Attributes:
        position: what comes next.
        model: its model.
        before: its model before the last gossip step, for neighbours that ask late.
        reports: what it told about edge rounds of this global round and the one before, by position.
        used: round of the last upload of each device that went into the model.
        gossip: what it told about the last gossip step, or None.
        control: the newest plan it has seen, as the coordinator sent it, or None.
    """

    position: Position
    model: FlatModel
    before: FlatModel
    reports: Mapping[str, Any] = field(default_factory=dict)
    used: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    gossip: Mapping[str, Any] | None = None
    control: Mapping[str, Any] | None = None


def save_state(path: Path, state: EdgeState) -> None:
    """Makes the state durable."""
    tensors = {}
    for name, model in (("model", state.model), ("before", state.before)):
        tensors[f"{name}/parameters"] = model.parameters.numpy()
        tensors[f"{name}/buffers"] = model.buffers.numpy()
    values = {
        "position": state.position,
        "reports": dict(state.reports),
        "used": {str(device): at for device, at in state.used.items()},
        "gossip": state.gossip,
        "control": state.control,
    }
    persisted.save(path, tensors, values)


def load_state(path: Path, start: FlatModel) -> EdgeState:
    """The state saved last, or that before the first round."""
    found = persisted.load(path)
    if found is None:
        return EdgeState((0, 0, 0), start, start)
    tensors, values = found
    return EdgeState(
        position=position(values["position"]),
        model=_model(tensors, "model"),
        before=_model(tensors, "before"),
        reports=values["reports"],
        used={int(device): (at[0], at[1]) for device, at in values["used"].items()},
        gossip=values["gossip"],
        control=values["control"],
    )


def _model(tensors: Mapping[str, NDArray[Any]], name: str) -> FlatModel:
    parts = (np.array(tensors[f"{name}/{part}"]) for part in ("parameters", "buffers"))
    return FlatModel(*(torch.from_numpy(part) for part in parts))
