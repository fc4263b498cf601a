"""What an edge server keeps on its disk: models by digest, written once, and the record proposed last."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cfel.control.scheme import RoundPlan
from cfel.cost import Ledger
from cfel.deployment.coordinator.state import CoordinatorState
from cfel.deployment.edge.storage import EdgeDisk, EdgeState, ProposalFile
from cfel.deployment.host import RealDisk
from cfel.deployment.protocol.edge_requests import DeviceResult, MixAnswer, PlanAnswer, ProposedRecord
from cfel.deployment.protocol.messages import encode
from cfel.errors import StorageError
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel
from cfel.rounds.kernel import ControlState
from tests.deployment.samples import RECORD


def _model(value: float, entries: int = 5) -> FlatModel:
    return FlatModel(torch.full((entries,), value), torch.full((2,), -value))


DISK = RealDisk()
COORDINATOR = CoordinatorState(
    control=ControlState(
        3,
        {"price": 0.1},
        Ledger(1.5, 2.5, (0.25, 0.75), 3.0),
        Ledger(1.0, 2.0, (0.0, 1.0), 0.1),
        np.array([0.1]),
    ),
    edge_round=1,
    step=0,
    estimates=(Estimates(1.5, -0.5, (0.9,)), None),
    finished=(),
    absent_devices=(1,),
    digests=("0" * 64,),
    metrics=(0.5,),
    started_at=12.5,
    plan=RoundPlan(np.array([0.1]), np.array([0.3]), 1.0, 2.0, 3.0, 2.5, math.inf, False, ("time",)),
    available=(True,),
)
START, FIRST, SECOND = _model(0.0), _model(1.0), _model(2.0)
STATE = EdgeState(
    position=(3, 1, 0),
    model=SECOND,
    previous_model=FIRST,
    reports={(3, 0, 0): PlanAnswer((DeviceResult(0, 0.5, 0.1, 1.0, 5, 100, 0.5, None),), (0, 1), 2.5)},
    last_used_rounds={4: (3, 0)},
    gossip=MixAnswer((2, 4, 1), ((0.5, 0.5), (0.5, 0.5)), "0" * 64, None),
    coordinator_state=COORDINATOR,
    earlier_mixes=(MixAnswer((2, 4, 0), ((0.5, 0.5), (0.5, 0.5)), "1" * 64, None),),
)


def _disk(directory: Path) -> EdgeDisk:
    return EdgeDisk(DISK, directory, START)


def _same(left: FlatModel, right: FlatModel) -> bool:
    return left.sha256() == right.sha256()


def _files(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (directory / "models").iterdir()}


def test_nothing_saved_is_the_start(tmp_path: Path) -> None:
    state = _disk(tmp_path).load()
    assert state.position == (0, 0, 0)
    assert state.model is START
    assert state.previous_model is START


def test_there_and_back(tmp_path: Path) -> None:
    _disk(tmp_path).save(STATE)
    found = _disk(tmp_path).load()
    assert _same(found.model, SECOND)
    assert _same(found.previous_model, FIRST)
    for name in ("position", "reports", "last_used_rounds", "gossip", "earlier_mixes"):
        assert getattr(found, name) == getattr(STATE, name)
    assert encode(found.coordinator_state) == encode(COORDINATOR)
    assert found.coordinator_state is not None
    assert found.coordinator_state.plan is not None
    assert found.coordinator_state.plan.rho.tolist() == [0.1]
    # A model that was read may be written to like any other.
    found.model.parameters.add_(1)


def test_public_and_issued_models_are_kept(tmp_path: Path) -> None:
    """Those that are also the model are written once."""
    known = replace(STATE, public=_model(3.0), issued=SECOND)
    _disk(tmp_path).save(known)
    assert len(_files(tmp_path)) == 3
    found = _disk(tmp_path).load()
    assert found.public is not None
    assert found.issued is not None
    assert _same(found.public, _model(3.0))
    assert _same(found.issued, SECOND)


def test_a_model_is_written_once(tmp_path: Path) -> None:
    disk = _disk(tmp_path)
    disk.save(STATE)
    before = _files(tmp_path)
    disk.save(replace(STATE, position=(3, 2, 0)))
    assert _files(tmp_path) == before
    back = _disk(tmp_path)
    back.save(replace(back.load(), position=(3, 3, 0)))
    assert _files(tmp_path) == before
    disk.save(replace(STATE, previous_model=SECOND, model=_model(3.0)))
    after = _files(tmp_path)
    kept = SECOND.sha256().hex()
    assert after[kept] == before[kept]
    assert after.keys() == {kept, _model(3.0).sha256().hex()}


def test_equal_models_share_a_file(tmp_path: Path) -> None:
    _disk(tmp_path).save(replace(STATE, previous_model=_model(2.0)))
    assert len(_files(tmp_path)) == 1
    assert _same(_disk(tmp_path).load().previous_model, SECOND)


def test_what_a_crash_left_is_swept(tmp_path: Path) -> None:
    disk = _disk(tmp_path)
    disk.save(STATE)
    (tmp_path / "models" / "0123").write_bytes(b"a model that no state names")
    (tmp_path / "models" / ".0123.tmp").write_bytes(b"half of one")
    assert _same(_disk(tmp_path).load().model, SECOND)
    disk.save(STATE)
    assert _files(tmp_path).keys() == {SECOND.sha256().hex(), FIRST.sha256().hex()}


def test_the_old_state_stands_until_the_new_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = _disk(tmp_path)
    disk.save(STATE)

    def reject(*_: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr("cfel.deployment.state_file.save", reject)
    with pytest.raises(StorageError, match="no space"):
        disk.save(replace(STATE, model=_model(3.0), previous_model=_model(4.0)))
    found = _disk(tmp_path).load()
    assert _same(found.model, SECOND)
    assert _same(found.previous_model, FIRST)


@pytest.mark.parametrize("harm", ["damaged", "does not exist", "another experiment"])
def test_a_model_that_is_not_what_it_was(tmp_path: Path, harm: str) -> None:
    start = START
    _disk(tmp_path).save(STATE)
    path = tmp_path / "models" / SECOND.sha256().hex()
    if harm == "damaged":
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    elif harm == "does not exist":
        path.unlink()
    else:
        start = _model(0.0, 6)
    with pytest.raises(StorageError, match=harm):
        EdgeDisk(DISK, tmp_path, start).load()


OLD, OTHER = replace(RECORD, wall_seconds=2.0), replace(RECORD, wall_seconds=3.0)


def test_a_proposal_is_kept_until_the_next(tmp_path: Path) -> None:
    assert ProposalFile(DISK, tmp_path).newest is None
    for proposal in (ProposedRecord(1, OLD), ProposedRecord(2, OTHER)):
        ProposalFile(DISK, tmp_path).save(proposal)
        assert ProposalFile(DISK, tmp_path).newest == proposal


def test_a_damaged_proposal_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ProposalFile(DISK, tmp_path).save(ProposedRecord(1, OLD))
    path = tmp_path / "proposal.bin"
    path.write_bytes(path.read_bytes()[:-1])
    found = ProposalFile(DISK, tmp_path)
    assert (found.newest, found.is_lost) == (None, True)
    assert "proposal.bin is damaged" in caplog.text
    found.save(ProposedRecord(2, OTHER))
    assert not found.is_lost
    assert not ProposalFile(DISK, tmp_path).is_lost
