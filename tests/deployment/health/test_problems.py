"""What is said to be wrong, and when."""

import re

from cfel.deployment.health.problems import Absence, InTouch, Stall, list_nodes
from tests.support.clock import Clock


def test_in_touch() -> None:
    assert InTouch(3, 2, ()).describe() == ""
    one = InTouch(3, 2, (2,))
    assert one.has_majority
    assert one.describe() == "not in touch: edge-2; the others continue without"
    two = InTouch(3, 2, (1, 2))
    assert not two.has_majority
    assert two.describe().startswith("no majority: 1 of 3 edge servers are in touch, 2 are needed")
    assert "edge-1, edge-2" in two.describe()


def test_a_short_absence_is_no_problem() -> None:
    clock = Clock()
    absence = Absence(5.0, "nobody", clock)
    clock.seconds = 5.0
    assert absence.describe(is_there=False) == ""
    clock.seconds = 5.1
    assert absence.describe(is_there=False) == "nobody"
    assert absence.describe(is_there=True) == ""


def test_a_run_that_makes_no_progress_says_so() -> None:
    """After 30 s; the text stays the same while it lasts."""
    clock = Clock()
    stall = Stall(clock)
    assert stall.describe(1, "training", [3]) == ""
    clock.seconds = 30.0
    assert stall.describe(1, "training", [3]) == ""
    clock.seconds = 31.0
    words = stall.describe(1, "training", [3])
    assert re.fullmatch(r"no progress since \d\d:\d\d:\d\d UTC: training, waits for device-3", words)
    clock.seconds = 300.0
    assert stall.describe(1, "training", [3]) == words
    assert stall.describe(2, "gossip", []) == ""


def test_slow_rounds_are_not_stalled() -> None:
    """A step of 100 s has been seen, so one of 200 s is not remarkable, and one of 301 s is."""
    clock = Clock()
    stall = Stall(clock)
    stall.describe(1, "", [])
    clock.seconds = 100.0
    stall.describe(2, "", [])
    clock.seconds = 300.0
    assert stall.describe(2, "training", []) == ""
    clock.seconds = 401.0
    assert stall.describe(2, "training", []).endswith("training")


def test_lists_are_short() -> None:
    assert list_nodes("device", range(2)) == "device-0, device-1"
    assert list_nodes("device", range(10)).endswith("device-7 and 2 more")
