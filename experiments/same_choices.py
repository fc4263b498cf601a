"""HCEF+ beside P-FedAvg with the same batches and momentum, as a Markdown table from the logs of seed 0.

    python experiments/same_choices.py [RESULTS]

P-FedAvg gossips after every edge round, as HCEF+ does. What is left is what HCEF+ itself decides: batches and
uploads per device, and clocks. Costs are realised, and interpolated at the accuracy (`cfel.report.summary`).
"""

import sys
from pathlib import Path

from cfel.report import load_run
from cfel.report.summary import Crossing, find_crossing

ROWS = (("FEMNIST", "femnist", 75), ("CIFAR-10", "cifar10", 55), ("CIFAR-10", "cifar10", 60))
OTHERS = ("p_fedavg", "p_fedavg+slow_clocks")


def format_table(results: Path) -> str:
    """One row per data set and accuracy."""
    lines = [
        "| | P-FedAvg | P-FedAvg with slow clocks | HCEF+ | Gain over the latter |",
        "|---|---|---|---|---|",
    ]
    for name, dataset, percent in ROWS:
        folders = [results / "paper-channel-small" / dataset / other for other in OTHERS]
        own = results / f"paper-channel-{dataset}-full" / "hcef_plus+small_batches"
        costs = [_find_costs(folder / "seed-0", percent / 100) for folder in (*folders, own)]
        clocks, plus = costs[-2:]
        gain = f"{clocks.realised_seconds / plus.realised_seconds:.2f}×, {clocks.joules / plus.joules:.2f}×"
        cells = [f"{each.realised_seconds / 1e4:.2f}·10⁴ s, {each.joules / 1e3:.1f} kJ" for each in costs]
        lines.append(f"| {name} to {percent} % | {' | '.join(cells)} | {gain} |")
    return "\n".join(lines)


def _find_costs(run: Path, target: float) -> Crossing:
    found = find_crossing(load_run(run).records, target)
    if found is None:
        raise SystemExit(f"{run} does not reach {target}")
    return found


if __name__ == "__main__":
    print(format_table(Path(sys.argv[1] if len(sys.argv) > 1 else "results")))
