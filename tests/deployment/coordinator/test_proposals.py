"""Which record a coordinator proposes, and what an edge server keeps of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from cfel.deployment.coordinator.proposals import ProposalFile, choose_record
from cfel.deployment.protocol.coordinator_requests import ProposedRecord
from tests.deployment.coordinator.test_checked_calls import RECORD

OLD, OTHER = replace(RECORD, wall_seconds=2.0), replace(RECORD, wall_seconds=3.0)
NEXT = replace(RECORD, round=2)


@pytest.mark.parametrize(
    ("proposals", "chosen"),
    [
        ([], RECORD),
        ([ProposedRecord(1, OLD)], OLD),
        ([ProposedRecord(2, OTHER), ProposedRecord(1, OLD)], OTHER),
        ([ProposedRecord(1, NEXT)], RECORD),
        ([ProposedRecord(5, OLD)], RECORD),
        ([ProposedRecord(2**53, OTHER), ProposedRecord(1, OLD)], OLD),
    ],
    ids=["none", "one", "newest term", "of another round", "own term", "term to come"],
)
def test_a_record_of_an_earlier_term_counts(proposals: list[ProposedRecord], chosen: object) -> None:
    assert choose_record(proposals, RECORD, 5) == chosen


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
