"""What one member may ask at once; others do not notice."""

from typing import Any

import pytest

from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.limits import MOST_OPEN_CALLS, BusyError, Turnstile
from cfel.errors import InputError

ONE, OTHER = Identity("device", 1), Identity("device", 2)


class Clock:
    """Stands still unless moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.seconds


def call(turnstile: Turnstile, who: Identity, times: int = 1) -> None:
    for _ in range(times):
        with turnstile.visit(who):
            pass


def test_twice_the_rate_at_once_then_the_rate() -> None:
    """5 a second: ten at once, and after 0.4 s two more."""
    clock = Clock()
    turnstile = Turnstile(5.0, 100, clock)
    call(turnstile, ONE, 10)
    with pytest.raises(BusyError, match="more than 5 calls a second"):
        call(turnstile, ONE)
    call(turnstile, OTHER, 10)
    clock.seconds = 0.4
    call(turnstile, ONE, 2)
    with pytest.raises(BusyError):
        call(turnstile, ONE)
    clock.seconds = 1000.0
    call(turnstile, ONE, 10)
    with pytest.raises(BusyError):
        call(turnstile, ONE)


def test_bytes_in_flight_one_body_of_any_size_and_more_up_to_the_limit() -> None:
    turnstile = Turnstile(1000.0, 100, Clock())
    with turnstile.visit(ONE) as large:
        large.brings(500)
        with turnstile.visit(ONE) as more, pytest.raises(BusyError, match="more than 100 bytes in flight"):
            more.brings(1)
        with turnstile.visit(OTHER) as others:
            others.brings(60)
            with turnstile.visit(OTHER) as second:
                second.brings(40)
    with turnstile.visit(ONE) as again:
        again.brings(500)


def test_open_calls_are_counted_until_they_end() -> None:
    turnstile = Turnstile(1000.0, 100, Clock())
    visits = [turnstile.visit(ONE) for _ in range(MOST_OPEN_CALLS)]
    for visit in visits:
        visit.__enter__()
    with pytest.raises(BusyError, match="128 calls at a time"):
        call(turnstile, ONE)
    visits[0].__exit__(None, None, None)
    call(turnstile, ONE)


@pytest.mark.parametrize(
    "name",
    ["receive_seconds", "least_bytes_per_second", "calls_per_second", "bytes_in_flight", "linger_seconds"],
)
def test_limits_of_the_experiment_file_are_checked(name: str) -> None:
    negative: dict[str, Any] = {name: -1}
    with pytest.raises(InputError, match=rf"deployment\.{name}"):
        DeploymentParameters(**negative)
