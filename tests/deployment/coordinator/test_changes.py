"""Changes that wait for the end of a round."""

import pytest

from cfel.deployment.coordinator.changes import PendingChanges, add_changes
from cfel.errors import RejectedError
from cfel.membership import FleetChange
from tests.deployment.conftest import deployed

ADD = FleetChange(1, "add edge", edge=3, ticket="first")
AGAIN = FleetChange(1, "add edge", edge=3, ticket="second")
RESUME = FleetChange(1, "resume", ticket="third")


def test_a_change_that_is_not_possible_any_more_holds_up_no_other() -> None:
    """Two operators add the same edge server; from round 2 on it is a member, so the second is refused.

    A federation that was paused could not be resumed: each change was refused for what was wrong with the
    one that waited.
    """
    world, pending = deployed().build_world(), PendingChanges()
    for change in (ADD, AGAIN):
        pending.submit(world, change, rounds_done=0)
    world = add_changes(world, [FleetChange(2, "add edge", edge=3, ticket="first")])
    pending.submit(world, RESUME, rounds_done=1)
    assert pending.waiting == [RESUME]
    with pytest.raises(RejectedError, match="add edge-3: edge 3 is a member already"):
        pending.submit(world, AGAIN, rounds_done=1)
