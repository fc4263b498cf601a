"""From a run's total budgets to the caps of the next edge round.

P2 assumes that every remaining edge round will cost what this one costs. Solved for this round, its time
constraint (cons:time) leaves cluster i

    [(T~ − spent) / (φ − l) − elapsed_i − backhaul_i] / (q − r)

seconds. Its energy constraint (cons:energy) leaves all devices together the same expression in joules,
without the backhaul. A cap is negative where more has been spent than planned.
"""

from dataclasses import dataclass, field

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray
from cfel.cost import Ledger
from cfel.errors import InputError, unknown_name

STOPS = ("rounds", "budget", "target")

MAX_EDGE_ROUNDS = 10**6
"""Edge rounds of a whole run; a dry run of more would take hours."""

MAX_LOCAL_STEPS = 10**6


@dataclass(frozen=True, slots=True)
class Rounds:
    """The experiment file's `[rounds]`: how long a run is.

    Attributes:
        global_rounds: φ, global rounds, ≥ 1.
        edge_rounds: q, edge rounds per global round, ≥ 1.
        local_steps: τ, local iterations per edge round, ≥ 1.
        stop: after all "rounds", when a "budget" is used up, or when the "target" is reached. With a
            budget or a target, `global` is an upper limit: plans are for the rounds that the budget allows.
        target: accuracy to reach; tables also report the costs up to it.
    """

    # `global` is a keyword in Python, so the file's short keys cannot be the fields' names.
    global_rounds: int = field(metadata={"key": "global"})
    edge_rounds: int = field(default=5, metadata={"key": "edge"})
    local_steps: int = field(default=5, metadata={"key": "local"})
    stop: str = "rounds"
    target: float | None = None

    def __post_init__(self) -> None:
        validation.check_whole("rounds.global", self.global_rounds, least=1, most=MAX_EDGE_ROUNDS)
        validation.check_whole("rounds.edge", self.edge_rounds, least=1, most=MAX_EDGE_ROUNDS)
        validation.check_whole("rounds.local", self.local_steps, least=1, most=MAX_LOCAL_STEPS)
        if self.global_rounds * self.edge_rounds > MAX_EDGE_ROUNDS:
            raise InputError(
                f"rounds.global = {self.global_rounds} times rounds.edge = {self.edge_rounds}: must be at "
                f"most {MAX_EDGE_ROUNDS:,} edge rounds in all"
            )
        if self.stop not in STOPS:
            raise InputError(unknown_name("rounds.stop", self.stop, STOPS))
        if self.target is not None:
            validation.check_number("rounds.target", self.target)
        elif self.stop == "target":
            raise InputError("rounds.stop = 'target': needs rounds.target, the accuracy to reach")

    def edge_rounds_left(self, global_round: int, edge_round: int) -> int:
        """Edge rounds from this one to the end of the run."""
        return (self.global_rounds - global_round) * self.edge_rounds - edge_round


@dataclass(frozen=True, slots=True)
class Budget:
    """What a whole run may use: T~ in seconds and E~ in joules, > 0; infinite for no limit."""

    seconds: float = np.inf
    joules: float = np.inf

    def __post_init__(self) -> None:
        # Zero is not allowed: it would mean that no round may run, and is usually a mistake for "no limit".
        validation.check_number("budget.seconds", self.seconds, above=0, finite=False)
        validation.check_number("budget.joules", self.joules, above=0, finite=False)

    def take_share(self, share: float) -> "Budget":
        """Returns a share of this budget."""
        return Budget(self.seconds * share, self.joules * share)


def round_caps(
    budget: Budget,
    ledger: Ledger,
    rounds: Rounds,
    global_round: int,
    edge_round: int,
    gossip_seconds_left: FloatArray,
) -> tuple[FloatArray, float]:
    """Seconds per cluster and joules for all devices in edge round r of global round l.

    Args:
        budget: of the whole run.
        ledger: what has been spent.
        rounds: φ, q and τ.
        global_round: l, 0 … φ − 1.
        edge_round: r, 0 … q − 1.
        gossip_seconds_left: what gossip will still take in this global round, per cluster.
    """
    if not (0 <= global_round < rounds.global_rounds and 0 <= edge_round < rounds.edge_rounds):
        last = f"({rounds.global_rounds - 1}, {rounds.edge_rounds - 1})"
        raise InputError(f"round ({global_round}, {edge_round}): must lie within (0, 0) … {last}")
    # What is left is shared evenly: an overspent round lowers the caps of all that follow, not only of the
    # next.
    rounds_left, edge_rounds_left = rounds.global_rounds - global_round, rounds.edge_rounds - edge_round
    elapsed = np.asarray(ledger.elapsed_seconds)
    seconds = (budget.seconds - ledger.seconds) / rounds_left - elapsed - gossip_seconds_left
    joules = (budget.joules - ledger.joules) / rounds_left - ledger.elapsed_joules
    return seconds / edge_rounds_left, joules / edge_rounds_left
