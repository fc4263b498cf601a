"""Realised time and energy to an accuracy, interpolated between rounds, as a table.

    python experiments/crossing.py DIR TARGET

DIR holds one folder per scheme, as in `results/table1-femnist-full`. A plan of random steps takes longer than
the controller expects, because a round waits for its slowest device. So the table shows the time that a clock
would show (realised) first, and the expected time beside it. Between the last round below the target and the
first at or above it, time and energy are interpolated; otherwise short rounds would have an advantage.
"""

import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from cfel.report import load_runs
from cfel.runlog import RoundRecord


class Crossing(NamedTuple):
    """What a run had spent when it reached the target."""

    realised_seconds: float
    expected_seconds: float
    joules: float


def find_crossing(rounds: Sequence[RoundRecord], target: float) -> Crossing | None:
    """What was spent at the target; None for a run that does not reach it after its first round."""
    for before, after in pairwise(rounds):
        if (
            before.accuracy is None
            or after.accuracy is None
            or not before.accuracy < target <= after.accuracy
        ):
            continue
        share = (target - before.accuracy) / (after.accuracy - before.accuracy)
        pairs = (
            (before.seconds_realised, after.seconds_realised),
            (before.seconds_expected, after.seconds_expected),
            (before.joules_realised, after.joules_realised),
        )
        return Crossing(*(low + share * (high - low) for low, high in pairs))
    return None


def format_table(found: Mapping[str, Crossing]) -> str:
    """The schemes in a Markdown table, with their gains over CEF in realised time and in energy."""
    reference = found["cef"]
    lines = ["| Scheme | Time | expected | Energy | Gain over CEF |", "|---|---|---|---|---|"]
    for scheme, cost in found.items():
        time, energy = reference.realised_seconds / cost.realised_seconds, reference.joules / cost.joules
        seconds = [f"{each / 1e4:.2f}·10⁴ s" for each in (cost.realised_seconds, cost.expected_seconds)]
        gains = f"{time:.2f}×, {energy:.2f}×"
        lines.append(f"| {scheme} | {seconds[0]} | {seconds[1]} | {cost.joules / 1e3:.1f} kJ | {gains} |")
    return "\n".join(lines)


def main(directory: Path, target: float) -> None:
    """Prints the table."""
    runs = {run.scheme: find_crossing(run.records, target) for run in load_runs(directory)}
    print(format_table({scheme: cost for scheme, cost in runs.items() if cost is not None}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
