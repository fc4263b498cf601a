"""UVeQFed and ATOMO: lattice points and atoms by hand, no bias, the variance of theory, and the wire."""

import math
import struct

import numpy as np
import pytest
import torch

from cfel.errors import InputError
from cfel.learning.compressors import (
    AtomicUpdate,
    DenseUpdate,
    Factors,
    LatticeUpdate,
    SparseUpdate,
    atomo,
    decode,
    draw_atoms,
    draw_dither,
    find_chances,
    find_nearest,
    fit_compressor,
    to_lattice,
    to_plane,
    topk,
    uveqfed,
)
from cfel.learning.packing import pack_update, unpack_update
from cfel.seeding import make_key

SHAPES = ((20, 30), (20,), (10, 8, 3, 3), (100, 10), (7,))
SIZE = sum(math.prod(shape) for shape in SHAPES)


def vector(size: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(size).astype(np.float32))


def test_the_lattice_by_hand() -> None:
    """(a, b) is at (a + b/2, √¾ b); from (0.4, 0.4) in coordinates, (0, 0) is at √(3 · 0.16) = 0.69.

    (1, 0) and (0, 1) are both at √(0.36 − 0.24 + 0.16) = 0.53, the first of them is taken.
    """
    assert to_plane(torch.tensor([[1.0, 2.0]])).tolist() == [[2.0, pytest.approx(3**0.5)]]
    torch.testing.assert_close(to_lattice(to_plane(vector(50).view(-1, 2))), vector(50).view(-1, 2))
    points = torch.tensor([[0.4, 0.4], [0.1, 0.2], [-0.1, 0.9], [0.9, 0.9]])
    assert find_nearest(points).tolist() == [[1, 0], [0, 0], [0, 1], [1, 1]]


def test_the_nearest_point_is_the_nearest_of_many() -> None:
    """Against all 81 points around, in the plane."""
    found = vector(2000).view(-1, 2)
    near = torch.cartesian_prod(torch.arange(-4.0, 5.0), torch.arange(-4.0, 5.0))
    candidates = found.round()[:, None, :] + near
    plane = to_plane(candidates.view(-1, 2)).view(candidates.shape) - to_plane(found)[:, None, :]
    least = plane.square().sum(2).min(1).values
    own = (to_plane(find_nearest(found)) - to_plane(found)).square().sum(1)
    torch.testing.assert_close(own, least)


def test_dithered_rounding_has_no_bias_and_an_error_of_the_cell() -> None:
    """E‖e‖² = 5/36 s² per pair, whatever the vector is: of noise, and of a vector that is nearly zero."""
    for x in (vector(2048), 1e-3 * vector(2048) + torch.eye(2048)[0]):
        updates = [uveqfed(x, 4 / 32, make_key(0, "draw", n)) for n in range(200)]
        assert isinstance(updates[0], LatticeUpdate)
        expected = float((512 * 5 / 36 * updates[0].scales.double().square()).sum())
        rebuilt = torch.stack([decode(each) for each in updates])
        assert float((rebuilt - x).double().square().sum(1).mean()) == pytest.approx(expected, rel=0.02)
        scale = float(updates[0].scales.max())
        assert float((rebuilt.mean(0) - x).abs().max()) < 5 * scale * (5 / 72 / 200) ** 0.5


def test_lattice_bits_and_scales() -> None:
    """3,001 entries make 1,501 pairs of 4-bit codes and 3 buckets; codes stay within four bits."""
    x = vector(3001)
    update = uveqfed(x, 4 / 32, 3)
    assert isinstance(update, LatticeUpdate)
    assert update.wire_bits == 4 * 3002 + 3 * 32 + 128
    assert int(update.codes.min()) >= -8
    assert int(update.codes.max()) <= 7
    largest = to_lattice(x[:1024].view(-1, 2)).abs().max()
    assert float(update.scales[0]) == pytest.approx(float(largest) / 6.5)
    assert isinstance(uveqfed(x, 0.9, 3), DenseUpdate)
    # Zeros have a scale of zero, so the dither adds nothing.
    assert not decode(uveqfed(torch.zeros(5), 0.1, 3)).any()
    assert float(draw_dither(3, 1024).abs().max()) <= 0.5


def test_chances_by_hand() -> None:
    """Of 4, 2, 1, 1 and a sum of 2: 4 would have 1, so 1 of the rest is shared as ½, ¼, ¼."""
    assert find_chances(np.array([4.0, 2.0, 1.0, 1.0]), 2.0).tolist() == [1.0, 0.5, 0.25, 0.25]
    assert find_chances(np.array([1.0, 8.0, 1.0, 2.0]), 2.0).tolist() == [0.25, 1.0, 0.25, 0.5]
    assert find_chances(np.array([1.0, 1.0, 0.0]), 1.0).tolist() == [0.5, 0.5, 0.0]
    assert find_chances(np.array([3.0, 0.0]), 1.5).tolist() == [1.0, 0.0]
    assert find_chances(np.zeros(3), 1.5).tolist() == [0.0, 0.0, 0.0]


def test_atoms_are_drawn_with_their_chances() -> None:
    """Chances 1, ½, ¼, ¼ sum to 1, 1.5, 1.75, 2: two atoms in any case."""
    chances = np.array([1.0, 0.5, 0.25, 0.25])
    assert [draw_atoms(chances, draw).tolist() for draw in (0.1, 0.6, 0.8)] == [[0, 1], [0, 2], [0, 3]]
    counts = np.sum([np.bincount(draw_atoms(chances, n / 400), minlength=4) for n in range(400)], axis=0)
    assert (counts / 400).tolist() == chances.tolist()
    assert len(draw_atoms(np.array([0.3, 0.3]), 0.7)) == 0


def test_atomo_keeps_a_matrix_of_low_rank_exactly() -> None:
    """Rank two, and room for θ·20·30/50 = 3.6 atoms: both singular atoms are certain."""
    draw = np.random.default_rng(1)
    matrix = (draw.standard_normal((20, 2)) @ draw.standard_normal((2, 30))).astype(np.float32)
    # SVD's rounding leaves singular values of 1e-6, which cannot be told from zero.
    x = torch.from_numpy(matrix).reshape(-1)
    update = atomo(x, 0.3, 1, ((20, 30),))
    assert isinstance(update, AtomicUpdate)
    torch.testing.assert_close(decode(update), x, rtol=1e-3, atol=1e-3)


def test_atomo_has_no_bias_and_the_size_it_is_asked_for() -> None:
    """Spectral variance: E‖x − Q(x)‖² = Σ λ²(1/p − 1) over the atoms of all matrices and entries."""
    x, compress = vector(SIZE), fit_compressor(atomo, SHAPES)
    updates = [compress(x, 0.3, make_key(0, "draw", n)) for n in range(400)]
    rebuilt = torch.stack([decode(each) for each in updates]).double()
    expected, start, alone = 0.0, 0, []
    for shape in SHAPES:
        part, start = x[start : start + math.prod(shape)], start + math.prod(shape)
        if len(shape) == 1:
            alone.append(part.numpy())
            continue
        matrix = part.view(shape[0], -1)
        values = torch.linalg.svdvals(matrix).double().numpy()
        expected += spread(values, 0.3 * matrix.numel() / sum(matrix.shape))
    entries = np.abs(np.concatenate(alone)).astype(np.float64)
    expected += spread(entries, 0.3 * entries.size)
    errors = (rebuilt - x).square().sum(1)
    assert float(errors.mean()) == pytest.approx(expected, rel=0.05)
    assert float((rebuilt.mean(0) - x).square().sum()) < 1.3 * expected / 400
    sizes = [each.wire_bits / 32 / SIZE for each in updates]
    assert 0.28 < np.mean(sizes) < 0.33


def spread(values: np.ndarray, count: float) -> float:
    """The variance of a draw of atoms of these sizes."""
    chances = find_chances(values, count)
    kept = chances > 0
    return float((values[kept] ** 2 * (1 / chances[kept] - 1)).sum())


def test_atomo_without_shapes_draws_entries() -> None:
    """The two certain ones of 8, 1, 1, 6 are exact; of the others, drawn with chance ½, one becomes 2."""
    update = atomo(torch.tensor([8.0, 1.0, 1.0, 6.0]), 0.75, 3)
    assert isinstance(update, SparseUpdate)
    kept = decode(update).tolist()
    assert (kept[0], kept[3]) == (8.0, 6.0)
    assert sorted(kept[1:3]) == [0.0, 2.0]
    assert isinstance(atomo(vector(9), 1.0, 3), DenseUpdate)


def test_only_atomo_knows_of_shapes() -> None:
    assert fit_compressor(topk, SHAPES) is topk


@pytest.mark.parametrize("theta", [0.01, 0.1, 0.5])
def test_atoms_on_the_wire(theta: float) -> None:
    """Two headers of 13 bytes, and up to 14 bits that fill up the last bytes."""
    update = fit_compressor(atomo, SHAPES)(vector(SIZE), theta, 11)
    content = pack_update(update)
    assert update.wire_bits <= 8 * (len(content) - 26) < update.wire_bits + 15
    back = unpack_update(content, SIZE)
    assert torch.equal(decode(back), decode(update))
    assert pack_update(back) == content
    for bad in (content + b"\0", content[:-1], content[:20]):
        with pytest.raises(InputError, match="update"):
            unpack_update(bad, SIZE)


def make_atoms(*blocks: tuple[int, int, int, int]) -> bytes:
    """A packed update of 100 entries with matrices of ones at (start, rows, columns, atoms), and no entry."""
    made = [Factors(start, torch.ones(k, rows), torch.ones(k, columns)) for start, rows, columns, k in blocks]
    nothing = SparseUpdate(100, torch.empty(0, dtype=torch.int32), torch.empty(0))
    return pack_update(AtomicUpdate(nothing, tuple(made)))


@pytest.mark.parametrize(
    "blocks",
    [
        ((0, 5, 5, 6),),
        ((90, 5, 5, 1),),
        ((0, 5, 5, 1), (20, 5, 5, 1)),
        ((50, 5, 5, 1), (0, 5, 5, 1)),
        ((0, 0, 5, 1),),
    ],
    ids=["more atoms than rank", "beyond the end", "on another", "out of order", "no rows"],
)
def test_matrices_that_cannot_be_are_rejected(blocks: tuple[tuple[int, int, int, int], ...]) -> None:
    assert decode(unpack_update(make_atoms((0, 5, 5, 1), (25, 3, 4, 2)), 100))[:26].tolist() == [1.0] * 25 + [
        2.0
    ]
    with pytest.raises(InputError, match=r"update: . atoms of"):
        unpack_update(make_atoms(*blocks), 100)


def test_atoms_need_sparse_entries_and_a_plausible_number_of_matrices() -> None:
    head = struct.pack("<B I I I", 7, 100, 1, 0) + struct.pack("<I I I I", 0, 5, 5, 0)
    with pytest.raises(InputError, match="a DenseUpdate"):
        unpack_update(head + pack_update(DenseUpdate(torch.ones(100))), 100)
    for count in (0, 10_001):
        with pytest.raises(InputError, match=f"update: {count} matrices"):
            unpack_update(struct.pack("<B I I I", 7, 100, count, 0), 100)
