"""Run directories with one file changed: every command on them succeeds, or rejects with one message."""

import base64
import hashlib
import io
import json
import random
import shutil
import tomllib
import zlib
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from cfel.api.runs import RunOptions, run_experiment
from cfel.cli import main
from cfel.dashboard import RunWatcher
from cfel.errors import CfelError
from cfel.experiment import preset_experiment
from tests.fuzz.mutations import NASTY, change_bytes, change_document

_CHANGES = (
    *("rounds.global=2", "rounds.edge=2", "rounds.local=1", "fleet.devices=4", "fleet.clusters=2"),
    *("topology.kind=line", "budget.share_of_cef=0.9", "rounds.target=0.5"),
)
_TEXTS = ("experiment.toml", "environment.json", "fleet.json", "rounds.jsonl", "summary.json")
_PLAN = "plans/round-00002.parquet"
_MANIFEST = "checkpoint/manifest.json"
FIGURES = 0.03
"""Share of cases in which the figures are drawn too: that takes a hundred times longer than all else."""

Case = dict[str, bytes]
"""Files below the run directory and their new content."""


def make_run(place: Path) -> Path:
    """A run of two rounds, from which all cases are made."""
    run_experiment(preset_experiment("demo", _CHANGES), place, RunOptions())
    (place / "summary.json").write_text('{"target": 0.5, "schemes": {}}')
    return place


def make_case(draw: random.Random, run: Path) -> Case:
    """One file of the run, changed."""
    makers: list[tuple[int, Callable[[random.Random, Path], Case]]] = [
        (30, _change_text),
        (30, _change_value),
        (10, _change_plan),
        (10, _change_plan_bytes),
        (20, _change_checkpoint),
    ]
    weights, functions = zip(*makers, strict=True)
    chosen: Callable[[random.Random, Path], Case] = draw.choices(functions, weights)[0]
    return chosen(draw, run)


def _change_text(draw: random.Random, run: Path) -> Case:
    name = draw.choice((*_TEXTS, _MANIFEST))
    return {name: change_bytes(draw, (run / name).read_bytes())}


def _change_value(draw: random.Random, run: Path) -> Case:
    name = draw.choice((*_TEXTS, _MANIFEST))
    text = (run / name).read_text()
    if draw.random() < 0.02:
        return {name: draw.choice((b"[" * 100_000, b"a = " + b"[" * 100_000, b'{"a":' * 100_000))}
    if name == "rounds.jsonl":
        lines = text.splitlines()
        place = draw.randrange(len(lines))
        lines[place] = _dump_json(change_document(draw, json.loads(lines[place])))
        return {name: ("\n".join(lines) + "\n").encode()}
    if name == "experiment.toml":
        return {name: _dump_toml(change_document(draw, tomllib.loads(text))).encode()}
    return {name: _dump_json(change_document(draw, json.loads(text))).encode()}


def _dump_json(document: object) -> str:
    text = json.dumps(document)
    # Half of a surrogate pair, which Python reads but cannot write.
    return text.replace("<script>", "\\ud800")


def _dump_toml(document: object) -> str:
    try:
        return tomli_w.dumps(document)  # type: ignore[arg-type]
    except (TypeError, AttributeError, ValueError):
        # There is no word for None in TOML.
        return f"name = {json.dumps(document)}"[:1000]


def _change_plan(draw: random.Random, run: Path) -> Case:
    """A table with another column, another type, other rows or other values."""
    table = pq.read_table(run / _PLAN)
    column = draw.randrange(table.num_columns)
    name, rows = table.column_names[column], table.num_rows
    match draw.randrange(5):
        case 0:
            table = table.drop_columns([name])
        case 1:
            value = draw.choice([each for each in NASTY if isinstance(each, int | float | str | None)])
            values: list[Any] = table.column(name).to_pylist()
            values[draw.randrange(rows)] = value
            try:
                table = table.set_column(column, name, pa.array(values))
            except (pa.ArrowException, OverflowError):
                table = table.set_column(column, name, pa.array([str(each)[:50] for each in values]))
        case 2:
            table = table.slice(0, draw.choice((0, 1)))
        case 3:
            big = pa.array([draw.choice((0, 1, 2**31 - 1, -1))] * rows, pa.int32())
            table = table.set_column(column, name, big)
        case _:
            # Few bytes, many rows.
            count = draw.choice((10**5, 3 * 10**6))
            columns = {field.name: pa.repeat(pa.scalar(0, field.type), count) for field in table.schema}
            table = pa.table(columns)
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    return {_PLAN: file.getvalue()}


def _change_plan_bytes(draw: random.Random, run: Path) -> Case:
    return {_PLAN: change_bytes(draw, (run / _PLAN).read_bytes())}


def _change_checkpoint(draw: random.Random, run: Path) -> Case:
    """A file of the checkpoint, changed, with the size and the digest that it then has."""
    manifest = json.loads((run / _MANIFEST).read_bytes())
    entry = draw.choice(manifest["files"])
    content = (run / "checkpoint" / entry["name"]).read_bytes()
    if entry["name"].endswith(".json") and draw.random() < 0.5:
        content = _dump_json(change_document(draw, json.loads(content))).encode()
    elif draw.random() < 0.7:
        # In the header of safetensors, where names, shapes and offsets are.
        length = 8 + int.from_bytes(content[:8], "little")
        content = change_bytes(draw, content[:length]) + content[length:]
    else:
        content = change_bytes(draw, content)
    entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return {f"checkpoint/{entry['name']}": content, _MANIFEST: json.dumps(manifest).encode()}


def try_case(run: Path, place: Path, case: Case, *, figures: bool = False) -> None:
    """Runs all commands on a copy of the run with the case's files; raises what they do not catch."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(run, place)
    for name, content in case.items():
        (place / name).write_bytes(content)
    with nullcontext() if figures else patch("cfel.report.page.draw_pictures", lambda *_: ()):
        call_command("report", place, "--tensorboard")
    call_command("theory", place, "--json")
    call_command("theory", place)
    call_command("export", place, "--to", place.parent / "model.safetensors")
    try:
        RunWatcher(place).snapshot().to_json()
    except CfelError:
        return


def dump_case(case: Case) -> str:
    """A case for the corpus, as JSON; its files are compressed."""
    packed = {name: base64.b64encode(zlib.compress(content, 9)).decode() for name, content in case.items()}
    return json.dumps(packed, indent=1) + "\n"


def load_case(text: str) -> Case:
    """The case that `dump_case` wrote."""
    return {name: zlib.decompress(base64.b64decode(packed)) for name, packed in json.loads(text).items()}


def call_command(*words: object) -> None:
    """Runs a command, which must end with a code that says what happened and with a message of one line."""
    errors = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(errors):
        code = main([str(word) for word in words])
    text = errors.getvalue()
    if code not in (0, 1, 2):
        raise AssertionError(f"{words[0]}: exit code {code}")
    if code and len(text) > 2000:
        raise AssertionError(f"{words[0]}: a message of {len(text)} characters")
    if "\x1b[31m" in text:
        raise AssertionError(f"{words[0]}: control characters in {text!r}")
