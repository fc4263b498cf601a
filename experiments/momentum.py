"""What momentum and the learning rate do to each scheme: realised costs to an accuracy as a Markdown table.

    python experiments/momentum.py OUT TARGET

OUT holds the runs of `differences.sh`. A gain divides CEF's cost by the scheme's under the same choice. The
last row is a mixed pair, CEF without kept momentum against the others with it: how much of a gain such a
difference can feign.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from cfel.report import load_runs
from cfel.report.summary import measure

CHOICES = {
    "none": "kept from edge round to edge round",
    "local.momentum_state=reset": "dropped after every edge round",
    "local.momentum=0": "no momentum",
    "local.learning_rate=0.03": "kept, learning rate 0.03 instead of 0.1",
}
SCHEMES = ("cef", "hcef", "hcef_plus")
Costs = Mapping[str, tuple[float, float] | None]


def find_costs(out: Path, choice: str, target: float) -> dict[str, tuple[float, float] | None]:
    """Seconds and joules to the target of each scheme, with the first seed; None if it was not reached."""
    found: dict[str, tuple[float, float] | None] = {}
    for run in load_runs(out / choice):
        values = measure(run, target)
        seconds, joules = values["seconds_to_target"], values["joules_to_target"]
        found.setdefault(run.scheme, None if seconds is None or joules is None else (seconds, joules))
    return found


def format_row(name: str, reference: Costs, costs: Costs) -> str:
    """One row: costs of each scheme and its gains over the reference's CEF."""
    cells = [name]
    cef = reference["cef"]
    for scheme in SCHEMES:
        own = cef if scheme == "cef" else costs[scheme]
        if own is None or cef is None:
            cells.append("not reached")
            continue
        cell = f"{own[0] / 1e4:.2f}·10⁴ s, {own[1] / 1e3:.1f} kJ"
        gains = "" if scheme == "cef" else f" ({cef[0] / own[0]:.2f}×, {cef[1] / own[1]:.2f}×)"
        cells.append(cell + gains)
    return f"| {' | '.join(cells)} |"


def format_table(out: Path, target: float) -> str:
    """All choices, and the mixed pair."""
    found = {choice: find_costs(out, choice, target) for choice in CHOICES}
    rows = [format_row(name, found[choice], found[choice]) for choice, name in CHOICES.items()]
    rows.append(
        format_row("dropped for CEF, kept for the others", found["local.momentum_state=reset"], found["none"])
    )
    return "\n".join(["| Momentum | CEF | HCEF | HCEF+ |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    print(format_table(Path(sys.argv[1]), float(sys.argv[2])))
