"""The list of revoked certificates, with faults: revoked ones stay revoked, and the reason is logged."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cfel.deployment.security.certificates import issue, make_authority
from cfel.deployment.security.identity import Authenticator, Identity
from cfel.deployment.security.revocations import Revocations
from cfel.errors import RejectedError


def test_a_bad_line_is_named_and_the_last_good_list_stays(tmp_path: Path) -> None:
    problems: list[str] = []
    path = tmp_path / "revoked.txt"
    revoked = Revocations(path, problems.append)
    assert 0xAB not in revoked
    path.write_text("ab\n\n")
    assert 0xAB in revoked
    path.write_text("cd\nnot a number\n")
    assert 0xAB in revoked
    assert 0xCD in revoked
    assert 0xEF not in revoked
    assert problems == ["revoked.txt, line 2: 'not a number' is not a serial number"]
    path.write_text("cd\n")
    assert 0xAB not in revoked
    assert 0xCD in revoked
    assert len(problems) == 1


def test_a_missing_or_invalid_list_readmits_no_certificate(tmp_path: Path) -> None:
    problems: list[str] = []
    path = tmp_path / "revoked.txt"
    path.write_text("ab\n")
    revoked = Revocations(path, problems.append)
    assert 0xAB in revoked
    path.unlink()
    assert 0xAB in revoked
    assert 0xAB in revoked
    path.write_bytes(os.urandom(64) + b"\xff")
    assert 0xAB in revoked
    path.unlink()
    path.mkdir()
    assert 0xAB in revoked
    assert problems[0].startswith("revoked.txt: the previous list stays in force: No such file")
    assert problems[-1].startswith("revoked.txt: the previous list stays in force: cannot read ")
    assert problems[-1].endswith("revoked.txt: Is a directory")


def test_a_certificate_that_expires_is_turned_away_however_old_the_connection(tmp_path: Path) -> None:
    """Valid for one hour from noon: let in at 12:59, not at 13:01."""
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    make_authority(tmp_path, noon)
    issue(tmp_path, Identity("device", 3), 1.0, now=noon)
    shown = (tmp_path / "device-3.pem").read_bytes()
    times = [noon + timedelta(minutes=59), noon + timedelta(minutes=61)]
    authenticator = Authenticator(frozenset(), lambda: times.pop(0))
    assert authenticator.identify(shown) == Identity("device", 3)
    with pytest.raises(RejectedError, match="device-3 expired at 2030-01-01 13"):
        authenticator.identify(shown)
