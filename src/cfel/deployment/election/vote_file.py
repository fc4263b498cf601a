"""A member's ballot on disk: term and vote, whole and synced before anybody hears of them.

One small JSON file, replaced in one step. Deleting it lets its member vote twice in a term, so a file that
cannot be read or is somebody else's is an error and never an empty ballot; only a file that never was means a
first start.
"""

import json
from pathlib import Path

from cfel.deployment.election.messages import Ballot
from cfel.durable import read_bytes, replace_file
from cfel.errors import StorageError

_VERSION = 1


def save_ballot(path: Path, member: int, ballot: Ballot) -> None:
    """Returns when the ballot is on the device.

    Raises:
        StorageError: it could not be made durable: the member must not go on voting.
    """
    content = {"version": _VERSION, "member": member, "term": ballot.term, "voted_for": ballot.voted_for}
    replace_file(path, json.dumps(content).encode())


def load_ballot(path: Path, member: int) -> Ballot:
    """The ballot last saved, or an empty one on the very first start.

    Raises:
        StorageError: the file cannot be read, is not a ballot, or another member's.
    """
    if not path.exists():
        return Ballot()
    try:
        content = json.loads(read_bytes(path))
    except ValueError as error:
        raise StorageError(f"{path}: not a ballot: {error}") from error
    if not _well_formed(content):
        raise StorageError(f"{path}: not a ballot of version {_VERSION}: {content!r}")
    if content["member"] != member:
        raise StorageError(f"{path}: the ballot of member {content['member']}, not of {member}")
    return Ballot(content["term"], content["voted_for"])


def _well_formed(content: object) -> bool:
    if not isinstance(content, dict) or set(content) != {"version", "member", "term", "voted_for"}:
        return False
    numbers = [content["member"], content["term"]]
    if content["voted_for"] is not None:
        numbers.append(content["voted_for"])
    return content["version"] == _VERSION and all(type(number) is int and number >= 0 for number in numbers)
