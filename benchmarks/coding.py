"""`python -m benchmarks coding`: how small updates get, how fast, and how much of them arrives.

An update with few large entries and many small ones, as training makes them, is compressed and packed. Speeds
are of the dense update, by CPU time of one core, the best of several runs.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from cfel.cli.output import new_table, print_table
from cfel.learning.compressors import Compressor, TopKInBits, decode, keep_largest, round_values
from cfel.learning.packing import pack_update, unpack_update
from cfel.learning.top_k import find_largest
from cfel.learning.torch_state import prepare_process, prepare_thread
from cfel.seeding import make_generator
from cfel.system.value_bits import FLOAT_BITS, ValueBits

LEAST_MEGABYTES_PER_SECOND = 200
ENTRIES = 6_603_710
"""As many as LEAF's CNN has."""
SHARES = (0.01, 0.1, 1.0)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Coding:
    """One way to send an update."""

    bits: str  # bits per value, and "of …" where devices choose
    share: float  # of the entries; of the bits of a full upload where devices choose
    bits_per_parameter: float
    arrives: float  # share of the update's energy
    packing: float  # MB/s of dense update: compress and pack
    unpacking: float  # the same: unpack and add to a model


@dataclass(frozen=True, slots=True)
class Results:
    """All measurements."""

    entries: int
    codings: Sequence[Coding]

    def document(self) -> dict[str, Any]:
        """The results as plain values."""
        return asdict(self)

    def show(self, console: Console) -> None:
        """Prints the results as a table."""
        table = new_table("bits", "share", "bits per parameter", "arrives", "pack MB/s", "unpack MB/s")
        for each in self.codings:
            numbers = (f"{each.bits_per_parameter:.3f}", f"{each.arrives:.3f}")
            speeds = (f"{each.packing:,.0f}", f"{each.unpacking:,.0f}")
            table.add_row(each.bits, f"{each.share:g}", *numbers, *speeds)
        title = f"{self.entries:,} entries, one core (goal: at least {LEAST_MEGABYTES_PER_SECOND} MB/s)"
        print_table(console, title, table)


def measure(*, quick: bool, only: None = None) -> Results:  # noqa: ARG001 — it has no parts
    """Runs the benchmark."""
    prepare_process()
    prepare_thread()
    size, repeats = (ENTRIES // 10, 2) if quick else (ENTRIES, 5)
    draw = make_generator(0, "bench update")
    vector = torch.from_numpy(draw.standard_normal(size, dtype=np.float32) ** 3)
    found = [
        measure_coding(str(bits), share, vector, _send_share(bits, share), repeats)
        for bits in (FLOAT_BITS, 16, 8, 4)
        for share in SHARES
    ]
    chosen = TopKInBits(ValueBits((4, 8, 16, FLOAT_BITS)))
    for share in SHARES:
        bits = chosen.choose_bits(vector.numpy(), share)
        found.append(measure_coding(f"{bits} of 4–32", share, vector, chosen, repeats))
    return Results(size, found)


def _send_share(bits: int, share: float) -> Compressor:
    """Top-k of this share of the entries, with so many bits per value."""

    def compress(vector: Tensor, theta: float, key: int) -> Any:  # noqa: ANN401, ARG001 — an update
        kept = max(1, round(share * vector.numel()))
        if bits == FLOAT_BITS:
            return keep_largest(vector, kept)
        return round_values(vector.numel(), bits, *find_largest(vector.numpy(), kept), key)

    return compress


def measure_coding(bits: str, share: float, vector: Tensor, compress: Compressor, repeats: int) -> Coding:
    """Sends an update one way."""
    size, dense = vector.numel(), torch.zeros(vector.numel())
    packing, content = find_best(lambda: pack_update(compress(vector, share, 1)), repeats)
    unpacking, _ = find_best(lambda: unpack_update(content, size).add_to(dense, 0.0), repeats)
    lost = (decode(unpack_update(content, size)) - vector).double().square().sum()
    arrives = 1 - float(lost / vector.double().square().sum())
    megabytes = 4 * size / 1e6
    return Coding(bits, share, 8 * len(content) / size, arrives, megabytes / packing, megabytes / unpacking)


def find_best(call: Callable[[], Result], repeats: int) -> tuple[float, Result]:
    """The least CPU seconds of several calls, and the result of the last one."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        result = call()
        best = min(best, time.process_time() - begin)
    return best, result
