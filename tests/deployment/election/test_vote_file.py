"""The vote survives, and what is not a vote is never taken for an empty one."""

from pathlib import Path

import pytest

from cfel.deployment.election.state import Vote
from cfel.deployment.election.vote_file import load_vote, save_vote
from cfel.errors import StorageError


@pytest.mark.parametrize("vote", [Vote(0), Vote(7), Vote(2**40, 3)])
def test_a_vote_comes_back(tmp_path: Path, vote: Vote) -> None:
    path = tmp_path / "vote.json"
    save_vote(path, 3, Vote(1, 1))
    save_vote(path, 3, vote)
    assert load_vote(path, 3) == vote
    assert list(tmp_path.iterdir()) == [path]


def test_a_first_start_has_an_empty_vote(tmp_path: Path) -> None:
    assert load_vote(tmp_path / "vote.json", 0) == Vote(0, None)


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
def test_anything_else_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vote.json"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="vote"):
        load_vote(path, 0)


def test_a_vote_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"):
        save_vote(tmp_path / "missing" / "vote.json", 0, Vote(1))
