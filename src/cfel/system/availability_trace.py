"""Availability traces: when devices were there, one row per interval, from CSV or Parquet.

Columns: `device`, `start` and `end` (seconds; a device is there from the start until just before the end).
Devices are numbers 0 … N−1, or names, which are numbered in order of first appearance. After its last end a
trace starts again. The form with a row per device and round is a trace of conditions (`traces`, `available`).
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cfel.arrays import BoolArray, FloatArray, IntArray
from cfel.errors import InputError
from cfel.system.files.tables import Table, number_texts, read_table
from cfel.wording import plural

REQUIRED = ("device", "start", "end")
_NUMBER = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True, eq=False)
class AvailabilityTrace:
    """A trace in memory: one entry per interval, and how long a global round is on its clock.

    Attributes:
        source: the file, for messages.
        device: whose interval it is.
        start, end: seconds since the first start.
        round_seconds: seconds of the trace that a global round stands for.
        named: number of named devices; None if the file has numbers, where a device without a row is absent.
    """

    source: str
    device: IntArray
    start: FloatArray
    end: FloatArray
    round_seconds: float
    named: int | None

    def is_absent(self, global_round: int, devices: int) -> BoolArray:
        """Whether each device is absent at the beginning of a global round."""
        if self.named is not None and devices > self.named:
            raise InputError(
                f"fleet.devices = {devices}: {self.source} has only {plural(self.named, 'device')}"
            )
        now = (global_round * self.round_seconds) % float(self.end.max())
        there = self.device[(self.start <= now) & (now < self.end)]
        absent = np.ones(devices, dtype=bool)
        absent[there[there < devices]] = False
        return absent


def read_availability(path: str | Path, round_seconds: float) -> AvailabilityTrace:
    """Reads an availability trace (columns: see the module).

    Raises:
        FleetFileError: names file, line, column and value of the first thing that is wrong.
    """
    table = read_table(path, REQUIRED, ("start", "end"), ("device",))
    start, end = table.floats("start"), table.floats("end")
    wrong = end <= start
    if wrong.any():
        row = int(np.argmax(wrong))
        raise table.error("end", row, f"after the start, which is {start[row]:g} there")
    first = float(start.min())
    device, named = _number_devices(table)
    return AvailabilityTrace(str(path), device, start - first, end - first, round_seconds, named)


def _number_devices(table: Table) -> tuple[IntArray, int | None]:
    codes, labels = number_texts(table.texts("device"))
    if all(_NUMBER.fullmatch(label) for label in labels):
        return np.array([int(label) for label in labels], dtype=np.int64)[codes], None
    return codes, len(labels)
