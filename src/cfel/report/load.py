"""Loads runs from a run directory, from a tree of run directories, or from a landed study.

`cfel compare` writes such a tree: `DIR/<scheme>/seed-<n>/`, each a run directory, and `DIR/summary.json`. The
directory names are only for people: scheme, seed and target come from each `experiment.toml`. A landed study
(`landed`) has the same runs under the same paths, `STUDY/<scheme>/seed-<n>`, though these do not exist.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tomli_w import dumps as dump_toml

from cfel import validation
from cfel.durable import read_bytes, translate_parse_errors
from cfel.errors import InputError, RunDirectoryError, StorageError
from cfel.plugins import name_variants
from cfel.report.landed import find_study, read_study
from cfel.runlog import Environment, FleetDescription, RoundRecord, RunDirectory, holds_run
from cfel.validation import parse_json, parse_toml
from cfel.wording import show

_LABELS = {  # as the papers write them
    "hcef_plus": "HCEF+",
    "hcef": "HCEF",
    "cef": "CEF",
    "cef_c": "CEF-C",
    "cef_f": "CEF-F",
    "mll_sgd": "MLL-SGD",
    "fedavg": "FedAvg",
    "hier_fedavg": "Hier-FedAvg",
    "p_fedavg": "P-FedAvg",
    "sd_feel": "SD-FEEL",
    "matcha": "MATCHA",
    "oort": "Oort",
    "anycost": "AnycostFL",
    "fedluck": "FedLuck",
    "nori": "Nori",
    "static": "Static",
}
_MAX_SEED = 2**128
SWEEP_FILE = "sweep.json"
"""Says which values each run of a sweep has; `cfel sweep` writes it."""
COMPARISON_FILE = "comparison.json"
"""Says which row each run of a comparison belongs to, and the baseline; `cfel compare` writes it."""

_DEPTHS = ("*/rounds.jsonl", "*/*/rounds.jsonl")


@dataclass(frozen=True, slots=True)
class Run:
    """One run, loaded."""

    directory: RunDirectory  # the run directory; figures read plan tables from it on demand
    name: str  # name of the experiment
    scheme: str  # name of the scheme, or of the row of a comparison or sweep that the run belongs to
    seed: int
    target: float | None
    records: tuple[RoundRecord, ...]
    fleet: FleetDescription  # devices, clusters, backhaul and budgets
    environment: Environment  # versions, machine and command
    experiment_toml: str  # the resolved experiment
    # Its values of the keys of a sweep; empty for other runs. `scheme` then names the setting.
    setting: Mapping[str, Any] = field(default_factory=dict)


def load_run(path: Path) -> Run:
    """Loads the run in a run directory, or at its place in a landed study."""
    if (study := _find_study(path)) is not None:
        found = [run for run in _load_study(*study) if run.directory.path == path]
        if not found:
            raise RunDirectoryError(f"{path}: {study[0]} holds no run of this name")
        return found[0]
    directory = RunDirectory.open(path)
    text = directory.experiment_toml()
    return _build_run(path, text, directory.records(), directory.fleet(), directory.environment())


def load_tree(path: Path) -> dict[str, Run]:
    """All runs at any depth below a directory or in a landed study, by their place in it; may be empty."""
    if (study := _find_study(path)) is not None:
        return {run.directory.path.relative_to(path).as_posix(): run for run in _load_study(*study)}
    found = sorted(log.parent for log in path.rglob("rounds.jsonl"))
    return {run.relative_to(path).as_posix(): load_run(run) for run in found}


def find_runs(path: Path) -> tuple[Path, ...]:
    """Run directories, sorted: `path` itself, or those up to two levels below it; may be empty."""
    if holds_run(path):
        return (path,)
    return tuple(sorted(log.parent for pattern in _DEPTHS for log in path.glob(pattern)))


def load_all(path: Path) -> tuple[Run, ...]:
    """The runs that `find_runs` finds, or those of a landed study, sorted by path; may be empty."""
    study = _find_study(path)
    return tuple(map(load_run, find_runs(path))) if study is None else _load_study(*study)


def _find_study(path: Path) -> tuple[Path, str] | None:
    return None if holds_run(path) else find_study(path)


def _load_study(study: Path, within: str) -> tuple[Run, ...]:
    return tuple(
        _build_run(study / run.place, dump_toml(run.experiment), run.records, run.fleet, run.environment)
        for run in read_study(study, within)
    )


def _build_run(
    path: Path,
    experiment_toml: str,
    records: tuple[RoundRecord, ...],
    fleet: FleetDescription,
    environment: Environment,
) -> Run:
    with translate_parse_errors(path / "experiment.toml"):
        experiment = parse_toml(experiment_toml)
        name = validation.check_text("name", experiment.get("name", path.name))
        scheme = _read_table(experiment, "scheme")
        scheme["name"] = validation.check_text("scheme.name", scheme.get("name", "scheme"))
    return Run(
        directory=RunDirectory(path),
        name=name,
        # Runs of the same scheme with other variants are others.
        scheme=name_variants(scheme),
        seed=_read_seed(path, experiment.get("seed", 0)),
        target=_read_target(_read_table(experiment, "rounds").get("target")),
        records=records,
        fleet=fleet,
        environment=environment,
        experiment_toml=experiment_toml,
    )


def load_runs(path: Path) -> tuple[Run, ...]:
    """Loads all runs in `path`: `path` itself, or up to two levels below it.

    Those of a sweep or a comparison keep its order; others are sorted by scheme and seed. Where two of them
    have the same scheme and seed, and differ in something else, rows are named by their folders.
    """
    if (path / SWEEP_FILE).exists():
        return _load_sweep(path)
    found = load_all(path)
    if not found:
        raise RunDirectoryError(f"{path} holds no run, and neither do the directories below it")
    rows = read_rows(path)
    if not rows and len({(run.scheme, run.seed) for run in found}) < len(found):
        places = [run.directory.path for run in found]
        # As `hcef_plus-priced` of `hcef_plus-priced/seed-0`.
        folders = (place.parent if place.name.startswith("seed-") else place for place in places)
        rows = {
            place: folder.relative_to(path).as_posix() for place, folder in zip(places, folders, strict=True)
        }
    runs: dict[tuple[str, int], Run] = {}
    for loaded in found:
        run = replace(loaded, scheme=rows.get(loaded.directory.path, loaded.scheme))
        # Two runs of the same scheme and seed would count twice in every mean.
        other = runs.setdefault((run.scheme, run.seed), run)
        if other is not run:
            both = f"{other.directory.path} and {run.directory.path}"
            raise RunDirectoryError(f"two runs of {run.scheme} with seed {run.seed}: {both}")
    order = list(dict.fromkeys(rows.values()))
    return tuple(runs[key] for key in sorted(runs, key=partial(_sort_key, order)))


def read_rows(path: Path) -> dict[Path, str]:
    """The row that each run of a comparison belongs to, in its order; empty for any other directory."""
    return {path / each["directory"]: str(each["row"]) for each in _read_comparison(path).get("runs", ())}


def find_baseline(path: Path) -> str | None:
    """The row that a comparison is compared with, if it has one."""
    baseline = _read_comparison(path).get("baseline")
    return None if baseline is None else str(baseline)


def _read_comparison(path: Path) -> dict[str, Any]:
    file = path / COMPARISON_FILE
    if not file.exists():
        return {}
    with translate_parse_errors(file):
        document = parse_json(read_bytes(file).decode())
        return {"baseline": document["baseline"], "runs": [dict(each) for each in document["runs"]]}


def _load_sweep(path: Path) -> tuple[Run, ...]:
    """The runs of a sweep that have started, in its order, each with its setting in place of its scheme."""
    with translate_parse_errors(path / SWEEP_FILE):
        rows = parse_json(read_bytes(path / SWEEP_FILE).decode())["runs"]
        listed = [(_read_setting(row["values"]), _find_inside(path, row["directory"])) for row in rows]
    runs = tuple(
        replace(load_run(directory), scheme=name_setting(values), setting=values)
        for values, directory in listed
        if holds_run(directory)
    )
    if not runs:
        raise RunDirectoryError(f"{path}: no run of this sweep has started")
    return runs


def _read_setting(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a run of a sweep, by key, without control characters: they become its name on pages."""
    for key, value in values.items():
        validation.check_text("values", key)
        if isinstance(value, str) and value:
            validation.check_text(f"values.{key}", value)
    return dict(values)


def _find_inside(path: Path, name: object) -> Path:
    """A directory below `path`."""
    place = Path(validation.check_text("directory", name))
    if place.is_absolute() or ".." in place.parts:
        raise InputError(f"directory = {show(name)}: must lie in the sweep's own directory")
    return path / place


def name_setting(values: Mapping[str, Any]) -> str:
    """A setting in words, as in "rounds.edge=2,scheme=cef"."""
    return ",".join(f"{key}={value}" for key, value in values.items())


def name_scheme(row: str) -> str:
    """A row as people read it: "HCEF+, small batches" for "hcef_plus+small_batches"; own names unchanged."""
    name, *variants = row.split("+")
    known = _LABELS.get(name.lower().replace("-", "_"))
    return row if known is None else ", ".join([known, *(each.replace("_", " ") for each in variants)])


def list_settings(runs: Sequence[Run]) -> dict[str, Mapping[str, Any]]:
    """The values of each setting of a sweep, as people read them, by its row; empty for other runs."""
    return {
        run.scheme: {key: name_value(key, value) for key, value in run.setting.items()}
        for run in runs
        if run.setting
    }


def name_value(key: str, value: Any) -> Any:  # noqa: ANN401 — of any key
    """A value of a key of a sweep; that of a scheme as `name_scheme` writes it."""
    return name_scheme(str(value)) if key in ("scheme", "scheme.name") else value


def _sort_key(order: Sequence[str], key: tuple[str, int]) -> tuple[int, int, str, int]:
    """Rows in the order given, then known schemes, then others by name; seeds in ascending order."""
    row, seed = key
    known = [*_LABELS].index(row) if row in _LABELS else len(_LABELS)
    return (order.index(row) if row in order else len(order), known, row, seed)


def group_by_row(runs: tuple[Run, ...]) -> dict[str, tuple[Run, ...]]:
    """The runs of each row (`Run.scheme`), in the order given."""
    rows = dict.fromkeys(run.scheme for run in runs)
    return {row: tuple(run for run in runs if run.scheme == row) for row in rows}


def find_target(path: Path, runs: tuple[Run, ...]) -> float | None:
    """The target in an existing `summary.json`, else the one that all runs share, else None."""
    try:
        stated = parse_json(read_bytes(path / "summary.json").decode())["target"]
    except (StorageError, ValueError, KeyError, TypeError):
        stated = None
    if (target := _read_target(stated)) is not None:
        return target
    targets = {run.target for run in runs}
    return targets.pop() if len(targets) == 1 else None


def _read_target(value: object) -> float | None:
    """An accuracy to reach; None for anything else."""
    try:
        return validation.check_number("target", value)
    except InputError:
        return None


def _read_table(experiment: dict[str, Any], name: str) -> dict[str, Any]:
    table = experiment.get(name, {})
    return table if isinstance(table, dict) else {}


def _read_seed(path: Path, seed: object) -> int:
    if not isinstance(seed, int) or abs(seed) > _MAX_SEED:
        shown = show(seed)
        raise RunDirectoryError(
            f"{path / 'experiment.toml'}: seed: {shown} is not a whole number of 128 bits"
        )
    return seed
