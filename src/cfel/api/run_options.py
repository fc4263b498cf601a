"""How runs are carried out, whatever the experiment."""

from collections.abc import Callable
from dataclasses import dataclass

from cfel.runlog import RoundRecord

OnRound = Callable[[str, RoundRecord], None]
"""Told the run's name and every finished round."""


@dataclass(frozen=True, slots=True)
class Doing:
    """How runs are carried out, whatever the experiment.

    Attributes:
        command: what was typed, for the record.
        resume: go on with runs that exist already.
        on_round: told of every round.
        interrupted: asked after every round; true ends the run there, with a checkpoint.
        say: told what a user should know, in a line.
        ray_address: of the cluster, where the engine is "ray"; None starts one on this machine.
    """

    command: tuple[str, ...] = ()
    resume: bool = False
    on_round: OnRound | None = None
    interrupted: Callable[[], bool] = lambda: False
    say: Callable[[str], None] = lambda _: None
    ray_address: str | None = None
