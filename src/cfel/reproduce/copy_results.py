"""Copies results to a place where they can be committed: logs, summary and figures, without local paths.

Of each run the copy has log, experiment, fleet and environment, which is enough for `cfel report`, but no
plans and no checkpoints. Absolute paths become placeholders: DATA for the data set, PATH for anything else.
"""

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import tomli_w

from cfel.durable import (
    check_directory,
    read_bytes,
    replace_file,
    translate_os_errors,
    translate_parse_errors,
)
from cfel.errors import RunDirectoryError
from cfel.runlog import RunDirectory

DATA = "DATA"
# A slash or a drive letter that does not continue a word or a relative path, up to a space, quote or comma.
_ABSOLUTE = re.compile(r"(?<![\w./…])(?:[A-Za-z]:|…)?[/\\][^\s\"',;=]*")
_FILES = ("rounds.jsonl", "fleet.json")


def copy_results(out: Path, place: Path) -> list[Path]:
    """Copies the results of a reproduced item.

    Args:
        out: directory of the item.
        place: the destination; created if missing, existing files are replaced.

    Returns:
        The files written.

    Raises:
        StorageError: there are no results, or a file cannot be written.
    """
    if not (out / "summary.json").is_file():
        raise RunDirectoryError(f"{out} has no summary.json: no results to copy yet")
    check_directory(out / "figures")
    with translate_parse_errors(out / "summary.json"):
        summary = json.loads(_read_text(out / "summary.json"))
    written = [_write_file(place / "summary.json", _format_json(_strip_values(summary)))]
    extras = (*out.glob("rates.toml"), *sorted((out / "figures").glob("*.*")))
    written += [_copy_file(extra, place / extra.relative_to(out)) for extra in extras]
    for log in sorted(out.rglob("rounds.jsonl")):
        written += _copy_run(log.parent, place / log.parent.relative_to(out))
    return written


def _copy_run(run: Path, place: Path) -> list[Path]:
    text = _read_text(run / "experiment.toml")
    with translate_parse_errors(run / "experiment.toml"):
        experiment = tomllib.loads(text)
        for section, key in (("data", "path"), ("model", "init"), ("topology", "file")):
            if key in experiment.get(section, {}):
                experiment[section][key] = DATA if section == "data" else "PATH"
    environment = asdict(RunDirectory.open(run).environment())
    environment["command"] = _anonymise_command(environment["command"])
    return [
        *(_copy_file(run / name, place / name) for name in _FILES),
        _write_file(
            place / "experiment.toml",
            tomli_w.dumps({name: _strip_values(each) for name, each in experiment.items()}),
        ),
        _write_file(place / "environment.json", _format_json(environment)),
    ]


def _anonymise_command(words: Sequence[str]) -> list[str]:
    """The command without absolute paths: the bare name of the program, and DATA after --data."""
    program = [Path(word).name for word in words[:1]]
    before = ["", *words[1:]]
    rest = [
        DATA if last == "--data" else _strip_paths(re.sub(r"(?<=data\.path=).*", DATA, word))
        for last, word in zip(before, words[1:], strict=False)
    ]
    return program + rest


def _strip_values(value: object) -> object:
    """A document without absolute paths; in its text, an escaped quote would look like one."""
    if isinstance(value, str):
        return _strip_paths(value)
    if isinstance(value, dict):
        return {_strip_paths(key): _strip_values(each) for key, each in value.items()}
    return [_strip_values(each) for each in value] if isinstance(value, list) else value


def _format_json(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _strip_paths(text: str) -> str:
    return _ABSOLUTE.sub("PATH", text)


def _read_text(path: Path) -> str:
    content = read_bytes(path)
    with translate_parse_errors(path):
        return content.decode()


def _copy_file(source: Path, target: Path) -> Path:
    return _write_file(target, read_bytes(source))


def _write_file(target: Path, content: str | bytes) -> Path:
    with translate_os_errors("write", target):
        target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, content.encode() if isinstance(content, str) else content)
    return target
