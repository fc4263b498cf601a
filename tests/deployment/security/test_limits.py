"""What one member may ask at once; others do not notice."""

from typing import Any

import pytest

from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.limits import MOST_OPEN_CALLS, BusyError, RateLimiter
from cfel.errors import InputError
from tests.support.clock import Clock

ONE, OTHER = Identity("device", 1), Identity("device", 2)


def call(limiter: RateLimiter, who: Identity, times: int = 1) -> None:
    for _ in range(times):
        with limiter.admit(who):
            pass


def test_twice_the_rate_at_once_then_the_rate() -> None:
    """5 a second: ten at once, and after 0.4 s two more."""
    clock = Clock()
    limiter = RateLimiter(5.0, 100, clock)
    call(limiter, ONE, 10)
    with pytest.raises(BusyError, match="more than 5 calls a second"):
        call(limiter, ONE)
    call(limiter, OTHER, 10)
    clock.seconds = 0.4
    call(limiter, ONE, 2)
    with pytest.raises(BusyError):
        call(limiter, ONE)
    clock.seconds = 1000.0
    call(limiter, ONE, 10)
    with pytest.raises(BusyError):
        call(limiter, ONE)


def test_bytes_in_flight_one_body_of_any_size_and_more_up_to_the_limit() -> None:
    limiter = RateLimiter(1000.0, 100, Clock())
    with limiter.admit(ONE) as large:
        large.add_body(500)
        with limiter.admit(ONE) as more, pytest.raises(BusyError, match="more than 100 bytes in flight"):
            more.add_body(1)
        with limiter.admit(OTHER) as others:
            others.add_body(60)
            with limiter.admit(OTHER) as second:
                second.add_body(40)
    with limiter.admit(ONE) as again:
        again.add_body(500)


def test_open_calls_are_counted_until_they_end() -> None:
    limiter = RateLimiter(1000.0, 100, Clock())
    calls = [limiter.admit(ONE) for _ in range(MOST_OPEN_CALLS)]
    for each in calls:
        each.__enter__()
    with pytest.raises(BusyError, match="128 calls at a time"):
        call(limiter, ONE)
    calls[0].__exit__(None, None, None)
    call(limiter, ONE)


@pytest.mark.parametrize(
    "name",
    ["receive_seconds", "least_bytes_per_second", "calls_per_second", "bytes_in_flight", "linger_seconds"],
)
def test_limits_of_the_experiment_file_are_checked(name: str) -> None:
    negative: dict[str, Any] = {name: -1}
    with pytest.raises(InputError, match=rf"deployment\.{name}"):
        DeploymentParameters(**negative)


def test_edge_servers_may_call_ten_times_as_often() -> None:
    limiter, edge = RateLimiter(5.0, 100, Clock()), Identity("edge", 1)
    call(limiter, edge, 100)
    with pytest.raises(BusyError, match="more than 50 calls a second"):
        call(limiter, edge)


def test_a_device_makes_far_fewer_calls_than_slow_a_federation_down() -> None:
    """200 a second of one device slowed a federation on two busy cores to a third."""
    assert DeploymentParameters().calls_per_second <= 50
