"""Which devices are there: being between two requests is not being lost."""

from cfel.deployment.health.presence import DevicePresence
from tests.support.clock import Clock


def test_a_device_between_two_requests_is_not_lost() -> None:
    """Lost after 10 s; rounds stop waiting at the same time."""
    clock = Clock()
    presence = DevicePresence((3, 4), 10.0, clock)
    assert 3 in presence
    assert 5 not in presence
    with presence.hold_request(3, "0.1"):
        assert presence.list_connected() == [3]
        clock.seconds = 60.0
        assert not presence.is_lost(3)
    assert presence.list_connected() == []
    clock.seconds = 69.0
    assert not presence.is_lost(3)
    clock.seconds = 71.0
    assert presence.is_lost(3)
    assert presence.is_gone(3)
    assert presence.version(3) == "0.1"
    assert presence.version(4) == ""


def test_one_that_never_came_is_lost_after_the_same_time() -> None:
    clock = Clock()
    presence = DevicePresence((0,), 10.0, clock)
    assert not presence.is_lost(0)
    clock.seconds = 11.0
    assert presence.is_lost(0)


def test_the_grace_period_is_not_shorter_than_a_reconnection() -> None:
    """Rounds need not wait at all, but the status gives a device 3 s."""
    clock = Clock()
    presence = DevicePresence((0,), 0.0, clock)
    clock.seconds = 2.0
    assert presence.is_gone(0)
    assert not presence.is_lost(0)


def test_a_second_process_differs_from_a_restart() -> None:
    """One overlap is a restart; three within a minute are two processes; a minute later it is forgotten."""
    clock = Clock()
    presence = DevicePresence((0,), 10.0, clock)
    with presence.hold_request(0, ""):
        for number in range(3):
            assert not presence.is_doubled(0), number
            with presence.hold_request(0, ""):
                clock.seconds += 10.0
        assert presence.is_doubled(0)
        clock.seconds += 60.0
        assert not presence.is_doubled(0)
