"""Figures that need no training: what CEF uses by seed, and what the time weight of HCEF+ does to both gains.

    python experiments/dry_runs.py use [SEEDS]
    python experiments/dry_runs.py weights cifar10|femnist [SEED ...]

Gains are steps per second and per joule over CEF, in six rounds of the paper's setting.
"""

import sys
from itertools import islice

import numpy as np

from cfel.experiment import preset_experiment
from cfel.rounds.dry_run import dry_run

ROUNDS = 6
WEIGHTS = (0.6, 0.7, 0.8, 0.9, 0.95)


def show_use(seeds: int) -> None:
    """Prints how long 40 rounds of CEF take on FEMNIST."""
    settings = (
        preset_experiment("paper-femnist", [f"seed={seed}", "budget.share_of_cef=1"]).build_setting()
        for seed in range(seeds)
    )
    found = np.array([setting.budget.seconds for setting in settings])
    print(f"least {found.min():.3g} s, median {np.median(found):.3g} s, most {found.max():.3g} s")


def run_rounds(dataset: str, *changes: str) -> tuple[float, float, float]:
    """Seconds, joules and mean share of steps of the first rounds."""
    setting = preset_experiment(f"paper-{dataset}", changes).build_setting()
    rounds = list(islice(dry_run(setting), ROUNDS))
    share = np.mean([plan.rho.mean() for each in rounds for plan in each.plans])
    return rounds[-1].ledger.seconds, rounds[-1].ledger.joules, float(share)


def show_weights(dataset: str, seeds: list[str]) -> None:
    """Prints both gains of HCEF+ for several time weights."""
    for seed in seeds:
        cef_seconds, cef_joules, _ = run_rounds(dataset, f"seed={seed}", "scheme.name=cef")
        for weight in WEIGHTS:
            changes = (
                f"seed={seed}",
                "scheme.name=hcef_plus",
                f"scheme.options.time_weight={weight}",
            )
            seconds, joules, share = run_rounds(dataset, *changes)
            gains = f"{cef_seconds / seconds * share:.2f}×, {cef_joules / joules * share:.2f}×"
            print(f"seed {seed}, time_weight {weight}: {gains}")


if __name__ == "__main__":
    if sys.argv[1] == "use":
        show_use(int(sys.argv[2]) if len(sys.argv) > 2 else 20)
    else:
        show_weights(sys.argv[2], sys.argv[3:] or ["10", "11"])
