"""What an edge server and a device exchange, and a device's state: frozen values without behaviour.

How they travel is up to the drivers (`simulation`, `deployment`). `device` computes with them.
"""

import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from torch import Tensor

from cfel.errors import InputError
from cfel.learning.compressors import Update
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel, Tensors
from cfel.seeding import make_generator, make_key

ModelOrName = TypeVar("ModelOrName")
OtherModel = TypeVar("OtherModel")


@dataclass(frozen=True, slots=True)
class Order(Generic[ModelOrName]):
    """What an edge server asks of a device in one edge round; a `DeviceOrder` once it has its model."""

    seed: int  # the experiment's
    global_round: int  # l, from 0
    edge_round: int  # r, from 0
    device: int  # the device's id, from 0
    rho: float  # share of iterations to take, or of the computing of all of them, in [0, 1]
    theta: float  # share of a full upload, in (0, 1]
    tau: int  # local iterations, ≥ 1
    # The edge model to start from; while an order travels, the model's name: its SHA-256, or its place among
    # the models of a Ray job.
    model: ModelOrName
    rate: float = 1.0  # share of `local.learning_rate` to use, ≥ 0
    # Share of its full clock that the device is planned to run at, in (0, 1]; only the emulation of a fleet
    # carries it out.
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.rho <= 1:
            raise InputError(f"rho of device {self.device}: must lie in [0, 1], got {self.rho}")
        if not 0 < self.theta <= 1:
            raise InputError(f"theta of device {self.device}: must lie in (0, 1], got {self.theta}")
        if not 0 <= self.rate < math.inf:
            raise InputError(f"rate of device {self.device}: must be a finite number ≥ 0, got {self.rate}")
        if not 0 < self.speed <= 1:
            raise InputError(f"speed of device {self.device}: must lie in (0, 1], got {self.speed}")
        if self.tau < 1:
            raise InputError(f"tau of device {self.device}: must be at least 1, got {self.tau}")

    @property
    def round(self) -> tuple[int, int]:
        """Global round and edge round, both from 0."""
        return self.global_round, self.edge_round

    def with_model(self, model: OtherModel) -> "Order[OtherModel]":
        """The same order with its model in another form."""
        at, asked = (self.seed, *self.round, self.device), (self.rho, self.theta, self.tau)
        return Order(*at, *asked, model, self.rate, self.speed)

    def stream(self, purpose: str, *index: int) -> np.random.Generator:
        """The device's random stream in this edge round, for one purpose and, if given, one iteration."""
        return make_generator(self.seed, purpose, self.global_round, self.edge_round, self.device, *index)

    def key(self, purpose: str, *index: int) -> int:
        """The key of the stream for one purpose and, if given, one iteration."""
        return make_key(self.seed, purpose, self.global_round, self.edge_round, self.device, *index)


DeviceOrder = Order[FlatModel]
"""An order that can be carried out."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """What a device keeps from one edge round to the next; empty for a new device."""

    # What its algorithm remembers, by name, e.g. `momentum`; zero where there is no such name.
    memory: Tensors = field(default_factory=dict)
    residual: Tensor | None = None  # what compression has dropped so far (error feedback), or None for zero
    estimates: Estimates | None = None  # the last σ² and G², or None before the first


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What a device sends to its edge server after its local iterations."""

    device: int  # its id
    update: Update  # the compressed difference to the edge model
    buffers: Tensor  # its batch-norm statistics, uncompressed
    estimates: Estimates | None  # its last σ², G² and kept energy, or None before the first
    steps: int  # local iterations taken
    loss: float  # mean training loss over these, NaN if there were none
    samples: int  # number of samples that the device holds
