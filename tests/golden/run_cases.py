"""Runs a list of `cfel` commands in one process, which spares importing torch for each.

    PYTHONPATH=TREE/src python run_cases.py TREE/src commands.json

`commands.json` holds a list of command lines. Writes beside it, as `commands.done.json`, for each its exit
code and what it printed. Knows of cfel only `cfel.cli.main`, and is run as a file: it serves commits that
have no such file.
"""

import contextlib
import io
import json
import sys
import traceback
from pathlib import Path


def main(source: Path, commands: Path) -> None:
    """Runs the commands with the package in `source`."""
    # A report takes longer than the run that it is about; without Matplotlib there is none.
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    import cfel
    from cfel.cli import main as run_command

    if not Path(cfel.__file__).resolve().is_relative_to(source.resolve()):
        raise SystemExit(f"cfel comes from {cfel.__file__}, not from {source}")
    done = []
    for words in json.loads(commands.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                code: object = run_command(words)
            except SystemExit as error:
                code = error.code
            except Exception:  # noqa: BLE001 — whatever it is, the other commands still count
                code, _ = 1, printed.write(traceback.format_exc())
        done.append({"code": code, "printed": printed.getvalue()})
    commands.with_suffix(".done.json").write_text(json.dumps(done), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
