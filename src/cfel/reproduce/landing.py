"""What was measured, ready to be kept beside the code: logs, summary and figures, without paths of a machine.

A landed run has its log, its experiment, its fleet and its environment, enough for `cfel report`; plans and
checkpoints stay behind. Absolute paths become placeholders: DATA for the data, PATH for anything else.
"""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from cfel.durable import replace_file, translate_os_errors
from cfel.errors import RunDirectoryError

DATA = "DATA"
_ABSOLUTE = re.compile(r"(?<![\w./])(?:[A-Za-z]:)?[/\\][^\s\"',;=]*")
_FILES = ("rounds.jsonl", "fleet.json")


def land(out: Path, place: Path) -> list[Path]:
    """Copies what is worth keeping of a reproduced item.

    Args:
        out: the item's directory.
        place: where to; created when missing, files of the same name are replaced.

    Returns:
        The files written.

    Raises:
        StorageError: there is nothing to land, or the system refused.
    """
    if not (out / "summary.json").is_file():
        raise RunDirectoryError(f"{out} has no summary.json: nothing was reproduced there yet")
    written = [_written(place / "summary.json", _without_paths((out / "summary.json").read_text()))]
    extras = (*out.glob("rates.toml"), *sorted((out / "figures").glob("*.*")))
    written += [_copied(extra, place / extra.relative_to(out)) for extra in extras]
    for log in sorted(out.rglob("rounds.jsonl")):
        written += _landed_run(log.parent, place / log.parent.relative_to(out))
    return written


def _landed_run(run: Path, place: Path) -> list[Path]:
    experiment = tomllib.loads((run / "experiment.toml").read_text(encoding="utf-8"))
    for section, key in (("data", "path"), ("model", "init"), ("topology", "file")):
        if key in experiment.get(section, {}):
            experiment[section][key] = DATA if section == "data" else "PATH"
    environment: dict[str, Any] = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    environment["command"] = _command(environment.get("command", []))
    return [
        *(_copied(run / name, place / name) for name in _FILES),
        _written(place / "experiment.toml", _without_paths(tomli_w.dumps(experiment))),
        _written(place / "environment.json", json.dumps(environment, indent=2, ensure_ascii=False) + "\n"),
    ]


def _command(words: list[str]) -> list[str]:
    """The command with its program's bare name and no absolute path; what follows --data is DATA."""
    program = [Path(word).name for word in words[:1]]
    before = ["", *words[1:]]
    rest = [
        DATA if last == "--data" else _without_paths(re.sub(r"(?<=data\.path=).*", DATA, word))
        for last, word in zip(before, words[1:], strict=False)
    ]
    return program + rest


def _without_paths(text: str) -> str:
    return _ABSOLUTE.sub("PATH", text)


def _copied(source: Path, target: Path) -> Path:
    with translate_os_errors("write", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return target


def _written(target: Path, text: str) -> Path:
    with translate_os_errors("write", target):
        target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, text.encode())
    return target
