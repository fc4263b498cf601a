"""A sweep: runs with every combination of some values of some keys, as one object.

A sweep is a comparison whose lines are settings instead of schemes: `sweep.json` says which run has which
values, and tables, figures and the page then come from the same code (`report.load`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cfel.api.cluster_runs import PlacedRun
from cfel.api.results import FIGURE, FORMATS, RunResult, draw, export
from cfel.api.run_options import RunOptions
from cfel.api.runs import compare_runs
from cfel.durable import replace_file, translate_os_errors
from cfel.errors import InputError
from cfel.experiment import Experiment
from cfel.experiment.document import MAIN_KEYS
from cfel.extras import explain_missing_extra
from cfel.report.load import SWEEP_FILE, find_target, load_runs, name_setting
from cfel.report.summary import measure, summarise

if TYPE_CHECKING:
    from cfel.report.pictures import Picture

_PORTABLE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-=,")


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

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`: means over seeds and intervals, by setting."""
        return summarise([each.run for each in self.runs], self.target)

    def plot(self, figure: str = FIGURE) -> "Picture":
        """Draws a figure of the report with one line per setting; see `RunResult.plot`.

        Besides those, "by-key-0", "by-key-1", … show the final accuracy by the values of each key, and
        "costs-by-key-0", … time and energy to the target.
        """
        return draw([each.run for each in self.runs], figure, self.target)

    def report(self) -> Path:
        """Writes `report.html` and its figures into the directory; returns the page's path."""
        with explain_missing_extra():
            from cfel.report import write_report

        return write_report(self.path, self.target)

    def export_figures(self, to: str | PathLike[str], formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
        """Writes every figure of the report into the directory `to`; returns the files.

        Args:
            to: receives the files; created if missing.
            formats: "svg", "png", and "csv" for the numbers that a figure shows.

        Raises:
            InputError: there is no such format.
        """
        return export([each.run for each in self.runs], to, formats, self.target)

    def __repr__(self) -> str:
        keys = ", ".join(self.settings[0]) if self.settings else "nothing"
        return f"<Sweep {str(self.path)!r}: {len(self.runs)} runs over {keys}>"


def sweep_runs(
    settings: Sequence[Mapping[str, Any]],
    runs: Sequence[PlacedRun],
    out: Path,
    options: RunOptions,
    target: float | None = None,
) -> dict[str, Any]:
    """Executes the runs of a sweep that are not there yet, and summarises all.

    Args:
        settings: the values of each run.
        runs: the runs, both from `place_settings`.
        out: receives the runs, `sweep.json`, `summary.json` and `report.html`.
        options: how to execute the runs; existing ones are resumed.
        target: accuracy to reach in the tables; None for the experiment's target.

    Returns:
        The content of `summary.json`.
    """
    write_sweep(out, settings, runs)
    return compare_runs(runs, out, options, target)


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
        values, changed = change_setting(experiment, dict(zip(over, combination, strict=True)))
        folder = setting_folder(values)
        if folder in folders:
            raise InputError(f"sweep: {values} and {folders[folder]} would share the folder {folder!r}")
        folders[folder] = values
        for seed in dict.fromkeys(seeds):
            settings.append(values)
            name = f"{name_setting(values)} (seed {seed})"
            runs.append(PlacedRun(name, changed.change({"seed": seed}), out / folder / f"seed-{seed}"))
    return settings, runs


def change_setting(experiment: Experiment, chosen: Mapping[str, Any]) -> tuple[dict[str, Any], Experiment]:
    """An experiment with other values of some keys, and these values with names for objects."""
    changed = experiment.change(dict(chosen))
    return {key: _read_value(changed, key, value) for key, value in chosen.items()}, changed


def setting_folder(values: Mapping[str, Any]) -> str:
    """The directory name for a setting, without what is not portable in paths."""
    return "".join(letter if letter in _PORTABLE else "_" for letter in name_setting(values))


def _read_value(experiment: Experiment, key: str, value: object) -> object:
    """A value as the experiment file has it: an object by its name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | Mapping):
        return json.dumps(value)
    section, _, name = key.partition(".")
    part = getattr(experiment, section)
    return getattr(part, name or MAIN_KEYS[section])


def write_sweep(out: Path, settings: Sequence[Mapping[str, Any]], runs: Sequence[PlacedRun]) -> None:
    """Writes which run has which values, so that the sweep can be loaded."""
    with translate_os_errors("create", out):
        out.mkdir(parents=True, exist_ok=True)
    rows = [
        {"values": dict(values), "directory": str(run.directory.relative_to(out))}
        for values, run in zip(settings, runs, strict=True)
    ]
    replace_file(out / SWEEP_FILE, (json.dumps({"runs": rows}, indent=2) + "\n").encode())


def load_sweep(path: Path, target: float | None = None) -> Sweep:
    """The sweep in a directory: those of its runs that have started."""
    runs = load_runs(path)
    known = find_target(path, runs) if target is None else target
    return Sweep(path, tuple(run.setting for run in runs), tuple(map(RunResult, runs)), known)
