"""Absurd models with a valid certificate, from a device or an edge server: no effect on the others."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cfel.deployment.device import agent as device_agent
from cfel.deployment.payloads import EncodedModel, make_upload
from cfel.deployment.protocol.calls import serve
from cfel.deployment.protocol.device_requests import UploadRequest
from cfel.deployment.protocol.edge_requests import PeerModelAnswer, PeerModelRequest
from cfel.deployment.protocol.messages import Body
from cfel.deployment.security.identity import Identity
from cfel.experiment import Experiment
from cfel.learning.compressors import (
    AtomicUpdate,
    BlockRotation,
    DenseUpdate,
    Factors,
    LatticeUpdate,
    QuantisedUpdate,
    SampledUpdate,
    SparseUpdate,
    Update,
)
from cfel.learning.device_messages import DeviceOrder, DeviceReport
from cfel.learning.models.flat import FlatModel
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, until

pytestmark = pytest.mark.long

LARGEST = float(np.finfo(np.float32).max)
LIAR = Identity("edge", 2)
Poison = Callable[[int], Update]


def largest_dense(size: int) -> Update:
    return DenseUpdate(torch.full((size,), LARGEST))


def largest_sparse(size: int) -> Update:
    return SparseUpdate(size, torch.arange(9, dtype=torch.int32), torch.full((9,), LARGEST))


def largest_sampled(size: int) -> Update:
    return SampledUpdate(size, 5, torch.full((9,), LARGEST))


def largest_projected(size: int) -> Update:
    rotation = BlockRotation(size, 5)
    return SampledUpdate(size, 5, torch.full((rotation.padded // 2,), LARGEST), rotation)


def largest_scales(size: int) -> Update:
    buckets = -(-size // 1024)
    codes = torch.zeros(buckets * 1024, dtype=torch.int16)
    codes[:size] = 7
    return QuantisedUpdate(size, 4, codes, torch.full((buckets,), 3e38))


def largest_points(size: int) -> Update:
    buckets = -(-size // 1024)
    codes = torch.zeros(buckets * 1024, dtype=torch.int16)
    codes[:size] = 7
    return LatticeUpdate(size, 4, 5, codes, torch.full((buckets,), 3e38))


def largest_atoms(size: int) -> Update:
    nothing = SparseUpdate(size, torch.empty(0, dtype=torch.int32), torch.empty(0))
    return AtomicUpdate(nothing, (Factors(0, torch.full((1, 4), LARGEST), torch.full((1, 5), LARGEST)),))


POISONS: dict[str, Poison] = {
    "none": largest_dense,
    "topk": largest_sparse,
    "randomk": largest_sampled,
    "jl": largest_projected,
    "quantise": largest_scales,
    "uveqfed": largest_points,
    "atomo": largest_atoms,
}


def poisoned(poison: Poison | None) -> Callable[..., UploadRequest]:
    """What device 5 sends in place of its update; without a poison, bytes that are no update at all."""

    def make(report: DeviceReport, order: DeviceOrder, *rest: Any) -> UploadRequest:
        if order.device != 5:
            return make_upload(report, order, *rest)
        if poison is None:
            return replace_content(make_upload(report, order, *rest), b"rubbish")
        return make_upload(replace(report, update=poison(report.update.size)), order, *rest)

    return make


def replace_content(upload: UploadRequest, content: bytes) -> UploadRequest:
    fields = {name: getattr(upload, name) for name in upload.__struct_fields__}
    return UploadRequest(**{**fields, "content": Body.hash(content)})


async def play(experiment: Experiment, directory: Path) -> tuple[list[str], int, list[FlatModel]]:
    async with Federation(experiment, directory) as federation:
        federation.start()
        await federation.finished()
        digests = [line.model_sha256 for line in federation.records()]
        models = [node.server.state.model for node in federation.edges.values()]
        return digests, federation.edges[2].devices.rejected[5], models


@pytest.mark.parametrize(
    ("name", "clip_norm", "rule"),
    [
        *((name, None, "mean") for name in POISONS),
        ("quantise", 1.0, "mean"),
        ("jl", 1.0, "clipped"),
        ("quantise", None, "clipped"),
        ("jl", None, "median"),
    ],
)
def test_one_absurd_upload_changes_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, clip_norm: float | None, rule: str
) -> None:
    """The models have the bits of a run in which the device sends what cannot even be unpacked."""
    kind = "topk" if name == "none" else name
    experiment = deployed(
        {
            "rounds": {"global": 2, "edge": 1},
            "local": {"estimator": "reuse"},
            "compression": {"kind": kind, "error_feedback": False},
            "aggregation": {"kind": rule},
        },
        clip_norm=clip_norm,
    )
    monkeypatch.setattr(device_agent, "make_upload", poisoned(None))
    expected, _, _ = asyncio.run(play(experiment, tmp_path / "rubbish"))
    monkeypatch.setattr(device_agent, "make_upload", poisoned(POISONS[name]))
    found, rejected, models = asyncio.run(play(experiment, tmp_path / "poison"))
    assert found == expected
    assert rejected == 2
    assert all(model.is_finite() for model in models)


def not_finite(model: FlatModel) -> Body:
    return EncodedModel.encode(FlatModel(torch.full_like(model.parameters, np.nan), model.buffers)).body


def huge(model: FlatModel) -> Body:
    return EncodedModel.encode(FlatModel(torch.full_like(model.parameters, 1e30), model.buffers)).body


def four_bytes_short(model: FlatModel) -> Body:
    return Body.hash(bytes(EncodedModel.encode(model).body.join())[:-4])


@pytest.mark.parametrize("scheme", ["hcef", "fedavg"])
@pytest.mark.parametrize("make_body", [not_finite, huge, four_bytes_short])
def test_an_edge_server_with_an_absurd_model_is_left_out_of_gossip(
    tmp_path: Path, scheme: str, make_body: Callable[[FlatModel], Body]
) -> None:
    """The other two still mix with each other, over single links and all at once, and report the liar."""
    experiment = deployed({"rounds": {"global": 2, "edge": 1}, "scheme": {"name": scheme}})

    async def lie() -> tuple[Federation, list[str]]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start(*(Identity("edge", i) for i in range(3)))
            await until("all are there", lambda: len(federation.network.members) == 3)
            methods, body = federation.network.members[LIAR], make_body(federation.world.start)

            async def give(caller: Identity, request: PeerModelRequest) -> PeerModelAnswer:
                answer = await federation.edges[LIAR.number].server.give_model(caller, request)
                return PeerModelAnswer(answer.position, body.digest.hex(), body)

            methods["peer_model"] = serve(PeerModelRequest, give)
            federation.start(*(Identity("device", n) for n in range(6)))
            await federation.finished()
            return federation, [federation.edges[i].take_snapshot().problem for i in range(2)]

    federation, problems = asyncio.run(lie())
    assert len(federation.records()) == 2
    for i in range(2):
        state = federation.edges[i].server.state
        assert state.model.is_finite()
        assert state.gossip is not None
        assert state.gossip.rows[i][1 - i] > 0
        assert state.gossip.rows[i][2] == 0
    assert all("edge-2 sent a model that is not used in gossip" in problem for problem in problems)
