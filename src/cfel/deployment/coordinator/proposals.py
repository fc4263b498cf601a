"""One record per global round, whoever coordinates: a record is logged once a majority has it on the disk.

A coordinator that died may have had its record logged somewhere. A majority keeps that record, so a successor
that asks a majority finds it, and proposes it again instead of its own. Terms and votes are in `election`.
"""

import asyncio
import logging
from pathlib import Path

from cfel.deployment import state_file
from cfel.deployment.coordinator.edge_calls import TRY_AGAIN_SECONDS, TermCalls
from cfel.deployment.positions import Position
from cfel.deployment.protocol.codec import decode, encode
from cfel.deployment.protocol.coordinator_requests import ProposeCommand, ProposedRecord
from cfel.durable import set_aside
from cfel.errors import DamagedError, RejectedError
from cfel.runlog import RoundRecord

_LOG = logging.getLogger(__name__)


class ProposalFile:
    """The newest record that was proposed to an edge server.

    Args:
        directory: the edge server's.

    Attributes:
        newest: that record, or None before the first.
        is_lost: whether the file was damaged, and nothing was proposed since.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "proposal.bin"
        self.newest: ProposedRecord | None = None
        self.is_lost = False
        try:
            self.newest = self._load()
        except DamagedError as error:
            self.is_lost = True
            aside = set_aside(self._path)
            _LOG.error("%s. Other edge servers have the record; the old file is %s", error, aside)

    def _load(self) -> ProposedRecord | None:
        found = state_file.load(self._path)
        try:
            return None if found is None else decode(found[1], ProposedRecord)
        except RejectedError as error:
            raise state_file.explain_other_version(self._path, error) from error

    def take(self, proposal: ProposedRecord) -> None:
        """Makes a proposal the newest one; it is on the disk after `save`.

        Raises:
            RejectedError: a newer one is known.
        """
        self._reject_old(proposal)
        self.newest = proposal

    def save(self, proposal: ProposedRecord) -> None:
        """Returns when it is on the disk.

        Raises:
            RejectedError: a newer one has come while this one could not be written.
            StorageError: the file cannot be written; what was saved before is still there.
        """
        self._reject_old(proposal)
        state_file.save(self._path, {}, encode(proposal))
        self.is_lost = False

    def _reject_old(self, proposal: ProposedRecord) -> None:
        newest = self.newest
        if newest is not None and _recency(proposal) < _recency(newest):
            raise RejectedError(
                f"record of round {proposal.record.round} in term {proposal.term}: a newer record, of round "
                f"{newest.record.round} in term {newest.term}, has been proposed"
            )


def _recency(proposal: ProposedRecord) -> tuple[int, int]:
    return proposal.term, proposal.record.round


async def propose(edges: TermCalls, position: Position, record: RoundRecord, seconds: float) -> None:
    """Returns when a majority has the record on the disk."""
    command = ProposeCommand(edges.term, position, record)
    while 2 * len(await edges.command(command, seconds)) <= edges.clusters:
        _LOG.warning("round %d cannot be logged yet: no majority has its record", record.round)
        await asyncio.sleep(TRY_AGAIN_SECONDS)
