"""What comes out of a global round: values only, on their way from the loop to the log."""

from dataclasses import dataclass

from cfel.runlog import PlanTable, RoundRecord
from cfel.simulation.state import RunState


@dataclass(frozen=True, slots=True, eq=False)
class RoundOutcome:
    """A finished global round: its line of the log, its plans, and the state to go on from."""

    record: RoundRecord
    plans: PlanTable
    state: RunState
