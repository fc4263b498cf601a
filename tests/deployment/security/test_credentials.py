"""Certificates that are renewed while a node runs."""

import shutil
from pathlib import Path

import pytest

from cfel.deployment.security.certificates import issue, make_authority
from cfel.deployment.security.credentials import LOOK_SECONDS, SETTLE_SECONDS, CredentialFiles
from cfel.deployment.security.expiry import Validity
from cfel.deployment.security.identity import Identity
from cfel.errors import CredentialsError
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
