"""Compressors do what their docstrings promise, and count their bits."""

import math
import struct
import tracemalloc

import numpy as np
import pytest
import torch
from torch import Tensor

from cfel.errors import InputError
from cfel.learning.compressors import (
    BlockRotation,
    DenseUpdate,
    QuantisedUpdate,
    SparseUpdate,
    Update,
    compressor,
    count_entries,
    draw_places,
    hadamard,
    quantise,
)
from cfel.learning.packing import pack_update, unpack_update
from cfel.seeding import make_key
from cfel.system.value_bits import index_bits

HEADER_BYTES = 13
KINDS = ("topk", "randomk", "jl", "quantise", "uveqfed", "atomo", "none")


def vector(size: int = 3000, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(size).astype(np.float32))


def dense(update: Update) -> Tensor:
    result = torch.zeros(update.size)
    update.add_to(result, 1.0)
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_full_share_is_exact(kind: str) -> None:
    x = vector()
    update = compressor(kind)(x, 1.0, 5)
    assert torch.equal(dense(update), x)
    assert update.wire_bits == 32 * x.numel()


@pytest.mark.parametrize("kind", KINDS)
def test_compressing_leaves_the_vector_alone_and_shares_no_memory(kind: str) -> None:
    x = vector()
    before = x.clone()
    update = compressor(kind)(x, 0.1, 5)
    assert torch.equal(x, before)
    rebuilt = dense(update)
    x.zero_()
    assert torch.equal(dense(update), rebuilt)


@pytest.mark.parametrize("kind", KINDS)
def test_adding_with_a_weight(kind: str) -> None:
    update = compressor(kind)(vector(), 0.2, 5)
    base = vector(seed=1)
    result = base.clone()
    update.add_to(result, -0.25)
    torch.testing.assert_close(result, base - 0.25 * dense(update), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("theta", [0.0, -0.1, 1.1, math.nan])
def test_a_share_out_of_range_is_rejected(kind: str, theta: float) -> None:
    if kind == "none":
        return
    with pytest.raises(InputError, match="theta"):
        compressor(kind)(vector(10), theta, 0)


def test_topk_by_hand() -> None:
    update = compressor("topk")(torch.tensor([1.0, -5.0, 2.0, 0.0, 5.0, -2.0]), 0.5, 0)
    assert isinstance(update, SparseUpdate)
    assert update.indices.tolist() == [1, 2, 4]
    assert update.values.tolist() == [-5.0, 2.0, 5.0]
    assert update.wire_bits == 3 * 32 + 6  # the bitmap (6) beats 3 indices of 3 bits


def test_at_least_one_entry_is_kept() -> None:
    assert count_entries(0.0001, 50) == 1
    assert compressor("topk")(vector(50), 0.0001, 0).wire_bits == 32 + 6


def test_index_bits_take_the_cheaper_form() -> None:
    assert index_bits(6_603_710, 66_037) == 66_037 * 23
    assert index_bits(6_603_710, 660_371) == 6_603_710
    assert index_bits(100, 100) == 0


def test_drawn_places_are_ascending_distinct_and_keyed() -> None:
    for count in (1, 10, 90, 100):
        places = draw_places(7, 100, count)
        assert places.numel() == count
        assert bool((places.diff() > 0).all())
        assert torch.equal(places, draw_places(7, 100, count))
    assert not torch.equal(draw_places(7, 100, 10), draw_places(8, 100, 10))


def test_every_place_is_drawn_equally_often() -> None:
    """600 draws of 5 of 20: each place 150 times on average, standard deviation 10.6."""
    counts = np.zeros(20)
    for draw in range(600):
        counts[draw_places(make_key(0, "places", draw), 20, 5).numpy()] += 1
    assert abs(counts - 150).max() < 4.5 * 10.6


@pytest.mark.parametrize("kind", ["randomk", "jl"])
def test_contraction_of_random_compressors(kind: str) -> None:
    """Orthogonal projections on k of d random directions: E‖x − Q(x)‖² = (1 − k/d)‖x‖², error ⟂ result."""
    x = vector(4096)
    errors = []
    for draw in range(40):
        rebuilt = dense(compressor(kind)(x, 0.25, make_key(0, "draw", draw)))
        errors.append(float((x - rebuilt).square().sum() / x.square().sum()))
        assert float(rebuilt @ (x - rebuilt)) == pytest.approx(0, abs=2e-2)
    assert np.mean(errors) == pytest.approx(0.75, abs=0.02)


def test_random_compressors_send_no_indices() -> None:
    assert compressor("randomk")(vector(4096), 0.25, 1).wire_bits == 1024 * 32 + 128
    assert compressor("jl")(vector(4096), 0.25, 1).wire_bits == 1024 * 32 + 128


def test_projection_spreads_a_spike() -> None:
    """A single large entry survives a projection in proportion, where random-k mostly loses it."""
    x = torch.zeros(4096)
    x[17] = 1.0
    kept = [float(dense(compressor("jl")(x, 0.25, n)).square().sum()) for n in range(20)]
    assert min(kept) > 0.2


@pytest.mark.parametrize("size", [1, 2, 5, 64, 4096, 5000])
def test_rotation_is_orthogonal(size: int) -> None:
    x, rotation = vector(size), BlockRotation(size, 3)
    rotated = rotation.forward(x)
    assert rotated.numel() == rotation.padded
    torch.testing.assert_close(rotated.norm(), x.norm())
    torch.testing.assert_close(rotation.backward(rotated), x, rtol=1e-4, atol=1e-5)


def test_hadamard_is_orthonormal_and_symmetric() -> None:
    matrix = hadamard(16)
    torch.testing.assert_close(matrix @ matrix, torch.eye(16))


def test_quantiser_is_unbiased_within_its_variance_bound() -> None:
    """300 draws at 4 bits (7 levels a sign): error² ≤ Σ 1024·(M/7)²/4 on average, mean error → 0."""
    x = vector(2048)
    rebuilt = torch.stack([dense(quantise(x, 4 / 32, make_key(0, "draw", n))) for n in range(300)])
    grid = x.view(2, 1024).abs().amax(1) / 7
    bound = float((1024 * grid.square() / 4).sum())
    assert float((rebuilt - x).square().sum(1).mean()) <= bound
    standard_error = float(grid.max()) / 2 / math.sqrt(300)
    assert float((rebuilt.mean(0) - x).abs().max()) < 4.5 * standard_error


def test_quantiser_bits() -> None:
    update = quantise(vector(3000), 4 / 32, 0)
    assert isinstance(update, QuantisedUpdate)
    assert update.wire_bits == 4 * 3000 + 3 * 32
    assert int(update.codes.abs().max()) <= 7
    assert isinstance(quantise(vector(10), 0.9, 0), DenseUpdate)
    assert torch.equal(dense(quantise(torch.zeros(5), 0.1, 0)), torch.zeros(5))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("theta", [0.001, 0.1, 0.4, 1.0])
@pytest.mark.parametrize("size", [1, 37, 3000])
def test_the_wire_carries_what_is_counted(kind: str, theta: float, size: int) -> None:
    """Values and places each fill whole bytes, so up to 14 bits and the header come on top."""
    update = compressor(kind)(vector(size), theta, 11)
    content = pack_update(update)
    assert update.wire_bits <= 8 * (len(content) - HEADER_BYTES) < update.wire_bits + 15
    back = unpack_update(content)
    assert torch.equal(dense(back), dense(update))
    assert back.wire_bits == update.wire_bits


@pytest.mark.parametrize("kind", KINDS)
def test_incomplete_or_unknown_bytes_are_rejected(kind: str) -> None:
    content = pack_update(compressor(kind)(vector(300), 0.1, 11))
    for bad in (b"", content[:5], content[:-5], content + b"12345", b"\xff" + content[1:]):
        with pytest.raises(InputError, match="update"):
            unpack_update(bad)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("theta", [0.01, 0.1, 0.5, 1.0])
def test_a_byte_too_many_or_too_few_is_rejected(kind: str, theta: float) -> None:
    """Also behind a bitmap, where the bits beyond the last entry have no meaning."""
    content = pack_update(compressor(kind)(vector(301), theta, 11))
    for bad in (content + b"\0", content + b"\xff", content[:-1]):
        with pytest.raises(InputError, match="update"):
            unpack_update(bad, 301)


@pytest.mark.parametrize(("kind", "theta"), [("topk", 0.01), ("topk", 0.5), ("quantise", 0.1)])
def test_bits_that_fill_up_the_last_byte_are_zero(kind: str, theta: float) -> None:
    """301 bits of a bitmap, 3 · 9 bits of packed indices, 301 · 3 bits of codes: some are left over."""
    content = bytearray(pack_update(compressor(kind)(vector(301), theta, 11)))
    content[-1] ^= 1
    with pytest.raises(InputError, match="bits behind its numbers"):
        unpack_update(content, 301)


@pytest.mark.parametrize("kind", KINDS)
def test_fields_without_a_meaning_are_zero(kind: str) -> None:
    content = bytearray(pack_update(compressor(kind)(vector(301), 0.1, 11)))
    content[12] ^= 0x80
    with pytest.raises(InputError, match="update"):
        unpack_update(content, 301)


@pytest.mark.parametrize("kind", [3, 4])
def test_a_key_cut_short_is_rejected(kind: int) -> None:
    """Without any values, the key is all there is."""
    start = struct.pack("<B I I I", kind, 301, 0, 0)
    unpack_update(start + bytes(16), 301)
    for length in (0, 4, 15, 17):
        with pytest.raises(InputError, match="update"):
            unpack_update(start + bytes(length), 301)


def test_a_dense_update_counts_its_values_right() -> None:
    with pytest.raises(InputError, match="update: 2 values of 3 entries"):
        unpack_update(struct.pack("<B I I I", 0, 3, 2, 0) + bytes(12), 3)


@pytest.mark.parametrize("kind", ["topk", "quantise"])
def test_unpacking_takes_a_few_times_the_memory_of_the_bytes(kind: str) -> None:
    """Many numbers of few bits: one int64 per digit would be 64 times the bytes."""
    content = pack_update(compressor(kind)(vector(500_000), 0.1, 11))
    tracemalloc.start()
    try:
        update = unpack_update(content, 500_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert pack_update(update) == content
    assert peak < 8 * len(content) + 8 * 2**20


def test_indices_out_of_order_are_rejected() -> None:
    bad = SparseUpdate(1000, torch.tensor([5, 3], dtype=torch.int32), torch.ones(2))
    with pytest.raises(InputError, match="ascending"):
        unpack_update(pack_update(bad))


def test_an_update_of_another_kind_has_no_form() -> None:
    with pytest.raises(InputError, match="a int has no form"):
        pack_update(3)  # type: ignore[arg-type]
