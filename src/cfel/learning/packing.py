"""The wire format of updates: `pack_update` makes bytes, `unpack_update` reads them.

A packed update has as many bits as its `wire_bits`, plus short headers and rounding to whole bytes. Nothing
is pickled, and bytes are checked before they are used. Numbers are little-endian.

    header           kind, d, number of values, one more field
    dense            values
    sparse (top-k)   values, then their indices: as a bitmap or packed, whichever is shorter (`_pack_indices`)
    rounded          least magnitude, scales, codes, then indices: as a bitmap or coded (`_pack_places`)
    sampled          key, values: the receiver draws the same places from the key
    quantised        scales, codes
    lattice          key, scales, codes
    atomic           start, rows, columns, atoms of every matrix; all factors; entries as a sparse update
"""

import struct

import numpy as np
import torch

from cfel.arrays import Int32Array, IntArray
from cfel.errors import InputError
from cfel.learning.compressors import (
    KEY_BITS,
    AtomicUpdate,
    BlockRotation,
    DenseUpdate,
    Factors,
    LatticeUpdate,
    QuantisedUpdate,
    RoundedUpdate,
    SampledUpdate,
    SparseUpdate,
    Update,
)
from cfel.system.value_bits import (
    BUCKET,
    CHOICES,
    FLOAT_BITS,
    coded_places_bits,
    index_bits,
    low_width,
    place_bits,
)

_HEADER = struct.Struct("<B I I I")
# Numbers unpacked at once; of any width they fill whole bytes.
_BLOCK = 8192
_KEY_BYTES = KEY_BITS // 8
_DENSE, _BITMAP, _PACKED, _SAMPLED, _ROTATED, _QUANTISED, _LATTICE, _ATOMIC, _ROUNDED = range(9)
_MATRIX = struct.Struct("<I I I I")
_MOST_MATRICES = 10_000
"""More than any model has; each takes time, however small it is."""


def pack_update(update: Update) -> bytes:
    match update:
        case DenseUpdate():
            return _HEADER.pack(_DENSE, update.size, update.size, 0) + _pack_floats(update.values)
        case SparseUpdate():
            kind, indices = _pack_indices(update.indices.numpy(), update.size)
            header = _HEADER.pack(kind, update.size, update.values.numel(), 0)
            return header + _pack_floats(update.values) + indices
        case RoundedUpdate():
            header = _HEADER.pack(_ROUNDED, update.size, update.codes.numel(), update.bits)
            scales = _pack_floats(torch.cat([update.low, update.scales]))
            codes = _pack_numbers(update.codes.numpy(), update.bits)
            return header + scales + codes + _pack_places(update.indices.numpy(), update.size)
        case SampledUpdate():
            kind = _SAMPLED if update.rotation is None else _ROTATED
            header = _HEADER.pack(kind, update.size, update.values.numel(), 0)
            return header + update.key.to_bytes(_KEY_BYTES, "little") + _pack_floats(update.values)
        case QuantisedUpdate():
            header = _HEADER.pack(_QUANTISED, update.size, update.scales.numel(), update.bits)
            return header + _pack_floats(update.scales) + _pack_codes(update.codes, update.size, update.bits)
        case LatticeUpdate():
            header = _HEADER.pack(_LATTICE, update.size, update.scales.numel(), update.bits)
            codes = _pack_codes(update.codes, update.sent, update.bits)
            return header + update.key.to_bytes(_KEY_BYTES, "little") + _pack_floats(update.scales) + codes
        case AtomicUpdate():
            shapes = [_MATRIX.pack(each.start, *_shape_of(each)) for each in update.blocks]
            factors = [_pack_floats(part) for each in update.blocks for part in (each.left, each.right)]
            header = _HEADER.pack(_ATOMIC, update.size, len(update.blocks), 0)
            return b"".join((header, *shapes, *factors, pack_update(update.entries)))
    raise InputError(f"update: a {type(update).__name__} has no form on the wire")


def unpack_update(content: bytes | bytearray | memoryview, expected_size: int | None = None) -> Update:
    """The inverse of `pack_update`; for bytes from the network, with the size d that they must have.

    Raises:
        InputError: the bytes are not an update, or not one of that size.
    """
    try:
        kind, size, count, extra = _HEADER.unpack_from(content)
        # Before the body: a header with a huge d must not make the receiver allocate it.
        if expected_size is not None and size != expected_size:
            raise InputError(f"update: {size} entries, the model has {expected_size}")
        return _unpack_body(kind, size, count, extra, memoryview(content)[_HEADER.size :])
    except (struct.error, ValueError) as error:
        raise InputError(f"update: {len(content)} bytes that are not one ({error})") from error


def _unpack_body(kind: int, size: int, count: int, extra: int, body: memoryview) -> Update:
    # Each update has one form only: fields without a meaning are 0.
    if kind not in (_QUANTISED, _LATTICE, _ROUNDED) and (extra or (kind == _DENSE and count != size)):
        raise InputError(f"update: {count} values of {size} entries, {extra}")
    if kind == _DENSE:
        return DenseUpdate(_unpack_floats(body, size))
    if kind in (_BITMAP, _PACKED):
        indices = _unpack_indices(kind, size, count, body[4 * count :])
        return SparseUpdate(size, torch.from_numpy(indices), _unpack_floats(body[: 4 * count], count))
    if kind in (_SAMPLED, _ROTATED):
        key = _unpack_key(body)
        rotation = BlockRotation(size, key) if kind == _ROTATED else None
        # Otherwise drawing the places would fail where the update is used.
        if count > (size if rotation is None else rotation.padded):
            raise InputError(f"update: {count} values of {size} entries")
        return SampledUpdate(size, key, _unpack_floats(body[_KEY_BYTES:], count), rotation)
    if kind in (_QUANTISED, _LATTICE) and 2 <= extra <= 16 and count > 0:
        if kind == _QUANTISED:
            return QuantisedUpdate(size, extra, *_unpack_codes(size, count, extra, body, size))
        key, sent = _unpack_key(body), size + size % 2
        return LatticeUpdate(size, extra, key, *_unpack_codes(size, count, extra, body[_KEY_BYTES:], sent))
    if kind == _ATOMIC:
        return _unpack_atoms(size, count, body)
    if kind == _ROUNDED:
        return _unpack_rounded(size, count, extra, body)
    raise InputError(f"update: unknown kind {kind}")


def _pack_indices(indices: Int32Array, size: int) -> tuple[int, bytes]:
    """Packs ascending indices below `size`, the cheaper way; returns the kind of update and the bytes.

    A bitmap takes one bit per entry of the vector. Packed indices take ⌈log₂ size⌉ bits each, and are shorter
    where only a small share of the entries is sent.
    """
    if index_bits(size, indices.size) == size:
        return _BITMAP, _pack_bitmap(indices, size)
    return _PACKED, _pack_bits(indices.astype(np.int64), _index_width(size))


def _pack_bitmap(indices: Int32Array, size: int) -> bytes:
    mask = np.zeros(size, dtype=np.uint8)
    mask[indices] = 1
    return np.packbits(mask).tobytes()


def _unpack_indices(kind: int, size: int, count: int, body: memoryview) -> Int32Array:
    """The inverse of `_pack_indices`, for an update with `count` values."""
    if kind == _BITMAP:
        if len(body) != -(-size // 8):
            raise InputError(f"update: a bitmap of {len(body)} bytes for {size} entries")
        _check_padding(body, size)
        mask = np.unpackbits(np.frombuffer(body, dtype=np.uint8), count=size)
        found = np.flatnonzero(mask.view(np.bool_)).astype(np.int32)
    else:
        found = _unpack_bits(body, count, _index_width(size))
        # Ascending and distinct: `index_add_` of a repeated index would count its value twice.
        if count and (found[-1] >= size or (found[1:] <= found[:-1]).any()):
            raise InputError("update: its indices are not ascending")
    if found.size != count:
        raise InputError("update: not as many indices as values")
    return found


def _unpack_rounded(size: int, count: int, bits: int, body: memoryview) -> RoundedUpdate:
    if not 0 < count <= size < 2**31 or bits not in CHOICES or bits == FLOAT_BITS:
        raise InputError(f"update: {count} values of {size} entries, with {bits} bits each")
    scales = 4 * (1 - (-count // BUCKET))
    codes = scales + -(-count * bits // 8)
    # Before anything is unpacked: what follows takes memory in proportion to these lengths.
    if len(body) != codes + -(-place_bits(size, count) // 8):
        raise InputError(f"update: {len(body)} bytes for {count} values of {bits} bits and their places")
    floats = _unpack_floats(body[:scales], scales // 4)
    numbers = torch.from_numpy(_unpack_numbers(body[scales:codes], count, bits))
    indices = torch.from_numpy(_unpack_places(body[codes:], size, count))
    return RoundedUpdate(size, bits, indices, floats[:1], floats[1:], numbers)


def _pack_numbers(numbers: Int32Array, bits: int) -> bytes:
    """Packs non-negative integers of 4, 8 or 16 bits; of two in a byte, the first is the lower half."""
    if bits == 4:
        padded = np.pad(numbers, (0, numbers.size % 2)).astype(np.uint8)
        return bytes((padded[::2] | padded[1::2] << 4).data)
    return numbers.astype("<u1" if bits == 8 else "<u2").tobytes()


def _unpack_numbers(content: memoryview, count: int, bits: int) -> Int32Array:
    """The inverse of `_pack_numbers`, of content of the right length."""
    if bits != 4:
        return np.frombuffer(content, "<u1" if bits == 8 else "<u2").astype(np.int32)
    packed = np.frombuffer(content, np.uint8)
    numbers = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)
    if numbers[count:].any():
        raise InputError("update: the bits behind its numbers are not 0")
    return numbers[:count].astype(np.int32)


def _pack_places(indices: Int32Array, size: int) -> bytes:
    """Packs ascending indices below `size`: nothing if all are there, else a bitmap or Elias and Fano's code.

    The code has two parts. The first has a one for every index and, before it, a zero for every step of
    2^width since the index before. The second has the lowest `width` bits of all indices, bit by bit.
    """
    kept = indices.size
    if kept == size:
        return b""
    if _is_bitmap(size, kept):
        return _pack_bitmap(indices, size)
    width = low_width(size, kept)
    steps = np.zeros(kept + ((size - 1) >> width), np.uint8)
    steps[(indices >> width) + np.arange(kept, dtype=np.int32)] = 1
    low = [(indices >> place & 1).astype(np.uint8) for place in range(width)]
    return np.packbits(np.concatenate([steps, *low])).tobytes()


def _unpack_places(content: memoryview, size: int, count: int) -> Int32Array:
    """The inverse of `_pack_places`, of content of the right length."""
    if count == size:
        return np.arange(size, dtype=np.int32)
    _check_padding(content, place_bits(size, count))
    bits = np.unpackbits(np.frombuffer(content, np.uint8), count=place_bits(size, count))
    width = low_width(size, count)
    steps, low = np.split(bits, [size if _is_bitmap(size, count) else count + ((size - 1) >> width)])
    if np.count_nonzero(steps) != count:
        raise InputError("update: not as many places as values")
    found = np.flatnonzero(steps.view(np.bool_)).astype(np.int32)
    if _is_bitmap(size, count):
        return found
    found -= np.arange(count, dtype=np.int32)
    for each in reversed(low.reshape(width, count)):
        found = found << 1 | each
    if found[-1] >= size or (np.diff(found) <= 0).any():
        raise InputError("update: its indices are not ascending")
    return found


def _is_bitmap(size: int, kept: int) -> bool:
    return kept < size and size <= coded_places_bits(size, kept)


def _unpack_key(body: memoryview) -> int:
    if len(body) < _KEY_BYTES:
        raise InputError(f"update: a key of {len(body)} bytes")
    return int.from_bytes(body[:_KEY_BYTES], "little")


def _pack_codes(codes: torch.Tensor, sent: int, bits: int) -> bytes:
    # Bits hold no sign, so codes are shifted to 0 … 2^bits − 1.
    return _pack_bits(codes[:sent].numpy().astype(np.int64) + 2 ** (bits - 1), bits)


def _unpack_codes(
    size: int, buckets: int, bits: int, body: memoryview, sent: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes, filled up to whole buckets, and the scales."""
    if buckets != -(-size // BUCKET):
        raise InputError(f"update: {buckets} buckets for {size} entries")
    codes = np.zeros(buckets * BUCKET, dtype=np.int16)
    codes[:sent] = _unpack_bits(body[4 * buckets :], sent, bits) - 2 ** (bits - 1)
    return torch.from_numpy(codes), _unpack_floats(body[: 4 * buckets], buckets)


def _shape_of(block: Factors) -> tuple[int, int, int]:
    """Rows, columns and atoms."""
    return block.left.shape[1], block.right.shape[1], block.left.shape[0]


def _unpack_atoms(size: int, count: int, body: memoryview) -> AtomicUpdate:
    if not 0 < count <= _MOST_MATRICES:
        raise InputError(f"update: {count} matrices")
    rest, blocks, free = body[_MATRIX.size * count :], [], 0
    for start, rows, columns, atoms in _MATRIX.iter_unpack(body[: _MATRIX.size * count]):
        # In order and apart: a matrix on another would count its entries twice.
        if start < free or start + rows * columns > size or atoms > min(rows, columns):
            raise InputError(f"update: {atoms} atoms of {rows} × {columns} at {start} of {size} entries")
        free = start + rows * columns
        left, right = 4 * atoms * rows, 4 * atoms * columns
        values = [
            _unpack_floats(rest[:left], atoms * rows),
            _unpack_floats(rest[left : left + right], atoms * columns),
        ]
        blocks.append(Factors(start, values[0].view(atoms, rows), values[1].view(atoms, columns)))
        rest = rest[left + right :]
    entries = unpack_update(rest, size)
    if not isinstance(entries, SparseUpdate) or len(blocks) != count:
        raise InputError(f"update: {len(blocks)} of {count} matrices, and a {type(entries).__name__}")
    return AtomicUpdate(entries, tuple(blocks))


def _index_width(size: int) -> int:
    """Bits of one packed index, as `index_bits` counts them."""
    return max(1, (size - 1).bit_length())


def _pack_floats(values: torch.Tensor) -> bytes:
    return values.numpy().astype("<f4", copy=False).tobytes()


def _unpack_floats(content: memoryview, count: int) -> torch.Tensor:
    values = np.frombuffer(content, dtype="<f4")
    if values.size != count:
        raise InputError(f"update: {values.size} values, {count} expected")
    return torch.from_numpy(values.astype(np.float32))


def _pack_bits(numbers: IntArray, width: int) -> bytes:
    """Packs non-negative integers below 2^width, `width` bits each."""
    places = np.arange(width - 1, -1, -1)
    return np.packbits(((numbers[:, None] >> places) & 1).astype(np.uint8)).tobytes()


def _unpack_bits(content: memoryview, count: int, width: int) -> Int32Array:
    # The last byte is filled up: fewer than 8 bits may be left over.
    if not 0 <= 8 * len(content) - count * width < 8:
        raise InputError(f"update: {8 * len(content)} bits for {count} numbers of {width}")
    _check_padding(content, count * width)
    packed, found = np.frombuffer(content, dtype=np.uint8), np.empty(count, dtype=np.int32)
    places = 1 << np.arange(width - 1, -1, -1)
    # Block by block: as digits, all of them would take 64 times the memory of the bytes.
    for start in range(0, count, _BLOCK):
        number, first = min(_BLOCK, count - start), start * width // 8
        bits = np.unpackbits(packed[first : first - (-number * width // 8)], count=number * width)
        found[start : start + number] = bits.reshape(number, width) @ places
    return found


def _check_padding(content: memoryview, used_bits: int) -> None:
    """Raises unless the bits that fill up the last byte are 0."""
    if used_bits % 8 and content[-1] & (0xFF >> used_bits % 8):
        raise InputError("update: the bits behind its numbers are not 0")
