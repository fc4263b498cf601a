"""The ballot survives, and what is not a ballot is never taken for an empty one."""

from pathlib import Path

import pytest

from cfel.deployment.election.messages import Ballot
from cfel.deployment.election.vote_file import load_ballot, save_ballot
from cfel.errors import StorageError


@pytest.mark.parametrize("ballot", [Ballot(0), Ballot(7), Ballot(2**40, 3)])
def test_a_ballot_comes_back(tmp_path: Path, ballot: Ballot) -> None:
    path = tmp_path / "ballot.json"
    save_ballot(path, 3, Ballot(1, 1))
    save_ballot(path, 3, ballot)
    assert load_ballot(path, 3) == ballot
    assert list(tmp_path.iterdir()) == [path]


def test_a_first_start_has_an_empty_ballot(tmp_path: Path) -> None:
    assert load_ballot(tmp_path / "ballot.json", 0) == Ballot(0, None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"version": 1, "member": 0, "te',
        b"[]",
        b'{"version": 2, "member": 0, "term": 1, "voted_for": null}',
        b'{"version": 1, "member": 0, "term": -1, "voted_for": null}',
        b'{"version": 1, "member": 0, "term": true, "voted_for": null}',
        b'{"version": 1, "member": 0, "term": 1, "voted_for": "0"}',
        b'{"version": 1, "member": 1, "term": 1, "voted_for": null}',
    ],
)
def test_anything_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ballot.json"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="ballot"):
        load_ballot(path, 0)


def test_a_ballot_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"):
        save_ballot(tmp_path / "missing" / "ballot.json", 0, Ballot(1))
