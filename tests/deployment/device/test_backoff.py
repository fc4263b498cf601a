"""Waiting for an edge server that does not answer."""

import logging

import pytest

from cfel.deployment.device.agent import MOST_SECONDS, Backoff


def test_waits_grow_up_to_a_limit_and_start_again() -> None:
    """0.3 s and half as much more each time, up to 5 s; half of it at least, all of it at most."""
    longest = Backoff("edge-0", lambda: 0.0, lambda: 1.0)
    assert [longest.next_seconds() for _ in range(3)] == pytest.approx([0.3, 0.45, 0.675])
    assert [longest.next_seconds() for _ in range(10)][-1] == MOST_SECONDS
    longest.reset()
    assert longest.next_seconds() == pytest.approx(0.3)
    assert Backoff("edge-0", lambda: 0.0, lambda: 0.0).next_seconds() == pytest.approx(0.15)


def test_a_long_silence_is_logged_each_time_it_doubles(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    backoff = Backoff("edge-0", lambda: now, lambda: 0.5)
    with caplog.at_level(logging.WARNING):
        for second in range(0, 130, 5):
            now = float(second)
            backoff.next_seconds()
        backoff.reset()
    assert [record.getMessage()[:40] for record in caplog.records] == [
        "edge-0 has not answered for 30 s; a devi",
        "edge-0 has not answered for 60 s; a devi",
        "edge-0 has not answered for 120 s; a dev",
        "edge-0 answers again after 125 s",
    ]
