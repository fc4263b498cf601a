"""What a member finds wrong with its own certificate before it starts."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cfel.deployment.security.certificates import AUTHORITY_DAYS, issue, make_authority
from cfel.deployment.security.credentials import Credentials
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.node_credentials import read_credentials
from cfel.errors import DeploymentError, RejectedError

EDGE, DEVICE = Identity("edge", 0), Identity("device", 0)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def made(tmp_path: Path) -> Path:
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


def test_good_ones_are_read_as_they_are(made: Path) -> None:
    files = ("authority.pem", "edge-0.pem", "edge-0.key")
    assert read_credentials(made, EDGE, NOON) == tuple((made / name).read_bytes() for name in files)


def test_the_file_of_another_member(made: Path) -> None:
    (made / "edge-0.pem").write_bytes((made / "device-0.pem").read_bytes())
    assert complaint(made) == "edge-0.pem is the certificate of device-0"
    (made / "edge-0.pem").write_bytes((made / "authority.pem").read_bytes())
    assert complaint(made).startswith("edge-0.pem is not the certificate of edge-0: ")


def test_another_key(made: Path) -> None:
    (made / "edge-0.key").write_bytes((made / "device-0.key").read_bytes())
    assert complaint(made) == "edge-0.key does not belong to edge-0.pem"


def test_another_authority(made: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    make_authority(other, NOON)
    (made / "authority.pem").write_bytes((other / "authority.pem").read_bytes())
    assert complaint(made) == "edge-0.pem was not issued by authority.pem"


def test_dates(made: Path) -> None:
    assert complaint(made, NOON + timedelta(hours=2)) == (
        "edge-0.pem expired on 2030-01-01 13:00 UTC: renew it with `cfel certs --renew edge-0` and copy it "
        "here"
    )
    assert complaint(made, NOON - timedelta(hours=1)) == (
        "authority.pem is not valid before 2030-01-01 11:55 UTC, and this machine's clock shows 2030-01-01 "
        "11:00 UTC"
    )
    assert "authority.pem expired" in complaint(made, NOON + timedelta(days=AUTHORITY_DAYS + 1))


def test_a_federation_continues_without_a_device_whose_certificate_expired(made: Path) -> None:
    """Which is how it takes a `RejectedError`; other errors end it."""
    with pytest.raises(RejectedError):
        read_credentials(made, DEVICE, NOON + timedelta(hours=2))


@pytest.mark.parametrize("name", ["authority.pem", "edge-0.pem", "edge-0.key"])
def test_missing_and_damaged(made: Path, name: str) -> None:
    (made / name).write_bytes(b"-----BEGIN")
    kind = "key that `cfel certs` made" if name.endswith(".key") else "certificate"
    assert complaint(made) == f"{name} is not a {kind}"
    (made / name).unlink()
    words = f"{name} does not exist: copy it from the directory in which `cfel certs` made it"
    assert complaint(made) == words


@pytest.mark.parametrize("name", ["authority.pem", "edge-0.pem", "edge-0.key"])
def test_a_pipe_is_not_waited_for(made: Path, name: str) -> None:
    """`cfel status DIR` reads the files of a directory that may be anybody's."""
    (made / name).unlink()
    os.mkfifo(made / name)
    assert complaint(made).endswith(f"{name}: it is not a regular file")


def test_credentials_are_looked_at_when_read(made: Path) -> None:
    (made / "edge-0.key").write_bytes((made / "device-0.key").read_bytes())
    with pytest.raises(DeploymentError, match=r"edge-0\.key does not belong"):
        Credentials.read(made, EDGE)
