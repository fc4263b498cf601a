"""Losses of a federation: what is said about a round, at its end and later, becomes one entry."""

import pytest

from cfel.errors import InputError
from cfel.membership import RoundLoss, merge_losses


def test_what_devices_say_later_is_added() -> None:
    """Devices 4 and 5 were lost in edge round 3.1; 4 had trained. Device 2 was late, which is no loss."""
    at_the_end = RoundLoss(3, 1, absent=(7,), lost=(5, 4))
    gossip = RoundLoss(3, 2, step=0, rows=((1.0, 0.0), (0.0, 1.0)), mixed=(0,))
    later = [RoundLoss(3, 1, trained=(4,)), RoundLoss(3, 0, trained=(2,))]
    assert merge_losses([gossip, at_the_end, *later]) == (
        RoundLoss(3, 1, absent=(7,), lost=(4, 5), trained=(4,)),
        gossip,
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"round": 0}, "fleet.losses.round = 0"),
        ({"lost": (-1,)}, "fleet.losses.lost = -1"),
        ({"step": 0}, "fleet.losses.rows"),
        ({"step": 0, "rows": ((1.0, 0.0),)}, "fleet.losses.rows"),
        ({"rows": ((1.0,),)}, "fleet.losses.rows"),
    ],
)
def test_wrong_entries(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        RoundLoss(**{"round": 1, "edge_round": 0, **fields})  # type: ignore[arg-type]
