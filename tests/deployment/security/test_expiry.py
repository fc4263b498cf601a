"""Warnings before a certificate expires."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cfel.deployment.security.certificates import issue, make_authority
from cfel.deployment.security.expiry import Validity, watch_expiry
from cfel.deployment.security.identity import Identity

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)


def make(directory: Path, hours: float) -> Validity:
    make_authority(directory, BEGIN)
    issue(directory, Identity("edge", 0), hours, now=BEGIN)
    return Validity.read((directory / "edge-0.pem").read_bytes())


def test_it_warns_days_before(tmp_path: Path) -> None:
    """Thirty days: from seven days before the end."""
    validity = make(tmp_path, 720)
    assert validity.end == BEGIN + timedelta(days=30)
    assert validity.describe(BEGIN + timedelta(days=22.9)) == ""
    words = validity.describe(BEGIN + timedelta(days=23.1))
    assert words == (
        "the certificate of edge-0 expires on 2030-01-31 00:00 UTC: renew it with "
        "`cfel certs --renew edge-0` and copy it to this node; no restart is needed"
    )
    assert "edge-0 expired on" in validity.describe(BEGIN + timedelta(days=31))


def test_a_short_lifetime_has_a_short_notice(tmp_path: Path) -> None:
    """Three days, as `cfel up` issues them: in the last quarter."""
    validity = make(tmp_path, 72)
    assert validity.describe(BEGIN + timedelta(hours=53)) == ""
    assert validity.describe(BEGIN + timedelta(hours=55))


def test_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    validity = make(tmp_path, 72)

    async def play(at: datetime) -> None:
        async with watch_expiry(lambda: validity, lambda: at):
            await asyncio.sleep(0.01)

    with caplog.at_level(logging.WARNING):
        asyncio.run(play(BEGIN))
        assert not caplog.records
        asyncio.run(play(BEGIN + timedelta(hours=70)))
    assert "expires on 2030-01-04" in caplog.text
