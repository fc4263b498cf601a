"""Runs to report on, from a run directory or a tree of them.

A tree is what `compare` leaves behind: `DIR/<scheme>/seed-<n>/`, each a run directory, and `summary.json` on
top. The names of the directories are for people; scheme, seed and target come from each `experiment.toml`.
"""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cfel.errors import RunDirectoryError
from cfel.runlog import Environment, FleetDescription, RoundRecord, RunDirectory, holds_run

_ORDER = ("hcef-plus", "hcef", "cef", "cef-c", "cef-f", "mll-sgd")
_DEPTHS = ("*/rounds.jsonl", "*/*/rounds.jsonl")


@dataclass(frozen=True, slots=True)
class Run:
    """One run, read.

    Attributes:
        directory: where it is; plan tables are read from here when a figure needs them.
        name: what its owner called the experiment.
        scheme: which scheme decided.
        seed: seed of the run.
        target: accuracy to reach, or None.
        records: its rounds.
        fleet: who took part.
        environment: what it was made with.
        experiment_toml: the resolved experiment.
    """

    directory: RunDirectory
    name: str
    scheme: str
    seed: int
    target: float | None
    records: tuple[RoundRecord, ...]
    fleet: FleetDescription
    environment: Environment
    experiment_toml: str


def load_run(path: Path) -> Run:
    """The run in a run directory.

    Raises:
        RunDirectoryError: it cannot be read.
    """
    directory = RunDirectory.open(path)
    text = directory.experiment_toml()
    experiment = _experiment(path, text)
    target = _table(experiment, "rounds").get("target")
    return Run(
        directory=directory,
        name=str(experiment.get("name", path.name)),
        scheme=str(_table(experiment, "scheme").get("name", "scheme")),
        seed=_seed(path, experiment.get("seed", 0)),
        target=float(target) if isinstance(target, int | float) else None,
        records=directory.records(),
        fleet=directory.fleet(),
        environment=directory.environment(),
        experiment_toml=text,
    )


def find_runs(path: Path) -> tuple[Path, ...]:
    """Run directories: `path` itself, or those up to two levels below it, by name; none is fine."""
    if holds_run(path):
        return (path,)
    return tuple(sorted(log.parent for pattern in _DEPTHS for log in path.glob(pattern)))


def load_runs(path: Path) -> tuple[Run, ...]:
    """Every run in `path`, by scheme and seed: `path` itself, or up to two levels below it.

    Raises:
        RunDirectoryError: there is none, one cannot be read, or two have the same scheme and seed.
    """
    found = find_runs(path)
    if not found:
        raise RunDirectoryError(f"{path} holds no run, nor do the directories in it")
    runs: dict[tuple[str, int], Run] = {}
    for run in map(load_run, found):
        other = runs.setdefault((run.scheme, run.seed), run)
        if other is not run:
            both = f"{other.directory.path} and {run.directory.path}"
            raise RunDirectoryError(f"two runs of {run.scheme} with seed {run.seed}: {both}")
    return tuple(runs[key] for key in sorted(runs, key=_place))


def _place(key: tuple[str, int]) -> tuple[int, str, int]:
    """Schemes of the paper first and in its order, others behind them by name; seeds rising."""
    scheme, seed = key
    known = scheme.lower().replace("_", "-")
    return (_ORDER.index(known) if known in _ORDER else len(_ORDER), scheme, seed)


def by_scheme(runs: tuple[Run, ...]) -> dict[str, tuple[Run, ...]]:
    """Runs of each scheme, in the order given."""
    schemes = dict.fromkeys(run.scheme for run in runs)
    return {scheme: tuple(run for run in runs if run.scheme == scheme) for scheme in schemes}


def stated_target(path: Path, runs: tuple[Run, ...]) -> float | None:
    """The target of an earlier `summary.json` in `path`, else the one all runs agree on, else None."""
    try:
        target = json.loads((path / "summary.json").read_bytes())["target"]
    except (OSError, ValueError, KeyError, TypeError):
        target = None
    if isinstance(target, int | float):
        return float(target)
    targets = {run.target for run in runs}
    return targets.pop() if len(targets) == 1 else None


def _experiment(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RunDirectoryError(f"{path / 'experiment.toml'} is damaged: {error}") from error


def _table(experiment: dict[str, Any], name: str) -> dict[str, Any]:
    table = experiment.get(name, {})
    return table if isinstance(table, dict) else {}


def _seed(path: Path, seed: object) -> int:
    if not isinstance(seed, int):
        raise RunDirectoryError(f"{path / 'experiment.toml'}: seed: {seed!r} is not a whole number")
    return seed
