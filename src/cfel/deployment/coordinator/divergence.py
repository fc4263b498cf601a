"""Notices that nobody can train any more, because training has diverged.

One device that diverges does not end the run of all: its data or its machine may be the cause, and nothing it
says about itself is proven. So a run ends only if all that were asked diverged, and they are a majority.
"""

from collections.abc import Sequence

from cfel.deployment.positions import Position
from cfel.deployment.protocol.coordinator_requests import EstimateAnswer, PlanAnswer
from cfel.errors import AllDivergedError
from cfel.world import World


class Divergence:
    """The devices that have diverged since a device last answered an order."""

    def __init__(self) -> None:
        self._diverged: set[int] = set()

    def is_total(
        self, asked: set[int], answers: Sequence[EstimateAnswer | PlanAnswer], there: set[int]
    ) -> bool:
        """Whether no device can train.

        Args:
            asked: devices that were asked in this round.
            answers: of the edge servers.
            there: devices that may be asked in the next one.
        """
        if any(answer.devices for answer in answers):
            self._diverged = set()
            return False
        diverged = {device for answer in answers for device in answer.diverged}
        self._diverged |= diverged
        # With sampled devices it may take a few rounds; one that is merely late may answer in the next.
        is_majority = 2 * len(self._diverged & there) > len(there)
        return bool(diverged) and asked & there <= diverged and is_majority


def describe_all_diverged(world: World, at: Position) -> AllDivergedError:
    """The error that ends a run at a position."""
    return AllDivergedError(
        f"global round {at[0] + 1}: training diverged at all devices that were asked, so nothing is left to "
        f"learn from; most likely local.learning_rate = {world.training.local.learning_rate:g} is too large"
    )
