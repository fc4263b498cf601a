"""When a run is over, and which of its rounds are evaluated.

Decided here for simulator and coordinator, so that both end after the same round. What `rounds.stop` means is
documented in docs/reference/experiment.md.
"""

from cfel.control.caps import Budget, Rounds
from cfel.control.setting import Setting
from cfel.cost import Ledger
from cfel.rounds.kernel import ControlState
from cfel.rounds.parameters import SimulationParameters
from cfel.runlog import RoundRecord


def is_over(rounds: Rounds, budget: Budget, record: RoundRecord) -> bool:
    """Whether a run ends with this round: all rounds done, a budget used up, or the target reached.

    Args:
        rounds: φ, and when to stop.
        budget: of the run.
        record: of its last finished round.
    """
    if record.round >= rounds.global_rounds or _stops_at_budget(rounds, budget, record):
        return True
    # A round that was not evaluated cannot reach the target; the run continues until one is.
    if rounds.stop != "target" or rounds.target is None or record.accuracy is None:
        return False
    return record.accuracy >= rounds.target


def is_evaluated(setting: Setting, parameters: SimulationParameters, control: ControlState) -> bool:
    """Whether the round just closed is evaluated: every so often, and the last one always."""
    rounds, ledger = setting.rounds, control.ledger(parameters)
    # Whether a target is reached is known only after evaluation, so `is_over` cannot be asked here.
    last = control.rounds_done >= rounds.global_rounds or _stops_at_budget(rounds, setting.budget, ledger)
    return last or control.rounds_done % parameters.evaluate_every == 0


def _stops_at_budget(rounds: Rounds, budget: Budget, spent: Ledger | RoundRecord) -> bool:
    used_up = spent.seconds >= budget.seconds or spent.joules >= budget.joules
    return rounds.stop == "budget" and used_up
