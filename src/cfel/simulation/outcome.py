"""What comes out of rounds: values only, on their way from the loop to the log."""

from dataclasses import dataclass
from typing import NamedTuple

from cfel.control.problem import FloatArray
from cfel.control.scheme import RoundPlan
from cfel.cost import EdgeRoundCost
from cfel.runlog import PlanTable, RoundRecord
from cfel.simulation.state import RunState
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


@dataclass(frozen=True, slots=True, eq=False)
class RoundOutcome:
    """A finished global round: its line of the log, its plans, and the state to go on from."""

    record: RoundRecord
    plans: PlanTable
    state: RunState
