"""Learning rates per scheme: the table of selected rates, and the selection by grid search.

The grid is evaluated on held-out training samples, never on test samples. The criterion is the mean accuracy
over the last evaluated rounds, as a single round is noisy; ties go to the smaller rate.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import tomli_w

from cfel import validation
from cfel.errors import InputError, describe_error
from cfel.report import Run

LAST_ROUNDS = 3


def load_rates(file: Path, dataset: str, scale: str) -> dict[str, float]:
    """The selected learning rate of each scheme in the table.

    Args:
        file: a table like `experiments/rates.toml`.
        dataset: its first key.
        scale: its second key.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"--rates {file}: cannot be read: {describe_error(error)}") from error
    table = document.get(dataset, {}).get(scale, {})
    return {
        scheme: validation.check_number(f"{file}: {dataset}.{scale}.{scheme}", rate, above=0)
        for scheme, rate in table.items()
    }


def closing_accuracy(run: Run) -> float:
    """Mean accuracy over the last evaluated rounds; 0 if the run diverged before the first one."""
    found = [record.accuracy for record in run.records if record.accuracy is not None]
    return fmean(found[-LAST_ROUNDS:]) if found else 0.0


def select_rates(runs: Mapping[float, Sequence[Run]]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """The best rate of each scheme, and the accuracies of all rates.

    Args:
        runs: by learning rate.
    """
    tried: dict[str, dict[float, list[float]]] = {}
    # In ascending order, so that `max` below takes the smaller of two equal rates.
    for rate in sorted(runs):
        for run in runs[rate]:
            tried.setdefault(run.scheme, {}).setdefault(rate, []).append(closing_accuracy(run))
    means = {scheme: {rate: fmean(values) for rate, values in by.items()} for scheme, by in tried.items()}
    best = {scheme: max(by, key=lambda rate: by[rate]) for scheme, by in means.items()}
    return best, {scheme: {f"{rate:g}": value for rate, value in by.items()} for scheme, by in means.items()}


def dump_rates(dataset: str, scale: str, chosen: Mapping[str, float]) -> str:
    """The selected rates as TOML that `load_rates` reads."""
    return tomli_w.dumps({dataset: {scale: dict(chosen)}})
