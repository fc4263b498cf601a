"""Changes of the fleet that operators, or edge servers for their devices, have asked the coordinator for.

They wait here, in memory, for the end of a global round: the coordinator adds them to its record, and they
hold once a majority has stored it. If the coordinator dies before that, its successor knows nothing of them.
So those who asked ask again until the log has their change; its ticket makes it count once.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from cfel.errors import InputError, RejectedError
from cfel.membership import VOTER_CHANGES, FleetChange
from cfel.runlog import RoundRecord
from cfel.world import World

_LOG = logging.getLogger(__name__)


class PendingChanges:
    """The changes that wait for the end of a global round.

    Attributes:
        waiting: in the order in which they came.
    """

    def __init__(self) -> None:
        self.waiting: list[FleetChange] = []
        self._refused: dict[str, str] = {}

    def submit(self, world: World, change: FleetChange, rounds_done: int) -> None:
        """Adds a change, unless it waits already.

        Raises:
            RejectedError: it is not possible; the message says why.
        """
        self.forget(world.changes)
        # One that waits and is not possible any more is refused itself, and is no reason to refuse this one.
        number = rounds_done + 2
        ahead = self.take(world, number)
        self.forget(())
        if change.ticket in self._refused:
            raise RejectedError(self._refused[change.ticket])
        if any(each.ticket == change.ticket for each in self.waiting):
            return
        try:
            add_changes(world if change.what in VOTER_CHANGES else ahead, [replace(change, round=number)])
        except InputError as error:
            raise RejectedError(str(error)) from error
        _LOG.info("asked for: %s", change.describe())
        self.waiting.append(change)

    def is_resumed(self) -> bool:
        """Whether somebody has asked for the end of a pause."""
        return any(each.what == "resume" for each in self.waiting)

    def drop_moves(self, gone: Collection[int]) -> None:
        """Drops devices' moves away from edge servers that are back."""
        for change in self.waiting:
            if change.home is not None and change.home != change.edge and change.home not in gone:
                self._refused[change.ticket] = f"edge-{change.home} is back"
        self.forget(())

    def take(self, world: World, number: int) -> World:
        """The world in which the changes that wait hold from a global round (from 1) on.

        Those that are not possible any more are refused; of several edge servers that come or go, the first
        one is taken and the others keep waiting.
        """
        for change in _one_voter(self.waiting):
            try:
                world = add_changes(world, [replace(change, round=number)])
            except InputError as error:
                _LOG.warning("not possible any more: %s", error)
                self._refused[change.ticket] = str(error)
        return world

    def forget(self, changes: Sequence[FleetChange]) -> None:
        """Drops those that hold now, and those that were refused."""
        done = {each.ticket for each in changes} | self._refused.keys()
        self.waiting = [each for each in self.waiting if each.ticket not in done]


def _one_voter(changes: Sequence[FleetChange]) -> list[FleetChange]:
    """The changes without all but the first that add or remove an edge server."""
    first = next((each for each in changes if each.what in VOTER_CHANGES), None)
    return [each for each in changes if each is first or each.what not in VOTER_CHANGES]


def add_changes(world: World, changes: Sequence[FleetChange]) -> World:
    """The world with more changes; those of one round keep their order.

    Raises:
        InputError: one is not possible.
    """
    return world.with_changes(sorted((*world.changes, *changes), key=lambda each: each.round))


def adopt_records(world: World, records: Sequence[RoundRecord]) -> World:
    """The world with the changes that were recorded: they replace what was planned for their rounds."""
    decided = {record.round + 1 for record in records}
    kept = [each for each in world.changes if each.round not in decided]
    recorded = [change for record in records for change in record.changes]
    return world.with_changes(sorted((*kept, *recorded), key=lambda each: each.round))
