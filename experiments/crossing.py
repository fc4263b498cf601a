"""Realised time and energy to an accuracy as a Markdown table, from the logs of a folder.

    python experiments/crossing.py DIR TARGET [SEED ...]

DIR holds one folder per scheme, as in `results/table1-femnist-full`. `cfel.report.summary` says how the
costs at the target are found; with several seeds, gains are geometric means with 95 % intervals.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cfel.report import load_runs, summarise


def format_table(document: Mapping[str, Any]) -> str:
    """The schemes that reached the target with every seed, with their gains over CEF."""
    lines = ["| Scheme | Time | expected | Energy | Gain over CEF | Seeds |", "|---|---|---|---|---|---|"]
    for scheme, row in document["schemes"].items():
        if row["seconds_to_target"] is None:
            continue
        times = [
            f"{row[name] / 1e4:.2f}·10⁴ s" for name in ("seconds_to_target", "expected_seconds_to_target")
        ]
        gains = ", ".join(_format_gain(row, name) for name in ("gain_seconds", "gain_joules"))
        energy = f"{row['joules_to_target'] / 1e3:.1f} kJ"
        lines.append(f"| {scheme} | {times[0]} | {times[1]} | {energy} | {gains} | {len(row['per_seed'])} |")
    return "\n".join(lines)


def _format_gain(row: Mapping[str, Any], name: str) -> str:
    if row[name] is None:
        return "–"
    interval = row["interval"][name]
    return f"{row[name]:.2f}×" + ("" if interval is None else f" ({interval[0]:.2f}–{interval[1]:.2f})")


if __name__ == "__main__":
    directory, target, *seeds = sys.argv[1:]
    runs = [run for run in load_runs(Path(directory)) if not seeds or str(run.seed) in seeds]
    print(format_table(summarise(runs, float(target))))
