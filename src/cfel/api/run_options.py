"""How runs are executed, whatever the experiment: progress, interruption, resuming, the cluster."""

from collections.abc import Callable
from dataclasses import dataclass

from cfel.runlog import RoundRecord

OnRound = Callable[[str, RoundRecord], None]
"""Called after every round, with the name of the run and the round's record."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to execute runs.

    Attributes:
        command: the command line, kept in `environment.json`.
        resume: continue runs that already exist.
        on_round: called after every round.
        interrupted: checked after every round; true ends the run there, with a checkpoint.
        notify: receives one-line messages for the user.
        ray_address: the cluster to use with engine "ray"; None starts one on this machine.
    """

    command: tuple[str, ...] = ()
    resume: bool = False
    on_round: OnRound | None = None
    interrupted: Callable[[], bool] = lambda: False
    notify: Callable[[str], None] = lambda _: None
    ray_address: str | None = None
