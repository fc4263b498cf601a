"""Several runs as one object: a comparison of schemes, or a sweep over keys of an experiment."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cfel.api.cluster_runs import PlacedRun
from cfel.api.results import FIGURE, RunResult, draw, load_result
from cfel.durable import make_directory, read_bytes, replace_file, translate_parse_errors
from cfel.errors import InputError
from cfel.experiment import Experiment
from cfel.extras import explain_missing_extra
from cfel.report.load import find_runs, find_target
from cfel.report.summary import measure, summarise
from cfel.runlog.json_text import parse_json

if TYPE_CHECKING:
    from cfel.report.pictures import Picture

SWEEP_FILE = "sweep.json"
_PORTABLE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-=,")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison:
    """Runs of several schemes and seeds.

    Attributes:
        path: the directory that contains them.
        runs: one result per scheme and seed.
        target: accuracy to reach, or None.
    """

    path: Path
    runs: tuple[RunResult, ...]
    target: float | None

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`: means over seeds, intervals, gains over CEF."""
        return summarise([each.run for each in self.runs], self.target)

    @property
    def table(self) -> pa.Table:
        """One row per run: scheme, seed, time and energy to the target, final accuracy, costs, budgets."""
        rows = [
            {"scheme": each.run.scheme, "seed": each.run.seed, **measure(each.run, self.target)}
            for each in self.runs
        ]
        return pa.Table.from_pylist(rows)

    def plot(self, figure: str = FIGURE) -> "Picture":
        """Draws a figure of the report with one line per scheme; see `RunResult.plot`."""
        return draw([each.run for each in self.runs], figure, self.target)

    def report(self) -> Path:
        """Writes `report.html` and its figures into the directory; returns the page's path."""
        with explain_missing_extra():
            from cfel.report import write_report

        return write_report(self.path, self.target)

    def __repr__(self) -> str:
        schemes = dict.fromkeys(each.run.scheme for each in self.runs)
        return f"<Comparison {str(self.path)!r}: {len(self.runs)} runs of {', '.join(schemes)}>"


def load_comparison(path: Path, target: float | None = None) -> Comparison:
    """The comparison in a directory."""
    runs = tuple(map(load_result, find_runs(path)))
    known = find_target(path, tuple(each.run for each in runs)) if target is None else target
    return Comparison(path, runs, known)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sweep:
    """Runs with every combination of some values of some keys.

    Attributes:
        path: the directory that contains them.
        settings: of each run, its values by key; objects by their names.
        runs: their results, in the same order.
        target: accuracy to reach, or None.
    """

    path: Path
    settings: tuple[Mapping[str, Any], ...]
    runs: tuple[RunResult, ...]
    target: float | None

    @property
    def table(self) -> pa.Table:
        """One row per run: its values, its seed, time and energy to the target, final accuracy, costs."""
        rows = [
            {**values, "seed": each.run.seed, **measure(each.run, self.target)}
            for values, each in zip(self.settings, self.runs, strict=True)
        ]
        return pa.Table.from_pylist(rows)

    def plot(self, figure: str = FIGURE) -> "Picture":
        """Draws a figure of the report with one line per setting; see `RunResult.plot`."""
        with explain_missing_extra():
            from cfel.report.pictures import draw_one
        groups: dict[str, tuple[Any, ...]] = {}
        for values, each in zip(self.settings, self.runs, strict=True):
            name = name_setting(values)
            groups[name] = (*groups.get(name, ()), each.run)
        return draw_one(groups, figure, self.target)

    def __repr__(self) -> str:
        return f"<Sweep {str(self.path)!r}: {len(self.runs)} runs over {', '.join(self.settings[0])}>"


def place_settings(
    experiment: Experiment, over: Mapping[str, Sequence[Any]], seeds: Sequence[int], out: Path
) -> tuple[list[Mapping[str, Any]], list[PlacedRun]]:
    """The runs of a sweep, each in `<key=value,…>/seed-<n>/`.

    Args:
        experiment: everything else.
        over: values by dotted keys, as in {"rounds.edge": [2, 5, 10]}; functions are welcome.
        seeds: one run per combination and seed.
        out: will contain them.

    Returns:
        The values of each run, with names for objects, and the runs.

    Raises:
        InputError: nothing to sweep over, or a key or value is not allowed.
    """
    if not over or not seeds or not all(map(len, over.values())):
        raise InputError("sweep: give at least one key with at least one value, and one seed")
    if "seed" in over:
        raise InputError("sweep: give seeds as `seeds`")
    settings: list[Mapping[str, Any]] = []
    runs: list[PlacedRun] = []
    folders: dict[str, Mapping[str, Any]] = {}
    for combination in product(*over.values()):
        chosen = dict(zip(over, combination, strict=True))
        changed = experiment.change(chosen)
        values = {key: _read_value(changed, key, value) for key, value in chosen.items()}
        folder = "".join(letter if letter in _PORTABLE else "_" for letter in name_setting(values))
        if folder in folders:
            raise InputError(f"sweep: {values} and {folders[folder]} would share the folder {folder!r}")
        folders[folder] = values
        for seed in dict.fromkeys(seeds):
            settings.append(values)
            name = f"{name_setting(values)} (seed {seed})"
            runs.append(PlacedRun(name, changed.change({"seed": seed}), out / folder / f"seed-{seed}"))
    return settings, runs


def _read_value(experiment: Experiment, key: str, value: object) -> object:
    """A value as the experiment file has it: an object by its name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | Mapping):
        return json.dumps(value)
    section, _, _ = key.partition(".")
    part = getattr(experiment, section)
    return getattr(part, "name", getattr(part, "kind", None))


def name_setting(values: Mapping[str, Any]) -> str:
    """A setting in words, as in "rounds.edge=2,scheme=cef"."""
    return ",".join(f"{key}={value}" for key, value in values.items())


def write_sweep(out: Path, settings: Sequence[Mapping[str, Any]], runs: Sequence[PlacedRun]) -> None:
    """Writes which run has which values, so that the sweep can be loaded."""
    make_directory(out)
    rows = [
        {"values": dict(values), "directory": str(run.directory.relative_to(out))}
        for values, run in zip(settings, runs, strict=True)
    ]
    replace_file(out / SWEEP_FILE, (json.dumps({"runs": rows}, indent=2) + "\n").encode())


def load_sweep(path: Path, target: float | None = None) -> Sweep:
    """The sweep in a directory."""
    with translate_parse_errors(path / SWEEP_FILE):
        rows = parse_json(read_bytes(path / SWEEP_FILE).decode())["runs"]
        found = [(dict(row["values"]), path / str(row["directory"])) for row in rows]
    runs = tuple(load_result(directory) for _, directory in found)
    known = find_target(path, tuple(each.run for each in runs)) if target is None else target
    return Sweep(path, tuple(values for values, _ in found), runs, known)
