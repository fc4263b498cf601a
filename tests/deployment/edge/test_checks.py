"""Uploads: what is accepted, and every way in which one is rejected."""

import struct
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from cfel.deployment.edge.checks import UploadLimits, check_model, clip_update, verify_upload
from cfel.deployment.payloads import make_upload
from cfel.deployment.protocol.device_requests import UploadRequest
from cfel.deployment.protocol.messages import Body, Message, encode, from_message, to_message
from cfel.errors import RejectedError
from cfel.learning.compressors import DenseUpdate, QuantisedUpdate, SparseUpdate
from cfel.learning.device_messages import DeviceReport, Order
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel

SIZE = 40
LIMITS = UploadLimits(kept_entries=1, variances=torch.tensor([False, True]))
"""Two statistics: a mean and a variance."""
MODEL = FlatModel(torch.zeros(SIZE), torch.ones(2))
ORDER = Order(0, 3, 1, 4, 0.5, 0.1, 5, MODEL)
# d = 40 and 4 values: four packed indices of 6 bits are cheaper than a bitmap of 40.
UPDATE = SparseUpdate(
    SIZE, torch.tensor([0, 7, 8, 39], dtype=torch.int32), torch.tensor([1.0, -2.0, 3.0, 4.0])
)
REPORT = DeviceReport(4, UPDATE, torch.tensor([0.5, 0.25]), Estimates(1.5, -0.5, (0.9,)), 3, 0.7, 20)
UPLOAD = make_upload(REPORT, ORDER)
GOOD = to_message(UPLOAD)
BODY = bytes(UPLOAD.content.join())
FIELDS: dict[str, Any] = msgspec.msgpack.decode(encode(UPLOAD))


def header(**changes: Any) -> Message:
    """A good upload with other fields."""
    return Message(msgspec.msgpack.encode({**FIELDS, **changes}), UPLOAD.content)


def estimates(**changes: Any) -> Message:
    """A good upload with other estimates."""
    return header(estimates={**FIELDS["estimates"], **changes})


def body(content: bytes) -> Message:
    """A good upload with another body."""
    return Message(GOOD.header, Body.hash(content))


def patched(offset: int, content: bytes) -> Message:
    return body(BODY[:offset] + content + BODY[offset + len(content) :])


def verify(message: Message) -> DeviceReport:
    """What an edge server makes of a message."""
    return verify_upload(from_message(message, UploadRequest), ORDER, LIMITS)


UPDATE_AT = 8
VALUES_AT = UPDATE_AT + 13
INDICES_AT = VALUES_AT + 16


def test_there_and_back() -> None:
    found = verify(GOOD)
    assert isinstance(found.update, SparseUpdate)
    assert found.update.indices.tolist() == [0, 7, 8, 39]
    assert found.update.values.tolist() == [1.0, -2.0, 3.0, 4.0]
    assert found.update.wire_bits == UPDATE.wire_bits
    assert found.buffers.tolist() == [0.5, 0.25]
    assert (found.device, found.estimates, found.steps, found.samples) == (4, REPORT.estimates, 3, 20)
    assert found.loss == 0.7


def test_nothing_learned_has_no_loss_and_no_estimates() -> None:
    found = verify(header(steps=0, loss=float("nan"), estimates=None))
    assert np.isnan(found.loss)
    assert found.estimates is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (header(round=[2, 1]), "of round"),
        (header(round=[3, 0]), "of round"),
        (header(round=["3", 1]), r"round\[0\] = '3'"),
        (header(round=[-1, 1]), r"round\[0\] = -1"),
        (header(round=[3]), "round = .3.: Expected .array. of length 2"),
        (header(steps=6), "at most 5"),
        (header(steps=-1), "steps"),
        (header(samples=None), "samples"),
        (header(loss="low"), "loss"),
        (header(loss=float("inf")), "loss = inf: must be finite"),
        (header(loss=float("nan")), "loss = nan: must be finite"),
        (header(loss=1.7e308), "at most 1e[+]100"),
        (header(steps=0, loss=float("-inf")), "loss = -inf: must be finite"),
        (estimates(sigma2=float("nan")), "sigma2"),
        (estimates(sigma2=-1.0), "sigma2"),
        (estimates(sigma2=1.7e308), "sigma2"),
        (estimates(g2=-1.7e308), "sigma2"),
        (estimates(sigma2=[1]), "sigma2"),
        (estimates(g2=float("inf")), "g2"),
        (estimates(g2=None), "g2"),
        (estimates(kept_energy="all"), "kept_energy"),
        (estimates(kept_energy=[float("nan")]), "numbers from 0 to 1"),
        (estimates(kept_energy=[1.5]), "numbers from 0 to 1"),
        (estimates(kept_energy=[0.5, 0.9]), "2 numbers, 1 were asked"),
        (header(buffers=0), "buffers = 0: the model has 2"),
        (header(buffers=2**53), "the model has 2"),
        (body(b""), "buffers: 0 numbers"),
        (body(BODY[:7]), "not a vector"),
        (body(BODY[:8]), "update"),
        (body(BODY[:-1]), "update"),
        (body(BODY + b"\0"), "update"),
        (body(BODY[:8] + b"\xff" * 60), "the model has 40"),
        (patched(0, struct.pack("<f", float("nan"))), "buffers: not all of them finite"),
        (patched(4, struct.pack("<f", -0.5)), "buffers: a variance of -0.5"),
        (patched(VALUES_AT, struct.pack("<f", float("inf"))), "update: not all of them finite"),
        (patched(UPDATE_AT + 1, struct.pack("<I", SIZE + 1)), "the model has 40"),
        (patched(UPDATE_AT + 1, struct.pack("<I", 2**32 - 1)), "the model has 40"),
        (patched(UPDATE_AT + 5, struct.pack("<I", 2**31)), "update"),
        (patched(UPDATE_AT, b"\x7f"), "unknown kind"),
        (patched(INDICES_AT, b"\xff\xff\xff"), "ascending"),
        (patched(INDICES_AT, b"\x00\x00\x00"), "ascending"),
    ],
)
def test_rejected(message: Message, reason: str) -> None:
    with pytest.raises(RejectedError, match=reason):
        verify(message)


def test_scales_of_a_quantised_update_are_looked_at() -> None:
    update = QuantisedUpdate(SIZE, 4, torch.zeros(1024, dtype=torch.int16), torch.tensor([float("inf")]))
    report = DeviceReport(4, update, torch.zeros(2), Estimates(1.0, 1.0, (0.9,)), 1, 0.5, 9)
    with pytest.raises(RejectedError, match="update: not all of them finite"):
        verify_upload(make_upload(report, ORDER), ORDER, LIMITS)


def test_long_updates_are_scaled_down_to_the_limit() -> None:
    """‖(3, 4)‖ = 5: a limit of 1 makes it (0.6, 0.8); a limit of 5 leaves the very update."""
    update = DenseUpdate(torch.tensor([3.0, 4.0]))
    assert clip_update(update, 5.0) is update
    short, dense = clip_update(update, 1.0), torch.zeros(2)
    short.add_to(dense, 1.0)
    np.testing.assert_allclose(dense, [0.6, 0.8], rtol=1e-6)
    assert (short.size, short.wire_bits) == (2, 64)


def test_a_mean_may_be_negative() -> None:
    assert verify(patched(0, struct.pack("<f", -0.5))).buffers.tolist() == [-0.5, 0.25]


def test_another_edge_servers_memory_has_the_bound_of_parameters() -> None:
    """A million lengths of momentum, sent to every device, would end all training there."""
    own = FlatModel(torch.zeros(4), torch.empty(0), torch.zeros(4))
    check_model(replace(own, memory=torch.full((4,), 99.0)), own)
    with pytest.raises(RejectedError, match="memory: of length 202, beyond the bound of 200"):
        check_model(replace(own, memory=torch.full((4,), 101.0)), own)
