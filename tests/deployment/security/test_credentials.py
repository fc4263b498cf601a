"""A node's certificate files: what is checked, read again, revoked and about to expire."""

import asyncio
import logging
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cfel.deployment.security.certificates import AUTHORITY_DAYS, issue, make_authority
from cfel.deployment.security.credentials import (
    LOOK_SECONDS,
    SETTLE_SECONDS,
    CredentialFiles,
    Credentials,
    Revocations,
    Validity,
    read_credentials,
    watch_expiry,
)
from cfel.deployment.security.identity import Authenticator, Identity
from cfel.errors import CredentialsError, DeploymentError, RejectedError
from tests.support.clock import Clock

EDGE = Identity("edge", 0)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    make_authority(tmp_path / "authority")
    issue(tmp_path / "authority", EDGE, hours=1)
    shutil.copytree(tmp_path / "authority", tmp_path / "node")
    return tmp_path


def test_new_files_are_used_soon(made: Path) -> None:
    clock = Clock()
    files = CredentialFiles(made / "node", EDGE, clock)
    before = files.current()
    assert files.current() is before
    issue(made / "node", EDGE, hours=2)
    assert files.current() is before  # it does not look at its files in every call
    clock.seconds += LOOK_SECONDS
    after = files.current()
    assert after is not before
    assert after.certificate == (made / "node" / "edge-0.pem").read_bytes()
    assert files.validity == Validity.read(after.certificate)
    clock.seconds += LOOK_SECONDS
    assert files.current() is after
    assert files.problem == ""


def test_half_a_copy_waits_for_the_other_half(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    files = CredentialFiles(made / "node", EDGE, clock)
    before = files.current()
    issue(made / "authority", EDGE, hours=2)
    shutil.copy(made / "authority" / "edge-0.key", made / "node")
    clock.seconds += LOOK_SECONDS
    assert files.current() is before
    shutil.copy(made / "authority" / "edge-0.pem", made / "node")
    clock.seconds += LOOK_SECONDS
    assert files.current() is not before
    assert files.problem == ""
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda node: (node / "edge-0.pem").write_bytes(b"nonsense"), "edge-0.pem is not a certificate"),
        (lambda node: (node / "edge-0.key").unlink(), "edge-0.key does not exist"),
        (lambda node: issue(node, EDGE, hours=1e-9), "edge-0.pem expired"),
    ],
)
def test_bad_files_are_named_and_not_used(
    made: Path, caplog: pytest.LogCaptureFixture, harm: object, words: str
) -> None:
    clock = Clock()
    files = CredentialFiles(made / "node", EDGE, clock)
    before = files.current()
    assert callable(harm)
    harm(made / "node")
    for _ in range(30):
        clock.seconds += SETTLE_SECONDS / 5
        assert files.current() is before
    assert words in files.problem
    assert [words in each.getMessage() for each in caplog.records] == [True]
    issue(made / "node", EDGE, hours=2)
    clock.seconds += LOOK_SECONDS
    assert files.current() is not before
    assert files.problem == ""


def test_a_node_does_not_start_without_its_files(made: Path) -> None:
    (made / "node" / "edge-0.pem").write_bytes(b"nonsense")
    with pytest.raises(CredentialsError, match=r"edge-0\.pem is not a certificate"):
        CredentialFiles(made / "node", EDGE)


EDGE, DEVICE = Identity("edge", 0), Identity("device", 0)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def noon_files(tmp_path: Path) -> Path:
    """An authority with two members, from noon to one o'clock."""
    make_authority(tmp_path, NOON)
    for member in (EDGE, DEVICE):
        issue(tmp_path, member, 1.0, now=NOON)
    return tmp_path


def complaint(directory: Path, now: datetime = NOON) -> str:
    """What the edge server says, without the folder's name."""
    with pytest.raises(DeploymentError) as rejected:
        read_credentials(directory, EDGE, now)
    return str(rejected.value).replace(f"{directory}/", "")


def test_good_ones_are_read_as_they_are(noon_files: Path) -> None:
    files = ("authority.pem", "edge-0.pem", "edge-0.key")
    assert read_credentials(noon_files, EDGE, NOON) == tuple(
        (noon_files / name).read_bytes() for name in files
    )


def test_the_file_of_another_member(noon_files: Path) -> None:
    (noon_files / "edge-0.pem").write_bytes((noon_files / "device-0.pem").read_bytes())
    assert complaint(noon_files) == "edge-0.pem is the certificate of device-0"
    (noon_files / "edge-0.pem").write_bytes((noon_files / "authority.pem").read_bytes())
    assert complaint(noon_files).startswith("edge-0.pem is not the certificate of edge-0: ")


def test_another_key(noon_files: Path) -> None:
    (noon_files / "edge-0.key").write_bytes((noon_files / "device-0.key").read_bytes())
    assert complaint(noon_files) == "edge-0.key does not belong to edge-0.pem"


def test_another_authority(noon_files: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    make_authority(other, NOON)
    (noon_files / "authority.pem").write_bytes((other / "authority.pem").read_bytes())
    assert complaint(noon_files) == "edge-0.pem was not issued by authority.pem"


def test_dates(noon_files: Path) -> None:
    assert complaint(noon_files, NOON + timedelta(hours=2)) == (
        "edge-0.pem expired on 2030-01-01 13:00 UTC: renew it with `cfel certs --renew edge-0` and copy it "
        "here"
    )
    assert complaint(noon_files, NOON - timedelta(hours=1)) == (
        "authority.pem is not valid before 2030-01-01 11:55 UTC, and this machine's clock shows 2030-01-01 "
        "11:00 UTC"
    )
    assert "authority.pem expired" in complaint(noon_files, NOON + timedelta(days=AUTHORITY_DAYS + 1))


def test_a_federation_continues_without_a_device_whose_certificate_expired(noon_files: Path) -> None:
    """Which is how it takes a `RejectedError`; other errors end it."""
    with pytest.raises(RejectedError):
        read_credentials(noon_files, DEVICE, NOON + timedelta(hours=2))


@pytest.mark.parametrize("name", ["authority.pem", "edge-0.pem", "edge-0.key"])
def test_missing_and_damaged(noon_files: Path, name: str) -> None:
    (noon_files / name).write_bytes(b"-----BEGIN")
    kind = "key that `cfel certs` made" if name.endswith(".key") else "certificate"
    assert complaint(noon_files) == f"{name} is not a {kind}"
    (noon_files / name).unlink()
    words = f"{name} does not exist: copy it from the directory in which `cfel certs` made it"
    assert complaint(noon_files) == words


@pytest.mark.parametrize("name", ["authority.pem", "edge-0.pem", "edge-0.key"])
def test_a_pipe_is_not_waited_for(noon_files: Path, name: str) -> None:
    """`cfel status DIR` reads the files of a directory that may be anybody's."""
    (noon_files / name).unlink()
    os.mkfifo(noon_files / name)
    assert complaint(noon_files).endswith(f"{name}: it is not a regular file")


def test_credentials_are_looked_at_when_read(noon_files: Path) -> None:
    (noon_files / "edge-0.key").write_bytes((noon_files / "device-0.key").read_bytes())
    with pytest.raises(DeploymentError, match=r"edge-0\.key does not belong"):
        Credentials.read(noon_files, EDGE)


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
