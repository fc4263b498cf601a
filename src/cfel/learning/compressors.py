"""Compressors: a model difference in, a smaller update out, with its exact size on the wire.

A compressor is a function `(vector, theta, key) -> Update`. An `Update` can add itself to a dense vector and
knows its size in bits. θ is the share of a full upload: of entries for top-k, random-k and projection, of
bits for quantisers and where values have few bits (`TopKInBits`), of numbers on average for ATOMO.
Compressors have no state: for error feedback, `device` keeps a residual. An update holds only what is sent;
what both ends can derive from the key of a random stream is not. Bytes are in `packing`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from cfel.arrays import Float32Array, FloatArray, IndexArray, Int32Array
from cfel.errors import InputError
from cfel.learning.top_k import find_largest, measure_kept_energy
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, resolve
from cfel.seeding import make_generator_from_key
from cfel.system.value_bits import BUCKET, FLOAT_BITS, ValueBits, index_bits, update_bits


@dataclass(frozen=True, slots=True)
class BlockRotation:
    """A random orthogonal change of basis in linear time: random signs, then Hadamard transforms of blocks.

    A dense Gaussian matrix for 6.6 million entries would not fit into memory; this one is never stored. A
    block of 4,096 entries is transformed by two multiplications with the 64×64 Hadamard matrix. The signs are
    drawn from the 128-bit key.
    """

    size: int
    key: int

    @property
    def side(self) -> int:
        """The side of the Hadamard matrix: 64, or less for short vectors."""
        return min(64, max(1, 1 << (max(1, self.size - 1).bit_length() + 1) // 2))

    @property
    def padded(self) -> int:
        """`size` rounded up to whole blocks."""
        block = self.side**2
        return -(-self.size // block) * block

    def forward(self, vector: Tensor) -> Tensor:
        """Rotates a vector; the result has `padded` entries and the same norm."""
        signed = torch.nn.functional.pad(vector, (0, self.padded - self.size)) * self._signs()
        return self._transform(signed)

    def backward(self, rotated: Tensor) -> Tensor:
        """Applies the transpose of `forward`; the result is cut to `size` entries."""
        return (self._transform(rotated) * self._signs())[: self.size]

    def _signs(self) -> Tensor:
        # The stream of the key itself draws the places of the entries; the signs need another one.
        random = make_generator_from_key(self.key ^ 1).bytes(self.padded // 8 + 1)
        # One random bit per sign; a float per sign would take 32 times the draws.
        bits = np.unpackbits(np.frombuffer(random, dtype=np.uint8))[: self.padded]
        return torch.from_numpy(bits).to(torch.float32).mul_(2).sub_(1)

    def _transform(self, vector: Tensor) -> Tensor:
        matrix = hadamard(self.side)
        blocks = vector.view(-1, self.side, self.side)
        return torch.matmul(torch.matmul(matrix, blocks), matrix).reshape(-1)


def hadamard(side: int) -> Tensor:
    """The symmetric orthonormal Hadamard matrix of a power-of-two side."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < side:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix.div_(side**0.5)


KEY_BITS = 128
# Buckets that are rounded at a time: 256 KiB, which stay in the processor's cache.
_BUCKETS_AT_ONCE = 64


class Update(Protocol):
    """A compressed model difference, as a device uploads it."""

    @property
    def size(self) -> int:
        """Length d of the vector."""

    @property
    def wire_bits(self) -> int:
        """Size of the upload in bits."""

    def add_to(self, dense: Tensor, weight: float) -> None:
        """Adds `weight` times the vector to `dense` (float32, d entries), in place."""


Compressor: TypeAlias = Callable[[Tensor, float, int], Update]
"""(float32 vector on the CPU, θ in (0, 1], 128-bit key of a stream) → update; the vector is not changed."""


@dataclass(frozen=True, slots=True)
class DenseUpdate:
    """All entries, uncompressed."""

    values: Tensor

    @property
    def size(self) -> int:
        return self.values.numel()

    @property
    def wire_bits(self) -> int:
        """32 bits per entry."""
        return FLOAT_BITS * self.values.numel()

    def add_to(self, dense: Tensor, weight: float) -> None:
        dense.add_(self.values, alpha=weight)


@dataclass(frozen=True, slots=True)
class SparseUpdate:
    """Some entries and their indices."""

    size: int  # length of the vector
    indices: Tensor  # int32, ascending, without repetition
    values: Tensor  # float32, one per index

    @property
    def wire_bits(self) -> int:
        """The values, and the shorter of a bitmap and packed indices."""
        return FLOAT_BITS * self.values.numel() + index_bits(self.size, self.values.numel())

    def add_to(self, dense: Tensor, weight: float) -> None:
        dense.index_add_(0, self.indices, self.values, alpha=weight)


@dataclass(frozen=True, slots=True)
class RoundedUpdate:
    """Some entries and their indices; values are a sign and a few bits of magnitude.

    A value is ±(low + scale · level). The smallest magnitude counts from zero only once, as top-k keeps no
    entry below it.
    """

    size: int  # length of the vector
    bits: int  # bits per value, sign included: 4, 8 or 16
    indices: Tensor  # int32, ascending, without repetition, at least one
    low: Tensor  # float32, one number: the smallest magnitude
    scales: Tensor  # float32, one per bucket of values: how much one level adds
    codes: Tensor  # int32, one per index: the level, and 2^(bits−1) more where the value is negative

    @property
    def wire_bits(self) -> int:
        """Codes, scales, and the places of the entries."""
        return update_bits(self.size, self.codes.numel(), self.bits)

    @property
    def values(self) -> Tensor:
        """float32, one per index."""
        sign = 2 ** (self.bits - 1)
        scales = self.scales.repeat_interleave(BUCKET)[: self.codes.numel()]
        magnitude = (self.codes & (sign - 1)).to(torch.float32).mul_(scales).add_(self.low)
        return torch.where(self.codes >= sign, -magnitude, magnitude)

    def add_to(self, dense: Tensor, weight: float) -> None:
        dense.index_add_(0, self.indices, self.values, alpha=weight)


@dataclass(frozen=True, slots=True)
class SampledUpdate:
    """Entries at places that both ends draw from the same stream: only the values and the key are sent."""

    size: int  # length of the vector
    key: int  # names the stream
    values: Tensor  # float32, at the drawn places in ascending order
    rotation: BlockRotation | None = None  # applied to the vector before entries were taken, or None

    @property
    def wire_bits(self) -> int:
        """The values and the key."""
        return FLOAT_BITS * self.values.numel() + KEY_BITS

    def add_to(self, dense: Tensor, weight: float) -> None:
        """Adds weight · the vector rebuilt from the values."""
        if self.rotation is None:
            places = draw_places(self.key, self.size, self.values.numel())
            dense.index_add_(0, places, self.values, alpha=weight)
            return
        rotated = torch.zeros(self.rotation.padded)
        rotated[draw_places(self.key, self.rotation.padded, self.values.numel())] = self.values
        dense.add_(self.rotation.backward(rotated), alpha=weight)


@dataclass(frozen=True, slots=True)
class QuantisedUpdate:
    """All entries as small signed integers, with one scale per bucket."""

    size: int  # length of the vector
    bits: int  # bits per entry, sign included
    codes: Tensor  # int16, padded to whole buckets: −levels … levels
    scales: Tensor  # float32, one per bucket: the value of code 1

    @property
    def wire_bits(self) -> int:
        """`bits` per entry and 32 per bucket."""
        return self.bits * self.size + FLOAT_BITS * self.scales.numel()

    def add_to(self, dense: Tensor, weight: float) -> None:
        values = self.codes.view(self.scales.numel(), -1) * self.scales[:, None]
        dense.add_(values.view(-1)[: self.size], alpha=weight)


@dataclass(frozen=True, slots=True)
class LatticeUpdate:
    """Pairs of entries as points of a hexagonal lattice, with one scale per bucket; dither is drawn."""

    size: int  # length of the vector
    bits: int  # bits per entry, sign included
    key: int  # names the stream of the dither
    codes: Tensor  # int16, padded to whole buckets: each pair of entries holds a point's coordinates
    scales: Tensor  # float32, one per bucket: the distance between neighbouring points

    @property
    def wire_bits(self) -> int:
        """`bits` per entry of all pairs, 32 per bucket, and the key."""
        return self.bits * self.sent + FLOAT_BITS * self.scales.numel() + KEY_BITS

    @property
    def sent(self) -> int:
        """How many codes are sent: a pair has two, also the last one of an odd vector."""
        return self.size + self.size % 2

    def add_to(self, dense: Tensor, weight: float) -> None:
        """Adds weight · scale · (point − dither)."""
        shifted = self.codes.view(-1, 2) - draw_dither(self.key, self.codes.numel())
        values = to_plane(shifted).view(self.scales.numel(), -1) * self.scales[:, None]
        dense.add_(values.view(-1)[: self.size], alpha=weight)


class Factors(NamedTuple):
    """A matrix as a sum of atoms: leftᵀ · right, at a place of the vector."""

    start: int  # where its first entry is
    left: Tensor  # float32, atoms × rows
    right: Tensor  # float32, atoms × columns


BLOCK_BITS = 4 * 32
"""Of a matrix: where it starts, its rows, its columns and its atoms."""


@dataclass(frozen=True, slots=True)
class AtomicUpdate:
    """Matrices as a few singular atoms each, and some entries of what is no matrix."""

    entries: SparseUpdate  # of the whole vector; matrices have none
    blocks: tuple[Factors, ...]  # the matrices, by ascending place, none on another

    @property
    def size(self) -> int:
        return self.entries.size

    @property
    def wire_bits(self) -> int:
        """The entries, and of every matrix its place, shape and factors."""
        numbers = sum(block.left.numel() + block.right.numel() for block in self.blocks)
        return self.entries.wire_bits + BLOCK_BITS * len(self.blocks) + FLOAT_BITS * numbers

    def add_to(self, dense: Tensor, weight: float) -> None:
        self.entries.add_to(dense, weight)
        for start, left, right in self.blocks:
            part = dense[start : start + left.shape[1] * right.shape[1]]
            part.add_((left.T @ right).view(-1), alpha=weight)


def count_entries(theta: float, size: int) -> int:
    """The number of entries in a share θ: max(1, round(θ·d))."""
    if not 0 < theta <= 1:
        raise InputError(f"theta: must lie in (0, 1], got {theta}")
    return max(1, round(theta * size))


def draw_places(key: int, size: int, count: int) -> Tensor:
    """Draws `count` of `size` places without replacement from the stream `key`; ascending."""
    draw = make_generator_from_key(key)
    # Drawing the smaller of the two sets takes less time and memory.
    if 2 * count > size:
        mask = np.ones(size, dtype=np.bool_)
        mask[draw.choice(size, size - count, replace=False, shuffle=False)] = False
    else:
        mask = np.zeros(size, dtype=np.bool_)
        mask[draw.choice(size, count, replace=False, shuffle=False)] = True
    return torch.from_numpy(np.flatnonzero(mask))


def decode(update: Update) -> Tensor:
    """The vector that an update stands for."""
    dense = torch.zeros(update.size)
    update.add_to(dense, 1.0)
    return dense


def count_bits(theta: float) -> int | None:
    """Bits per entry of a quantiser, at least 2; None for more than 16, where the update is sent as it is."""
    count_entries(theta, 1)
    bits = max(2, round(FLOAT_BITS * theta))
    # Codes are int16 in memory, and above 16 bits there is little left to save.
    return bits if bits <= 16 else None


def fill_buckets(vector: Tensor) -> Tensor:
    """The vector as buckets × entries; the last is filled with zeros, which do not change its scale."""
    buckets = -(-vector.numel() // BUCKET)
    return torch.nn.functional.pad(vector, (0, buckets * BUCKET - vector.numel())).view(buckets, BUCKET)


# The hexagonal lattice, the best in the plane. In coordinates (a, b), a point is a·(1, 0) + b·(½, √¾).

_HALF_ROOT_3 = 0.75**0.5


def to_plane(coordinates: Tensor) -> Tensor:
    """Points of the plane, from coordinates of the lattice; both are pairs × 2."""
    a, b = coordinates.unbind(1)
    return torch.stack([a + 0.5 * b, _HALF_ROOT_3 * b], dim=1)


def to_lattice(points: Tensor) -> Tensor:
    """Coordinates of the lattice, from points of the plane; both are pairs × 2."""
    x, y = points.unbind(1)
    b = y / _HALF_ROOT_3
    return torch.stack([x - 0.5 * b, b], dim=1)


def find_nearest(coordinates: Tensor) -> Tensor:
    """The nearest points of the lattice: one of the four corners around, as no angle is blunt."""
    corner = coordinates.floor()
    a, b = (coordinates - corner).unbind(1)
    best, least = torch.zeros_like(corner), torch.full_like(a, torch.inf)
    for along, up in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        # ‖(a, b)‖² = a² + ab + b² in this basis.
        distance = (a - along).square() + (a - along) * (b - up) + (b - up).square()
        nearer = distance < least
        best[nearer] = torch.tensor([along, up])
        least = torch.where(nearer, distance, least)
    return corner + best


def draw_dither(key: int, entries: int) -> Tensor:
    """Uniform in a cell of the lattice, in its coordinates (pairs × 2), each from −½ to ½."""
    draws = make_generator_from_key(key).random((entries // 2, 2), dtype=np.float32)
    return torch.from_numpy(draws).sub_(0.5)


def none(vector: Tensor, theta: float, key: int) -> Update:  # noqa: ARG001 — part of the interface
    """Sends everything; θ is ignored."""
    return DenseUpdate(vector.clone())


def topk(vector: Tensor, theta: float, key: int) -> Update:  # noqa: ARG001
    """Keeps the k = max(1, round(θ·d)) entries of largest magnitude; θ = 1 is exact."""
    return keep_largest(vector, count_entries(theta, vector.numel()))


def keep_largest(vector: Tensor, kept: int) -> Update:
    """The entries of largest magnitude, as they are."""
    if kept == vector.numel():
        return DenseUpdate(vector.clone())
    indices, values = find_largest(vector.numpy(), kept)
    return SparseUpdate(vector.numel(), torch.from_numpy(indices), torch.from_numpy(values))


@dataclass(frozen=True, slots=True)
class TopKInBits:
    """Top-k with values of few bits, rounded randomly and without bias: `compression.bits`.

    It keeps as many of the largest entries as fit into a share θ of the bits of a full upload. Of several
    bits per value, those are chosen that leave the least energy behind.
    """

    bits: ValueBits

    def __call__(self, vector: Tensor, theta: float, key: int) -> Update:
        size, chosen = vector.numel(), self.choose_bits(vector.numpy(), theta)
        kept = self.bits.count_entries(theta, size, chosen)
        if chosen == FLOAT_BITS:
            return keep_largest(vector, kept)
        return round_values(size, chosen, *find_largest(vector.numpy(), kept), key)

    def choose_bits(self, vector: Float32Array, theta: float) -> int:
        """The bits per value with which most of the vector arrives; of equal ones, the most."""
        if len(self.bits.choices) == 1:
            return self.bits.choices[0]
        arrives = self._measure(vector, (theta,))[:, 0]
        return self.bits.choices[len(arrives) - 1 - int(np.argmax(arrives[::-1]))]

    def measure_arrival(self, vector: Float32Array, shares: Sequence[float]) -> tuple[float, ...]:
        """The share of ‖x‖² that arrives at several θ, estimated; what rounding adds is taken off."""
        return tuple(self._measure(vector, shares).max(axis=0).tolist())

    def _measure(self, vector: Float32Array, shares: Sequence[float]) -> FloatArray:
        """The same for every choice of bits: bits × θ."""
        size, choices = vector.size, self.bits.choices
        entries = [[self.bits.count_entries(theta, size, each) for theta in shares] for each in choices]
        # About 65,000 entries, an odd step apart: an even one could hit the same columns again and again.
        sample = vector[:: max(1, size >> 16) | 1]
        energy = np.square(sample, dtype=np.float64)
        energy[::-1].sort()
        total = np.concatenate([[0.0], np.cumsum(energy)])
        if total[-1] == 0:
            return np.ones((len(choices), len(shares)))
        kept = np.clip(np.rint(np.array(entries) * (sample.size / size)).astype(int), 1, sample.size)
        # The largest of a bucket: of more values than a bucket has, about one in 2,048 is larger.
        step = np.sqrt(energy[kept // (2 * BUCKET)]) - np.sqrt(energy[kept - 1])
        step /= 2.0 ** (np.array(choices)[:, None] - 1) - 1
        # Rounding up or down at random by a step has a sixth of its square as variance, on average.
        return np.asarray(np.maximum(total[kept] - kept * step**2 / 6, 0.0) / total[-1])


def find_upload_share(compress: Compressor, size: int) -> float:
    """Bits of a full upload (θ = 1) of so many entries, as a share of all of them in 32 bits."""
    return compress.bits.share_of_floats(size) if isinstance(compress, TopKInBits) else 1.0


def measure_arrival(
    compress: Compressor, vector: Float32Array, shares: tuple[float, ...]
) -> tuple[float, ...]:
    """The share of ‖x‖² that an update carries at several θ."""
    if isinstance(compress, TopKInBits):
        return compress.measure_arrival(vector, shares)
    return measure_kept_energy(vector, shares)


def round_values(size: int, bits: int, indices: Int32Array, values: Float32Array, key: int) -> RoundedUpdate:
    """Rounds values randomly, without bias, to 2^(bits−1) levels between the least and largest magnitude."""
    draw, levels = make_generator_from_key(key), 2 ** (bits - 1) - 1
    padded = np.zeros((-(-values.size // BUCKET), BUCKET), np.float32)
    magnitude = np.abs(values, out=padded.reshape(-1)[: values.size])
    low = magnitude.min()
    magnitude -= low
    scales, codes = np.empty(len(padded), np.float32), np.empty(padded.shape, np.int32)
    noise = np.empty((_BUCKETS_AT_ONCE, BUCKET), np.float32)
    for start in range(0, len(padded), _BUCKETS_AT_ONCE):
        part = slice(start, start + _BUCKETS_AT_ONCE)
        grid = padded[part]
        scale = np.divide(grid.max(axis=1), levels, out=scales[part])
        grid *= np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)[:, None]
        # ⌊x + u⌋ with u uniform in [0, 1) rounds up with probability x − ⌊x⌋: without bias.
        grid += draw.random(out=noise[: len(grid)], dtype=np.float32)
        codes[part] = np.minimum(grid, levels, out=grid)
    own = codes.reshape(-1)[: values.size]
    own += np.signbit(values) * np.int32(2 ** (bits - 1))
    tensors = (torch.from_numpy(each) for each in (indices, np.atleast_1d(low), scales, own))
    return RoundedUpdate(size, bits, *tensors)


def randomk(vector: Tensor, theta: float, key: int) -> Update:
    """Keeps k random entries, unscaled: a contraction, E‖x − Q(x)‖² = (1 − k/d)‖x‖²."""
    kept = count_entries(theta, vector.numel())
    if kept == vector.numel():
        return DenseUpdate(vector.clone())
    places = draw_places(key, vector.numel(), kept)
    return SampledUpdate(vector.numel(), key, vector.index_select(0, places))


def jl(vector: Tensor, theta: float, key: int) -> Update:
    """Projects onto k random directions of a randomly signed block-Hadamard basis (Johnson–Lindenstrauss).

    The receiver multiplies by the transpose: an orthogonal projection, so E‖x − Q(x)‖² = (1 − k/d′)‖x‖²,
    with d′ the padded length. It takes O(d) time and never forms a dense matrix.
    """
    rotation = BlockRotation(vector.numel(), key)
    kept = count_entries(theta, rotation.padded)
    if count_entries(theta, vector.numel()) == vector.numel():
        return DenseUpdate(vector.clone())
    places = draw_places(key, rotation.padded, kept)
    return SampledUpdate(vector.numel(), key, rotation.forward(vector)[places], rotation)


def quantise(vector: Tensor, theta: float, key: int) -> Update:
    """Rounds entries randomly, without bias, to 2^(bits−1) − 1 levels per sign (FedPAQ, QSGD).

    bits = round(32·θ), at least 2; above 16 the update is sent uncompressed. The grid spans the largest
    magnitude M of each bucket of 1,024 entries, so E‖x − Q(x)‖² ≤ Σ over buckets 1024·(M/levels)²/4.
    """
    bits = count_bits(theta)
    if bits is None:
        return DenseUpdate(vector.clone())
    levels = 2 ** (bits - 1) - 1
    padded = fill_buckets(vector)
    scales = padded.abs().amax(1).div_(levels)
    noise = make_generator_from_key(key).random(padded.shape, dtype=np.float32)
    grid = torch.where(scales[:, None] > 0, padded / scales[:, None], 0.0)
    # floor(x + u) with u uniform in [0, 1) rounds up with probability x − ⌊x⌋: without bias.
    codes = grid.add_(torch.from_numpy(noise)).floor_().clamp_(-levels, levels).to(torch.int16)
    return QuantisedUpdate(vector.numel(), bits, codes.view(-1), scales)


def uveqfed(vector: Tensor, theta: float, key: int) -> Update:
    """Rounds pairs of entries to a hexagonal lattice with subtractive dither (UVeQFed).

    Both ends draw the same dither, a random point of a cell of the lattice: the device adds it before it
    rounds, the edge server subtracts it. So the error does not depend on the vector: it is uniform over a
    cell, without bias, with E‖x − Q(x)‖² = 5/36·s² per pair at a distance s between points. An entry takes
    round(32·θ) bits, at least 2; above 16 the update is sent uncompressed.

    Reference: Shlezinger, Chen, Eldar, Poor, Cui, "UVeQFed: Universal Vector Quantization for Federated
    Learning", IEEE Transactions on Signal Processing 2020 (arXiv 2006.03262). Kept: subtractive dithered
    lattice quantisation, in two dimensions as in its experiments. Not kept: points are sent with a fixed
    number of bits instead of an entropy code; s follows the largest entry of each bucket of 1,024, where the
    paper scales by the norm of the whole vector and lets rare points overload.
    """
    bits = count_bits(theta)
    if bits is None:
        return DenseUpdate(vector.clone())
    levels = 2 ** (bits - 1) - 1
    padded = fill_buckets(vector)
    coordinates = to_lattice(padded.view(-1, 2)).view(padded.shape)
    # With the dither, half a point may be added before rounding up: no point is beyond the last level.
    scales = coordinates.abs().amax(1).div_(levels - 0.5)
    grid = torch.where(scales[:, None] > 0, coordinates / scales[:, None], 0.0).view(-1, 2)
    codes = find_nearest(grid + draw_dither(key, padded.numel())).clamp_(-levels - 1, levels)
    update = LatticeUpdate(vector.numel(), bits, key, codes.to(torch.int16).view(-1), scales)
    # What fills up the last bucket is not sent.
    update.codes[update.sent :] = 0
    return update


def find_chances(magnitudes: FloatArray, count: float) -> FloatArray:
    """Chances to be drawn, p ∝ magnitude but at most 1, that sum to `count`: ATOMO's, of least variance.

    The largest get 1 where their share of the rest would be more. Magnitudes of zero get none.
    """
    if count >= np.count_nonzero(magnitudes):
        return (magnitudes > 0).astype(np.float64)
    ordered = np.sort(magnitudes)[::-1].astype(np.float64)
    rest = np.cumsum(ordered[::-1])[::-1]
    certain = int(np.argmax((count - np.arange(ordered.size)) * ordered <= rest))
    return np.asarray(np.minimum(1.0, magnitudes * ((count - certain) / rest[certain])))


def draw_atoms(chances: FloatArray, draw: float) -> IndexArray:
    """Draws atoms with these chances, as many as they sum to, rounded up or down; ascending.

    Where the sum of chances passes an integer plus `draw`, the atom is drawn.
    """
    marks = np.floor(np.cumsum(chances) - draw) + 1
    return np.flatnonzero(np.diff(marks, prepend=0.0) > 0)


def atomo(vector: Tensor, theta: float, key: int, shapes: Sequence[tuple[int, ...]] = ()) -> Update:
    """Keeps random atoms, divided by their chances, so that nothing is lost on average (ATOMO).

    The atoms of a matrix are its singular vectors, those of all else its entries. Chances follow singular
    values or magnitudes, with a sum that makes a share θ of all numbers. θ = 1 is exact. Without `shapes`,
    those of the tensors in the vector, all atoms are entries.

    Reference: Wang, Sievert, Liu, Charles, Papailiopoulos, Wright, "ATOMO: Communication-efficient Learning
    via Atomic Sparsification", NeurIPS 2018 (arXiv 1806.04090). Kept: spectral atoms of every layer, kernels
    as outputs × rest, and chances of least variance. Not kept: atoms are drawn systematically, with the same
    chances each and therefore the same variance, but always as many as fit, where the paper tosses a coin for
    each; what is compressed is the update of an edge round instead of a gradient.
    """
    count_entries(theta, vector.numel())
    if theta == 1:
        return DenseUpdate(vector.clone())
    draw = make_generator_from_key(key)
    alone, blocks, start = vector.clone(), [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        if len(shape) > 1:
            rows = shape[0]
            blocks.append(_draw_spectrum(vector[start:stop].view(rows, -1), theta, draw.random(), start))
            alone[start:stop] = 0.0
        start = stop
    own = vector.numel() - sum(each.left.shape[1] * each.right.shape[1] for each in blocks)
    chances = find_chances(alone.abs().double().numpy(), theta * own)
    drawn = draw_atoms(chances, draw.random())
    values = alone.numpy()[drawn] / chances[drawn].astype(np.float32)
    places = torch.from_numpy(drawn.astype(np.int32))
    entries = SparseUpdate(vector.numel(), places, torch.from_numpy(values))
    return AtomicUpdate(entries, tuple(blocks)) if blocks else entries


def _draw_spectrum(matrix: Tensor, theta: float, draw: float, start: int) -> Factors:
    """Some singular atoms of a matrix, as many as a share θ of its numbers holds on average."""
    rows, columns = matrix.shape
    left, singular, right = torch.linalg.svd(matrix, full_matrices=False)
    chances = find_chances(singular.double().numpy(), theta * rows * columns / (rows + columns))
    drawn = draw_atoms(chances, draw)
    values = singular[drawn] / torch.from_numpy(chances[drawn].astype(np.float32))
    return Factors(start, left.T[drawn].contiguous(), right[drawn] * values[:, None])


def fit_compressor(compress: Compressor, shapes: Sequence[tuple[int, ...]]) -> Compressor:
    """The compressor for vectors made of tensors of these shapes, where it uses them."""
    return partial(atomo, shapes=tuple(shapes)) if compress is atomo else compress


BUILTIN: Mapping[str, Compressor] = MappingProxyType(
    {
        "topk": topk,
        "randomk": randomk,
        "jl": jl,
        "quantise": quantise,
        "uveqfed": uveqfed,
        "atomo": atomo,
        "none": none,
    }
)


def compressor(name: str, code: CodePolicy = BUILT_IN_ONLY) -> Compressor:
    """The compressor called `name`: built in, or an entry point `cfel.compression` or "module:function"."""
    found: Compressor = resolve("compression", name, BUILTIN, ("vector", "theta", "key"), code=code)
    if name in BUILTIN:
        return found

    def compress(vector: Tensor, theta: float, key: int) -> Update:
        update = found(vector, theta, key)
        _check_update(name, update, vector.numel())
        return update

    return compress


def _check_update(name: str, update: object, size: int) -> None:
    """Raises where a user-defined compressor returns no valid update, and not later, where it is used."""
    lacking = [part for part in ("size", "wire_bits", "add_to") if not hasattr(update, part)]
    if lacking:
        raise InputError(
            f"compression {name!r} returned a {type(update).__name__}, not an update: it has no {lacking[0]}"
        )
    if update.size != size:  # type: ignore[attr-defined]
        raise InputError(
            f"compression {name!r} returned an update of {update.size} entries for a vector of {size}"  # type: ignore[attr-defined]
        )
