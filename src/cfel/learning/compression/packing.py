"""Updates as bytes, and back: no more bits than `wire_bits` counts, but for a short header and whole bytes.

Meant for whoever sends updates over a network; nothing here is pickled, and what comes in is checked before
it is used. Numbers are little-endian. The header is the kind, d, the number of values and one more field.
"""

import struct

import numpy as np
import torch

from cfel.arrays import Int32Array, IntArray
from cfel.errors import InputError
from cfel.learning.compression.compressors import (
    BUCKET,
    DenseUpdate,
    QuantisedUpdate,
    SampledUpdate,
    SparseUpdate,
    Update,
    index_bits,
)
from cfel.learning.compression.projection import BlockRotation

_HEADER = struct.Struct("<B I I I")
HEADER_BITS = 8 * _HEADER.size
_DENSE, _BITMAP, _PACKED, _SAMPLED, _ROTATED, _QUANTISED = range(6)


def pack(update: Update) -> bytes:
    """An update as bytes.

    Raises:
        InputError: it is of a kind that does not come with cfel.
    """
    match update:
        case DenseUpdate():
            return _HEADER.pack(_DENSE, update.size, update.size, 0) + _floats(update.values)
        case SparseUpdate():
            return _pack_sparse(update)
        case SampledUpdate():
            kind = _SAMPLED if update.rotation is None else _ROTATED
            header = _HEADER.pack(kind, update.size, update.values.numel(), 0)
            return header + update.key.to_bytes(16, "little") + _floats(update.values)
        case QuantisedUpdate():
            header = _HEADER.pack(_QUANTISED, update.size, update.scales.numel(), update.bits)
            offset = update.codes[: update.size].numpy().astype(np.int64) + 2 ** (update.bits - 1)
            return header + _floats(update.scales) + _bits(offset, update.bits)
    raise InputError(f"update: a {type(update).__name__} has no form on the wire")


def unpack(content: bytes | bytearray, expected_size: int | None = None) -> Update:
    """The update that `pack` was given.

    Args:
        content: the bytes.
        expected_size: d, for bytes from a stranger: memory is taken only once the header says the same.

    Raises:
        InputError: the bytes are not an update, or not one of that size.
    """
    try:
        kind, size, count, extra = _HEADER.unpack_from(content)
        if expected_size is not None and size != expected_size:
            raise InputError(f"update: {size} entries, the model has {expected_size}")
        return _unpacked(kind, size, count, extra, content[_HEADER.size :])
    except (struct.error, ValueError) as error:
        raise InputError(f"update: {len(content)} bytes that are not one ({error})") from error


def _unpacked(kind: int, size: int, count: int, extra: int, body: bytes | bytearray) -> Update:
    if kind == _DENSE:
        return DenseUpdate(_from_floats(body, size))
    if kind in (_BITMAP, _PACKED):
        indices = _indices(kind, size, count, body[4 * count :])
        return SparseUpdate(size, torch.from_numpy(indices), _from_floats(body[: 4 * count], count))
    if kind in (_SAMPLED, _ROTATED):
        key = int.from_bytes(body[:16], "little")
        rotation = BlockRotation(size, key) if kind == _ROTATED else None
        if count > (size if rotation is None else rotation.padded):
            raise InputError(f"update: {count} values of {size} entries")
        return SampledUpdate(size, key, _from_floats(body[16:], count), rotation)
    if kind == _QUANTISED and 2 <= extra <= 16 and count > 0:
        return _unpack_quantised(size, count, extra, body)
    raise InputError(f"update: unknown kind {kind}")


def _pack_sparse(update: SparseUpdate) -> bytes:
    size, indices = update.size, update.indices.numpy()
    width = _width(size)
    if index_bits(size, indices.size) == size:
        mask = np.zeros(size, dtype=np.uint8)
        mask[indices] = 1
        kind, places = _BITMAP, np.packbits(mask).tobytes()
    else:
        kind, places = _PACKED, _bits(indices.astype(np.int64), width)
    return _HEADER.pack(kind, size, indices.size, 0) + _floats(update.values) + places


def _indices(kind: int, size: int, count: int, body: bytes | bytearray) -> Int32Array:
    if kind == _BITMAP:
        mask = np.unpackbits(np.frombuffer(body, dtype=np.uint8), count=size)
        found = np.flatnonzero(mask.view(np.bool_)).astype(np.int32)
    else:
        found = _from_bits(body, count, _width(size)).astype(np.int32)
    if found.size != count or (count and (found[-1] >= size or (np.diff(found) <= 0).any())):
        raise InputError("update: its indices are not ascending, or not as many as its values")
    return found


def _unpack_quantised(size: int, buckets: int, bits: int, body: bytes | bytearray) -> QuantisedUpdate:
    if buckets != -(-size // BUCKET):
        raise InputError(f"update: {buckets} buckets for {size} entries")
    codes = np.zeros(buckets * BUCKET, dtype=np.int16)
    codes[:size] = _from_bits(body[4 * buckets :], size, bits) - 2 ** (bits - 1)
    return QuantisedUpdate(size, bits, torch.from_numpy(codes), _from_floats(body[: 4 * buckets], buckets))


def _width(size: int) -> int:
    """Bits of one index; what `index_bits` counts."""
    return max(1, (size - 1).bit_length())


def _floats(values: torch.Tensor) -> bytes:
    return values.numpy().astype("<f4", copy=False).tobytes()


def _from_floats(content: bytes | bytearray, count: int) -> torch.Tensor:
    values = np.frombuffer(content, dtype="<f4")
    if values.size != count:
        raise InputError(f"update: {values.size} values, {count} expected")
    return torch.from_numpy(values.astype(np.float32))


def _bits(numbers: IntArray, width: int) -> bytes:
    """Non-negative integers below 2^width, `width` bits each."""
    places = np.arange(width - 1, -1, -1)
    return np.packbits(((numbers[:, None] >> places) & 1).astype(np.uint8)).tobytes()


def _from_bits(content: bytes | bytearray, count: int, width: int) -> IntArray:
    bits = np.unpackbits(np.frombuffer(content, dtype=np.uint8))
    if not 0 <= bits.size - count * width < 8:
        raise InputError(f"update: {bits.size} bits for {count} numbers of {width}")
    digits = bits[: count * width].reshape(count, width).astype(np.int64)
    return np.asarray(digits @ (1 << np.arange(width - 1, -1, -1)))
