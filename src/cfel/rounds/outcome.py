"""What comes out of an edge round, and what a run has spent: values only."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cfel.arrays import FloatArray
from cfel.control.scheme import RoundPlan, State
from cfel.cost import EdgeRoundCost, Ledger
from cfel.system import Conditions


class Work(NamedTuple):
    """What one device did in an edge round."""

    device: int
    steps: int
    wire_bits: int
    loss: float


@dataclass(frozen=True, slots=True, eq=False)
class EdgeRoundOutcome:
    """What happened in one edge round.

    Attributes:
        conditions, plan: what was met and what was asked.
        steps, wire_bits: per device, bits as they are charged; 0 for those who took no part.
        seconds, joules: per device, in the account the budget counts.
        expected, realised: cost of the edge round in both accounts.
        losses: training losses of the devices that took a step.
    """

    conditions: Conditions
    plan: RoundPlan
    steps: FloatArray
    wire_bits: FloatArray
    seconds: FloatArray
    joules: FloatArray
    expected: EdgeRoundCost
    realised: EdgeRoundCost
    losses: tuple[float, ...]


class Spent(Protocol):
    """What a run has come to, as far as plans and records depend on it."""

    @property
    def rounds_done(self) -> int:
        """Finished global rounds."""

    @property
    def scheme(self) -> State:
        """The scheme's state."""

    @property
    def expected(self) -> Ledger:
        """What was spent by the controller's account."""

    @property
    def realised(self) -> Ledger:
        """What was spent with the steps really taken."""

    @property
    def spent_joules(self) -> FloatArray:
        """Per device, in the account that the budget counts."""
