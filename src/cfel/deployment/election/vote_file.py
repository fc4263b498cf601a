"""Where a member's vote is stored: term and vote, on disk before any other member learns of them.

One small JSON file, replaced in one step. Without it a member could vote twice in a term. So a file that is
damaged or belongs to another member is an error, never an empty vote (`recovery` says how a member gets over
a damaged one). Only a missing file means a first start.
"""

import json
from pathlib import Path

from cfel.deployment.election.state import Vote
from cfel.durable import read_bytes, replace_file
from cfel.errors import DamagedError, InputError, StorageError

_VERSION = 1


def save_vote(path: Path, member: int, vote: Vote) -> None:
    """Returns when the vote is on the disk.

    Raises:
        StorageError: it could not be stored; the member must not vote any more.
    """
    content = {"version": _VERSION, "member": member, "term": vote.term, "voted_for": vote.voted_for}
    replace_file(path, json.dumps(content).encode(), private=True)


def load_vote(path: Path, member: int) -> Vote:
    """The vote last saved, or an empty one on the very first start.

    Raises:
        DamagedError: the file holds no vote.
        StorageError: it cannot be read, or belongs to another member.
    """
    if not path.exists():
        return Vote()
    try:
        content = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: not a vote: {error}") from error
    if not _is_well_formed(content):
        raise DamagedError(f"{path}: not a vote of version {_VERSION}: {content!r}")
    # A directory that was copied from another edge server would give that one's vote away.
    if content["member"] != member:
        raise StorageError(
            f"{path}: the vote of member {content['member']}, not of {member}. The directory is another edge "
            "server's, or a copy: give this one its own"
        )
    try:
        return Vote(content["term"], content["voted_for"])
    except InputError as error:
        raise DamagedError(f"{path}: {error}") from error


def _is_well_formed(content: object) -> bool:
    if not isinstance(content, dict) or set(content) != {"version", "member", "term", "voted_for"}:
        return False
    numbers = [content["member"], content["term"]]
    if content["voted_for"] is not None:
        numbers.append(content["voted_for"])
    return content["version"] == _VERSION and all(type(number) is int and number >= 0 for number in numbers)
