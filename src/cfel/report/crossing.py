"""What a run had spent when it reached an accuracy: realised first, and interpolated between rounds.

Steps drawn at random make a round longer than the controller expects, because it waits for its slowest
device. So the time to a target is the time that a clock would show, with the expected time beside it. Between
the last evaluated round below the target and the first at or above it, costs are interpolated; otherwise
schemes with short rounds would have an advantage.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cfel.runlog import RoundRecord


class Crossing(NamedTuple):
    """What a run had spent when it reached the target."""

    realised_seconds: float
    expected_seconds: float
    joules: float


def find_crossing(records: Sequence[RoundRecord], target: float) -> Crossing | None:
    """What was spent at the target; None for a run that does not reach it.

    Before the first evaluated round nothing is known, so a run that reaches the target in it is charged for
    all of it.
    """
    points = [
        (record.accuracy, _costs(record))
        for record in records
        if record.accuracy is not None and math.isfinite(record.accuracy)
    ]
    if points and points[0][0] >= target:
        return points[0][1]
    for (low, before), (high, after) in pairwise(points):
        if low < target <= high:
            share = (target - low) / (high - low)
            return Crossing(*(a + share * (b - a) for a, b in zip(before, after, strict=True)))
    return None


def find_accuracy_at_budget(records: Sequence[RoundRecord], seconds: float, joules: float) -> float:
    """The accuracy when the first of two budgets was used up, realised and interpolated between rounds.

    A run that ends before has its last accuracy; one that uses a budget up before it is evaluated, its first.

    Args:
        records: of the run, at least one of them evaluated.
        seconds: a budget, infinite where there is none.
        joules: likewise.
    """
    evaluated = [(record, record.accuracy) for record in records if record.accuracy is not None]
    used = [max(each.seconds_realised / seconds, each.joules_realised / joules) for each, _ in evaluated]
    return float(np.interp(1.0, used, [accuracy for _, accuracy in evaluated]))


def _costs(record: RoundRecord) -> Crossing:
    return Crossing(record.seconds_realised, record.seconds_expected, record.joules_realised)
