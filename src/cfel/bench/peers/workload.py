"""What every system computes in `cfel bench peers`, and how a worker talks to the race.

A worker runs one round as a warm-up, reports it, and then runs one more each time it is asked. It needs
torch and NumPy only.
"""

import json
import socket
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor, nn

from cfel.learning.models.builders import model_builder

SEED = 0
LEARNING_RATE, MOMENTUM = 0.01, 0.9


@dataclass(frozen=True, slots=True)
class Workload:
    """A round: `cohort` of `users` take `steps` steps of plain SGD with momentum on their own samples.

    Attributes:
        name: display name.
        model, shape, classes: the model, its inputs and outputs.
        users, cohort: all users, and those of a round.
        samples, batch: of one user; a user passes over its samples once.
    """

    name: str
    model: str
    shape: tuple[int, ...]
    classes: int
    users: int
    cohort: int
    samples: int
    batch: int

    @property
    def steps(self) -> int:
        """Local steps of a user in a round."""
        return self.samples // self.batch


SMALL = Workload("small CNN, 50 of 1,000 users", "small_cnn", (3, 32, 32), 10, 1000, 50, 50, 10)
LEAF = Workload("LEAF CNN, 64 devices", "leaf_cnn", (1, 28, 28), 62, 64, 64, 250, 50)
WORKLOADS = {"small_cnn": SMALL, "leaf_cnn": LEAF}


def build_module(workload: Workload) -> nn.Module:
    """The model, with the same weights in every system."""
    torch.manual_seed(SEED)
    return model_builder(workload.model)(workload.shape, workload.classes)


def make_images(workload: Workload) -> tuple[Tensor, Tensor]:
    """Random images and targets of all users, in the order of the users."""
    draw = np.random.default_rng(SEED)
    count = workload.users * workload.samples
    images = draw.standard_normal((count, *workload.shape), dtype=np.float32)
    return torch.from_numpy(images), torch.from_numpy(draw.integers(0, workload.classes, count))


class RaceLink:
    """A worker's end of the connection to the race, over a Unix socket."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def report(self, seconds: float) -> None:
        """Says how long the round took."""
        self._socket.sendall(f"{seconds}\n".encode())

    def wait_for_turn(self) -> bool:
        """Waits until another round is wanted; False when the race is over."""
        return bool(self._lines.readline())


def to_argument(workload: Workload) -> str:
    """The workload as one argument of a command."""
    return json.dumps(asdict(workload))


def from_argument(argument: str) -> Workload:
    """The reverse of `to_argument`."""
    values = json.loads(argument)
    return Workload(**values | {"shape": tuple(values["shape"])})
