"""A landed study: many runs as a few files that can be committed.

    STUDY/
    ├── rounds.parquet       one row per run and global round, every field of the log
    ├── runs.json            one row per run: budgets, commit, command, and how its experiment differs
    ├── experiment.toml      the resolved experiment, as far as all runs share it
    ├── summary.json         what was computed from the logs
    ├── rates.toml           selected learning rates, where the study selects them
    └── figures/             drawings, as SVG

A run is named by its place in the tree of run directories that it came from, as in "0.1/cef/seed-0". Plans
and checkpoints are not kept. Absolute paths become placeholders: DATA for the data set, PATH for any other.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import reduce
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from cfel.durable import (
    check_directory,
    read_bytes,
    replace_file,
    translate_os_errors,
    translate_parse_errors,
)
from cfel.errors import InputError, RunDirectoryError
from cfel.metric import ACCURACY, Metric
from cfel.plugins import name_variants
from cfel.runlog import Environment, FleetDescription, RoundRecord, RunDirectory, RunWriter
from cfel.runlog.directory import list_metrics
from cfel.validation import check_unpacked_size, parse_json, parse_toml
from cfel.wording import show

ROUNDS, RUNS, EXPERIMENT, SUMMARY = "rounds.parquet", "runs.json", "experiment.toml", "summary.json"
DATA = "DATA"
Table = dict[str, Any]

_MAX_DEPTH = 3
"""Parts of a run's place: setting, scheme and seed."""
# A slash or a drive letter that does not continue a word or a relative path, up to a space, quote or comma.
_ABSOLUTE = re.compile(r"(?<![\w./…])(?:[A-Za-z]:|…)?[/\\][^\s\"',;=]*")
_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
_OWN_TYPES = {
    "violations": pa.list_(pa.string()),
    "metrics": pa.map_(pa.string(), pa.float64()),
    "model_sha256": pa.binary(32),
}


@dataclass(frozen=True, slots=True)
class LandedRun:
    """One run of a study; its place in the tree of runs is a name, as in "cef/seed-0"."""

    place: str
    experiment: Table
    fleet: FleetDescription
    environment: Environment
    records: tuple[RoundRecord, ...]


def land_study(out: Path, study: Path) -> list[Path]:
    """Lands all runs below `out`, with its summary and figures if there are any; returns the files written.

    The study is created if missing; existing files are replaced.
    """
    check_directory(out / "figures")
    places = sorted(log.parent for log in out.rglob("rounds.jsonl"))
    if not places:
        raise RunDirectoryError(f"{out} holds no run directories to land")
    runs = [_read_run(path, path.relative_to(out).as_posix()) for path in places]
    common = reduce(_intersect, (run.experiment for run in runs))
    contents: dict[str, str | bytes] = {
        ROUNDS: _write_rounds(runs),
        RUNS: _format_runs(runs, common),
        EXPERIMENT: tomli_w.dumps(common),
    }
    if (out / SUMMARY).is_file():
        with translate_parse_errors(out / SUMMARY):
            summary = _strip_values(json.loads(_read_text(out / SUMMARY)))
        contents[SUMMARY] = json.dumps(summary, indent=1, ensure_ascii=False) + "\n"
    extras = (*out.glob("rates.toml"), *sorted((out / "figures").glob("*.svg")))
    contents |= {extra.relative_to(out).as_posix(): read_bytes(extra) for extra in extras}
    return [_write_file(study / name, content) for name, content in contents.items()]


def find_study(path: Path) -> tuple[Path, str] | None:
    """The study that `path` is or lies in, and the place of `path` in it ("" for all of it); None without.

    Places in a study are no files, so a path that exists is not one of them.
    """
    above = () if path.exists() else tuple(path.parents)[:_MAX_DEPTH]
    for depth, study in enumerate((path, *above)):
        if (study / ROUNDS).is_file() and (study / RUNS).is_file():
            return study, "/".join(path.parts[len(path.parts) - depth :])
    return None


def read_study(study: Path, within: str = "") -> tuple[LandedRun, ...]:
    """The runs of a study in the order of their places: all of them, or those at or below a place."""
    common = _read_toml(study / EXPERIMENT)
    with translate_parse_errors(study / RUNS):
        document = parse_json(_read_text(study / RUNS))
        rows = [
            row for row in document["runs"] if f"{row['run']}/".startswith(f"{within}/" if within else "")
        ]
    records = _read_rounds(study / ROUNDS, {row["run"] for row in rows})
    with translate_parse_errors(study / RUNS):
        return tuple(
            LandedRun(
                place=row["run"],
                experiment=_merge(common, row["experiment"]),
                fleet=_parse_fleet(document["fleets"][row["fleet"]], row),
                environment=_parse_environment(_merge(document["environment"], row["environment"])),
                records=tuple(records[row["run"]]),
            )
            for row in rows
        )


def unpack_study(study: Path, out: Path) -> list[Path]:
    """Writes the runs of a study as run directories again, for commands that need one, such as `recount`."""
    if find_study(study) != (study, ""):
        raise RunDirectoryError(f"{study} is not a landed study: it has no {ROUNDS} and {RUNS}")
    written = []
    for run in read_study(study):
        toml = tomli_w.dumps(run.experiment)
        place = out / run.place
        with RunWriter.create(
            place, experiment_toml=toml, fleet=run.fleet, environment=run.environment
        ) as writer:
            for record in run.records:
                writer.append(record)
        written.append(place)
    return written


def _read_run(path: Path, place: str) -> LandedRun:
    """A run as it may be published."""
    directory = RunDirectory.open(path)
    experiment = _read_toml(path / "experiment.toml")
    for section, key in (("data", "path"), ("model", "init"), ("topology", "file")):
        if key in experiment.get(section, {}):
            experiment[section][key] = DATA if section == "data" else "PATH"
    environment = directory.environment()
    command = _anonymise_command(environment.command)
    return LandedRun(
        place,
        {name: _strip_values(each) for name, each in experiment.items()},
        directory.fleet(),
        replace(environment, command=command),
        directory.records(),
    )


def _write_rounds(runs: Sequence[LandedRun]) -> bytes:
    """All rounds as one table; columns without any value are left out."""
    columns: dict[str, pa.Array] = {
        "run": _build_column("run", [run.place for run in runs for _ in run.records], pa.string()),
        "scheme": _build_column(
            "scheme", [_find_scheme(run) for run in runs for _ in run.records], pa.string()
        ),
        "seed": _build_column("seed", [_find_seed(run) for run in runs for _ in run.records], pa.int64()),
    }
    records = [record for run in runs for record in run.records]
    for each in fields(RoundRecord):
        values = [getattr(record, each.name) for record in records]
        if all(value in (None, (), {}) for value in values):
            continue
        if each.name == "model_sha256":
            values = [bytes.fromhex(value) for value in values]
        if each.name == "metrics":
            values = [list(value.items()) for value in values]
        kind = _OWN_TYPES.get(each.name) or _TYPES[(*get_args(each.type), each.type)[0]]
        columns[each.name] = _build_column(each.name, values, kind)
    table = pa.table(columns)
    # Bytes of equal weight together: neighbouring numbers of a run share their leading ones.
    floats = [column.name for column in table.schema if column.type == pa.float64()]
    buffer = BytesIO()
    pq.write_table(
        table,
        buffer,
        compression="zstd",
        compression_level=19,
        write_statistics=False,
        use_dictionary=[name for name in columns if name not in floats],
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
    )
    return buffer.getvalue()


def _build_column(name: str, values: Sequence[object], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (OverflowError, pa.ArrowInvalid) as error:
        raise InputError(f"{name}: a value does not fit into a column of {kind}") from error


def _find_scheme(run: LandedRun) -> str:
    return name_variants({"name": "scheme", **run.experiment.get("scheme", {})})


def _find_seed(run: LandedRun) -> int:
    return int(run.experiment.get("seed", 0))


def _read_rounds(path: Path, places: set[str]) -> dict[str, list[RoundRecord]]:
    content = read_bytes(path)
    found: dict[str, list[RoundRecord]] = {place: [] for place in places}
    with translate_parse_errors(path):
        file = pq.ParquetFile(BytesIO(content))
        check_unpacked_size(file, len(file.schema_arrow), len(content))
        known = {each.name for each in fields(RoundRecord)}
        for row in file.read(use_threads=False).to_pylist():
            if row["run"] in found:
                values = {name: value for name, value in row.items() if name in known}
                found[row["run"]].append(_parse_record(values))
    return found


def _parse_record(values: Table) -> RoundRecord:
    values["model_sha256"] = values["model_sha256"].hex()
    for name, kind in (("violations", tuple), ("metrics", dict)):
        if name in values:
            values[name] = kind(values[name] or ())
    return RoundRecord(**values)


def _format_runs(runs: Sequence[LandedRun], common: Table) -> str:
    """The table of runs as JSON, one run and one fleet per line, so that two versions can be compared."""
    environments = [
        {**asdict(run.environment), "command": shlex.join(run.environment.command)} for run in runs
    ]
    shared = reduce(_intersect, environments)
    fleets = [_describe_fleet(run.fleet) for run in runs]
    different = [fleet for place, fleet in enumerate(fleets) if fleet not in fleets[:place]]
    rows = [
        {
            "run": run.place,
            "scheme": _find_scheme(run),
            "seed": _find_seed(run),
            "fleet": different.index(fleet),
            "seconds_budget": run.fleet.seconds_budget,
            "joules_budget": run.fleet.joules_budget,
            "experiment": _subtract(run.experiment, common),
            "environment": _subtract(environment, shared),
        }
        for run, fleet, environment in zip(runs, fleets, environments, strict=True)
    ]
    tables = {
        name: ",\n".join(map(_format_line, lines)) for name, lines in (("fleets", different), ("runs", rows))
    }
    parts = [
        f'"environment": {_format_line(shared)}',
        *(f'"{name}": [\n{text}\n]' for name, text in tables.items()),
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _format_line(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise InputError(f"{show(value)}: has a number that JSON cannot express") from error


def _describe_fleet(fleet: FleetDescription) -> Table:
    described = {name: getattr(fleet, name) for name in ("cluster", "edges", "mixing")}
    own = fleet.metrics != (ACCURACY,)
    return described | ({"metrics": list_metrics(fleet.metrics)} if own else {})


def _parse_fleet(fleet: Table, row: Table) -> FleetDescription:
    metrics = tuple(Metric(**each) for each in fleet.get("metrics", ())) or (ACCURACY,)
    budgets = {name: row[name] for name in ("seconds_budget", "joules_budget")}
    return FleetDescription(**{**fleet, **budgets, "metrics": metrics})


def _parse_environment(document: Table) -> Environment:
    return Environment.from_json(json.dumps({**document, "command": shlex.split(document["command"])}))


def _intersect(one: Table, other: Table) -> Table:
    """What two documents share, key by key."""
    shared = {}
    for key in one.keys() & other.keys():
        first, second = one[key], other[key]
        if isinstance(first, dict) and isinstance(second, dict) and (first or second):
            if inner := _intersect(first, second):
                shared[key] = inner
        elif repr(first) == repr(second):  # 1 and 1.0 are equal, but not the same in TOML
            shared[key] = first
    return {key: shared[key] for key in one if key in shared}


def _subtract(whole: Table, shared: Table) -> Table:
    """What a document has beyond the shared part; `_merge` puts both together again."""
    own = {}
    for key, value in whole.items():
        if key not in shared:
            own[key] = value
        elif isinstance(value, dict) and (inner := _subtract(value, shared[key])):
            own[key] = inner
    return own


def _merge(shared: Table, own: Table) -> Table:
    merged = dict(shared)
    for key, value in own.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _anonymise_command(words: Sequence[str]) -> tuple[str, ...]:
    """The command without absolute paths: the bare name of the program, and DATA after --data."""
    program = tuple(Path(word).name for word in words[:1])
    before = ["", *words[1:]]
    rest = (
        DATA if last == "--data" else _strip_paths(re.sub(r"(?<=data\.path=).*", DATA, word))
        for last, word in zip(before, words[1:], strict=False)
    )
    return (*program, *rest)


def _strip_values(value: object) -> Any:  # noqa: ANN401 — a document of any shape
    """A document without absolute paths; in its text, an escaped quote would look like one."""
    if isinstance(value, str):
        return _strip_paths(value)
    if isinstance(value, Mapping):
        return {_strip_paths(key): _strip_values(each) for key, each in value.items()}
    return [_strip_values(each) for each in value] if isinstance(value, list) else value


def _strip_paths(text: str) -> str:
    return _ABSOLUTE.sub("PATH", text)


def _read_toml(path: Path) -> Table:
    text = _read_text(path)
    with translate_parse_errors(path):
        return parse_toml(text)


def _read_text(path: Path) -> str:
    content = read_bytes(path)
    with translate_parse_errors(path):
        return content.decode()


def _write_file(target: Path, content: str | bytes) -> Path:
    with translate_os_errors("write", target):
        target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, content.encode() if isinstance(content, str) else content)
    return target
