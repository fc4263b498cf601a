"""What an upload takes whose values have few bits: pure functions of the model's size, θ and bits per value.

With `compression.bits`, θ is a share of the bits of a full upload. So an upload costs θν, whatever its values
have in bits, and planner, accounts and devices agree on its price without knowing them. Fewer bits per value
leave room for more entries.

    bits per value · entries  +  places of the entries  +  32 per bucket of values, and 32

Places are coded by Elias and Fano's method: the lowest bits of every index as they are, and for the rest a
one per entry and a zero per step of 2^width. Its length depends on the number of entries alone, so the price
is exact. `learning.packing` writes it.
"""

from dataclasses import dataclass

from cfel.errors import InputError

FLOAT_BITS = 32
# Values with one scale: it adds 1/32 of a bit per value. Part of the wire format.
BUCKET = 1024
CHOICES = (4, 8, 16, FLOAT_BITS)
"""Bits per value that can be chosen; 32 stands for values as they are."""


def index_bits(size: int, kept: int) -> int:
    """Bits that say which `kept` of `size` entries are sent, beside values that are not rounded."""
    if kept == size:
        return 0
    # A bitmap is shorter from about one entry in log₂ d on.
    return min(size, kept * max(1, (size - 1).bit_length()))


def low_width(size: int, kept: int) -> int:
    """How many of its lowest bits every index is sent with, by Elias and Fano."""
    return max(0, (size // kept).bit_length() - 1)


def coded_places_bits(size: int, kept: int) -> int:
    """Bits of the places by Elias and Fano, for 0 < kept < size."""
    width = low_width(size, kept)
    return kept * (width + 1) + ((size - 1) >> width)


def place_bits(size: int, kept: int) -> int:
    """Bits that say which `kept` of `size` entries are sent, beside rounded values: coded, or a bitmap."""
    return 0 if kept == size else min(size, coded_places_bits(size, kept))


def update_bits(size: int, kept: int, bits: int) -> int:
    """Bits of an upload of `kept` > 0 of `size` entries."""
    if bits == FLOAT_BITS:
        return bits * kept + index_bits(size, kept)
    return bits * kept + FLOAT_BITS * (1 - (-kept // BUCKET)) + place_bits(size, kept)


def check_bits(name: str, bits: int) -> None:
    """Raises an `InputError` unless values can have so many bits."""
    if not isinstance(bits, int) or bits not in CHOICES:
        raise InputError(f"{name} = {bits!r}: must be one of {', '.join(map(str, CHOICES))}")


@dataclass(frozen=True, slots=True)
class ValueBits:
    """The bits per value that devices choose from; `compression.bits`."""

    choices: tuple[int, ...]  # some of 4, 8, 16 and 32, ascending

    def __post_init__(self) -> None:
        if not self.choices or list(self.choices) != sorted(set(self.choices) & set(CHOICES)):
            allowed = ", ".join(map(str, CHOICES))
            raise InputError(f"compression.bits = {list(self.choices)}: must be some of {allowed}, ascending")

    def full_bits(self, size: int) -> int:
        """Bits of a full upload: all entries, each with the most bits."""
        return update_bits(size, size, self.choices[-1])

    def share_of_floats(self, size: int) -> float:
        """The same as a share of all entries in 32 bits."""
        return self.full_bits(size) / (FLOAT_BITS * size)

    def count_entries(self, theta: float, size: int, bits: int) -> int:
        """The most entries that fit into a share θ of a full upload, at least one."""
        if not 0 < theta <= 1:
            raise InputError(f"theta: must lie in (0, 1], got {theta}")
        most = theta * self.full_bits(size)
        # All entries need no places, so they may take less than nearly all.
        if update_bits(size, size, bits) <= most:
            return size
        low, high = 1, size
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if update_bits(size, middle, bits) <= most else (low, middle)
        return low
