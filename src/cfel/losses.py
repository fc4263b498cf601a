"""What a federation lost in a round, as its log tells it and the simulator repeats it.

Devices and edge servers that were cut off, killed or too late are missing in a round. With the same members
(`membership`) and the same losses, the simulator makes the same plans and the same models.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cfel import validation
from cfel.errors import InputError
from cfel.wording import show

Rows = tuple[tuple[float, ...], ...]
Place = tuple[int, int, int | None]
"""Global round from 1, edge round from 0, and gossip step from 0 or None."""


@dataclass(frozen=True, slots=True)
class RoundLoss:
    """The losses of an edge round or of a gossip step: an entry of the experiment file's `fleet.losses`.

    Attributes:
        round: global round, from 1.
        edge_round: edge round, from 0; of a gossip step, how many edge rounds were done before it.
        absent: devices that were not asked, though the conditions of the fleet had them.
        lost: devices that were asked and whose update was not used.
        trained: those of them that had trained: what they remember has changed.
        step: the gossip step, from 0; None for an edge round.
        rows: mixing weights of the step, row by row.
        mixed: edge servers that averaged their models with them; the others kept theirs.
    """

    round: int
    edge_round: int
    absent: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    trained: tuple[int, ...] = ()
    step: int | None = None
    rows: Rows = ()
    mixed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        validation.check_whole("fleet.losses.round", self.round, least=1)
        validation.check_whole("fleet.losses.edge_round", self.edge_round, least=0)
        for name in ("absent", "lost", "trained", "mixed"):
            numbers = validation.check_list(f"fleet.losses.{name}", list(getattr(self, name)))
            checked = {validation.check_whole(f"fleet.losses.{name}", n, least=0) for n in numbers}
            object.__setattr__(self, name, tuple(sorted(checked)))
        if self.step is not None:
            validation.check_whole("fleet.losses.step", self.step, least=0)
        rows = tuple(tuple(float(weight) for weight in row) for row in self.rows)
        if bool(rows) != (self.step is not None) or any(len(row) != len(rows) for row in rows):
            raise InputError(f"fleet.losses.rows = {show(self.rows)}: a gossip step has as many as columns")
        object.__setattr__(self, "rows", rows)

    @property
    def place(self) -> Place:
        """Where in the run."""
        return self.round, self.edge_round, self.step


def merge_losses(losses: Iterable[RoundLoss]) -> tuple[RoundLoss, ...]:
    """One loss per place: what devices say later about a round is added to what was known at its end."""
    found: dict[Place, RoundLoss] = {}
    for each in losses:
        known = found.get(each.place, each)
        found[each.place] = replace(
            known,
            absent=(*known.absent, *each.absent),
            lost=(*known.lost, *each.lost),
            trained=(*known.trained, *each.trained),
        )
    # A device that was late says so, too; the simulator finds that out by itself.
    kept = (replace(each, trained=tuple(set(each.trained) & set(each.lost))) for each in found.values())
    said = (each for each in kept if each.absent or each.lost or each.rows)
    return tuple(sorted(said, key=lambda each: (each.round, each.edge_round, each.step is not None)))
