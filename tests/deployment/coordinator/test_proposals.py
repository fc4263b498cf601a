"""What an edge server keeps of the record that a coordinator proposes."""

from dataclasses import replace
from pathlib import Path

import pytest

from cfel.deployment.coordinator.proposals import ProposalFile
from cfel.deployment.protocol.coordinator_requests import ProposedRecord
from tests.deployment.coordinator.test_checked_calls import RECORD

OLD, OTHER = replace(RECORD, wall_seconds=2.0), replace(RECORD, wall_seconds=3.0)


def test_a_proposal_is_kept_until_the_next(tmp_path: Path) -> None:
    assert ProposalFile(tmp_path).newest is None
    for proposal in (ProposedRecord(1, OLD), ProposedRecord(2, OTHER)):
        ProposalFile(tmp_path).save(proposal)
        assert ProposalFile(tmp_path).newest == proposal


def test_a_damaged_proposal_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ProposalFile(tmp_path).save(ProposedRecord(1, OLD))
    path = tmp_path / "proposal.bin"
    path.write_bytes(path.read_bytes()[:-1])
    found = ProposalFile(tmp_path)
    assert (found.newest, found.is_lost) == (None, True)
    assert "proposal.bin is damaged" in caplog.text
    found.save(ProposedRecord(2, OTHER))
    assert not found.is_lost
    assert not ProposalFile(tmp_path).is_lost
