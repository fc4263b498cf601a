"""The ledger: what has been spent so far, as far as the caps of the next edge round depend on it.

A ledger is immutable: `after_edge_round` and `after_global_round` return a new one. It does not know the
budgets; those and the caps belong to `control`. It survives a round trip through JSON unchanged.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cfel import validation
from cfel.cost.rounds import EdgeRoundCost
from cfel.errors import InputError, unknown_name


@dataclass(frozen=True, slots=True)
class Ledger:
    """Time and energy spent.

    Attributes:
        seconds: makespans of the finished global rounds, summed.
        joules: energy of the finished global rounds.
        elapsed_seconds: per cluster, edge rounds of the current global round so far.
        elapsed_joules: energy of the current global round so far.
    """

    seconds: float
    joules: float
    elapsed_seconds: tuple[float, ...]
    elapsed_joules: float

    def __post_init__(self) -> None:
        for field in ("seconds", "joules", "elapsed_joules"):
            amount = validation.check_number(f"ledger.{field}", getattr(self, field), least=0)
            object.__setattr__(self, field, amount)
        elapsed = validation.check_floats("ledger.elapsed_seconds", self.elapsed_seconds, least=0)
        object.__setattr__(self, "elapsed_seconds", tuple(elapsed.tolist()))

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return len(self.elapsed_seconds)

    @property
    def total_joules(self) -> float:
        """Energy of finished rounds and of the current one."""
        return self.joules + self.elapsed_joules

    def to_dict(self) -> dict[str, Any]:
        """Returns plain numbers and lists; `from_dict` restores an equal ledger, also from JSON."""
        return {**asdict(self), "elapsed_seconds": list(self.elapsed_seconds)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Ledger":
        """Restores the ledger that `to_dict` wrote.

        Raises:
            InputError: a field is missing, unknown or not allowed.
        """
        allowed = cls.__dataclass_fields__
        for name in fields:
            if name not in allowed:
                raise InputError(unknown_name("ledger", name, allowed))
        # No defaults: a ledger that lost a field would let the next round use what is spent already.
        for name in allowed:
            if name not in fields:
                raise InputError(f"ledger.{name}: is missing")
        return cls(**fields)


def open_ledger(clusters: int) -> Ledger:
    """Opens a ledger with nothing spent."""
    return Ledger(0.0, 0.0, (0.0,) * validation.check_whole("clusters", clusters, least=1), 0.0)


def after_edge_round(ledger: Ledger, cost: EdgeRoundCost) -> Ledger:
    """Returns the ledger with one more edge round of the current global round."""
    seconds = validation.check_floats("cost.seconds", cost.seconds, length=ledger.clusters, least=0)
    elapsed = np.add(ledger.elapsed_seconds, seconds)
    return Ledger(ledger.seconds, ledger.joules, tuple(elapsed.tolist()), ledger.elapsed_joules + cost.joules)


def after_exchange(ledger: Ledger, exchange_seconds: ArrayLike) -> Ledger:
    """Returns the ledger after an exchange within a global round, which all clusters end at the same time.

    Args:
        ledger: after an edge round.
        exchange_seconds: per cluster.
    """
    exchange = validation.check_floats("exchange_seconds", exchange_seconds, length=ledger.clusters, least=0)
    # An exchange ends when the last model has arrived; no cluster starts its next edge round before that.
    latest = float(np.add(ledger.elapsed_seconds, exchange).max())
    return Ledger(ledger.seconds, ledger.joules, (latest,) * ledger.clusters, ledger.elapsed_joules)


def after_global_round(ledger: Ledger, exchange_seconds: ArrayLike, backhaul_joules: float = 0.0) -> Ledger:
    """Returns the ledger after the exchange that ends the global round, ready for the next.

    Args:
        ledger: after the last edge round.
        exchange_seconds: per cluster.
        backhaul_joules: of all exchanges of the global round, where they are charged.
    """
    exchange = validation.check_floats("exchange_seconds", exchange_seconds, length=ledger.clusters, least=0)
    makespan = float(np.add(ledger.elapsed_seconds, exchange).max())
    joules = ledger.total_joules + validation.check_number("backhaul_joules", backhaul_joules, least=0)
    return Ledger(ledger.seconds + makespan, joules, (0.0,) * ledger.clusters, 0.0)
