"""Values of few bits: rounded without bias, as small as counted, and rejected if damaged."""

import struct
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cfel.errors import InputError
from cfel.learning.compressors import (
    RoundedUpdate,
    TopKInBits,
    Update,
    decode,
    find_upload_share,
    measure_arrival,
    round_values,
    topk,
)
from cfel.learning.packing import pack_update, unpack_update
from cfel.learning.top_k import find_largest
from cfel.system.value_bits import ValueBits

HEADER_BYTES = 13


def make_vector(size: int, seed: int = 0) -> Tensor:
    """Most entries are small, as in a model's update."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(size).astype(np.float32) ** 3)


def in_bits(*choices: int) -> TopKInBits:
    return TopKInBits(ValueBits(choices))


def test_by_hand() -> None:
    """Magnitudes 1, 2 and 4.5 in 4 bits: levels of 0.5 from 1 on, so 0, 2 and 7, whatever is drawn."""
    update = round_values(9, 4, np.array([1, 4, 8], np.int32), np.array([2, -1, -4.5], np.float32), key=3)
    assert update.scales.tolist() == [0.5]
    assert update.low.tolist() == [1.0]
    assert update.codes.tolist() == [2, 8, 15]
    assert decode(update).tolist() == [0, 2, 0, 0, -1, 0, 0, 0, -4.5]


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_rounding_has_no_bias_and_less_than_a_step_of_error(bits: int) -> None:
    """The mean of 400 roundings is within 5 standard errors: a rounding has at most half a step of σ."""
    indices, values = find_largest(make_vector(5000).numpy(), 1500)
    total, step = torch.zeros(5000, dtype=torch.float64), torch.zeros(0)
    for key in range(400):
        update = round_values(5000, bits, indices, values, key)
        step = update.scales.repeat_interleave(1024)[:1500]
        assert ((update.values - torch.from_numpy(values)).abs() <= 1.001 * step).all()
        total += decode(update)
    mean = total[torch.from_numpy(indices).long()] / 400
    assert ((mean - torch.from_numpy(values)).abs() <= 5 * 0.5 * step / 20 + 1e-6).all()


def test_the_same_key_rounds_alike() -> None:
    one, same, other = (pack_update(in_bits(8)(make_vector(3000), 0.3, key)) for key in (5, 5, 6))
    assert one == same != other


def test_more_arrives_with_fewer_bits_per_value() -> None:
    """Of a share 0.01 of 32 bits per entry, and the estimate says how much to 0.02."""
    vector = make_vector(200_000)

    def find_kept(update: Update) -> float:
        return 1 - float((decode(update) - vector).square().sum() / vector.square().sum())

    plain, choosing = in_bits(32), in_bits(4, 8, 16, 32)
    assert find_kept(choosing(vector, 0.01, 0)) > 1.6 * find_kept(plain(vector, 0.01, 0))
    for theta in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0):
        update = choosing(vector, theta, 0)
        (estimate,) = measure_arrival(choosing, vector.numpy(), (theta,))
        assert find_kept(update) == pytest.approx(estimate, abs=0.02)


def test_a_full_upload_with_all_bits_is_exact() -> None:
    vector = make_vector(100)
    assert torch.equal(decode(in_bits(4, 8, 16, 32)(vector, 1.0, 0)), vector)


def test_equal_magnitudes_and_zeros_are_exact() -> None:
    for vector in (torch.zeros(50), torch.full((50,), -2.5), torch.tensor([3.0])):
        for theta in (0.01, 1.0):
            update = in_bits(4)(vector, theta, 0)
            assert isinstance(update, RoundedUpdate)
            assert torch.equal(update.values, vector[update.indices])


def test_the_share_of_a_full_upload() -> None:
    assert find_upload_share(topk, 1000) == 1.0
    assert find_upload_share(in_bits(4, 8), 1000) == 0.252


@pytest.mark.parametrize("choices", [(4,), (8,), (16,), (4, 8, 16, 32)])
@pytest.mark.parametrize("theta", [0.001, 0.03, 0.1, 0.4, 1.0])
@pytest.mark.parametrize("size", [1, 2, 37, 1025, 3001])
def test_the_wire_carries_what_is_counted(choices: tuple[int, ...], theta: float, size: int) -> None:
    """Codes and places each fill whole bytes, so up to 14 bits and the header come on top."""
    update = in_bits(*choices)(make_vector(size), theta, 11)
    content = pack_update(update)
    assert update.wire_bits <= 8 * (len(content) - HEADER_BYTES) < update.wire_bits + 15
    back = unpack_update(content, size)
    assert torch.equal(decode(back), decode(update))
    assert pack_update(back) == content
    for bad in (content + b"\0", content[:-1], b""):
        with pytest.raises(InputError, match="update"):
            unpack_update(bad, size)


@given(st.integers(1, 400), st.data())
@settings(deadline=None)
def test_any_places_come_back(size: int, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    indices = np.array(sorted(chosen), np.int32)
    update = round_values(size, 8, indices, np.ones(len(chosen), np.float32), 0)
    back = unpack_update(pack_update(update), size)
    assert isinstance(back, RoundedUpdate)
    assert back.indices.tolist() == indices.tolist()


@given(st.sampled_from([4, 8, 16]), st.sampled_from([0.02, 0.2, 0.6, 1.0]), st.data())
@settings(deadline=None)
def test_damaged_bytes_are_rejected_or_are_another_update(
    bits: int, theta: float, data: st.DataObject
) -> None:
    """What is accepted has one form only: packed again it is the same bytes."""
    content = bytearray(pack_update(in_bits(bits)(make_vector(301), theta, 11)))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        update = unpack_update(content, 301)
    except InputError:
        return
    assert pack_update(update) == content
    update.add_to(torch.zeros(301), 1.0)


@pytest.mark.parametrize(
    ("size", "count", "bits"),
    [(100, 0, 8), (100, 101, 8), (100, 10, 5), (100, 10, 32), (2**32 - 1, 5, 8), (2**31 - 1, 2**31 - 1, 4)],
)
def test_headers_that_promise_too_much_take_no_memory(size: int, count: int, bits: int) -> None:
    content = struct.pack("<B I I I", 8, size, count, bits) + bytes(40)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="update"):
            unpack_update(content)
        assert tracemalloc.get_traced_memory()[1] < 2**16
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("theta", [0.02, 0.1, 0.6, 1.0])
def test_unpacking_takes_a_few_times_the_memory_of_the_bytes(theta: float) -> None:
    """A bit is a byte for a while, and an index of few bits four bytes."""
    content = pack_update(in_bits(4)(make_vector(500_000), theta, 11))
    tracemalloc.start()
    try:
        unpack_update(content, 500_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 * len(content) + 2**20
