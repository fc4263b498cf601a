"""`cfel status`: who is alive, who coordinates, which round, what was spent."""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from cfel.cli.shared import Commands, add_command, add_json, new_table, print_json
from cfel.errors import InputError
from cfel.runtime.node import ask_status
from cfel.studies.node import read_node

EXAMPLE = """  cfel status runs/tiny-up
  cfel status operator-0.toml --json"""


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "status", EXAMPLE)
    parser.add_argument(
        "where", type=Path, metavar="DIR|NODE.toml", help="of `cfel up`, or an operator's file"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Asks every edge server; exit code 1 if none answers."""
    where: Path = arguments.where
    path = where / "nodes" / "operator-0.toml" if where.is_dir() else where
    if not path.exists():
        raise InputError(f"{path} does not exist: not a federation of `cfel up`, nor a node's file")
    answers = asyncio.run(ask_status(read_node(path).node))
    if arguments.json:
        print_json({"edges": [_document(i, answer) for i, answer in sorted(answers.items())]})
    else:
        _print(answers)
    return 0 if any(isinstance(answer, dict) for answer in answers.values()) else 1


def _document(edge: int, answer: Any) -> dict[str, Any]:  # noqa: ANN401 — a snapshot or a reason
    if isinstance(answer, dict):
        return {"edge": edge, "alive": True, **answer}
    return {"edge": edge, "alive": False, "reason": answer}


def _print(answers: dict[int, Any]) -> None:
    console = Console(highlight=False)
    columns = ("edge", "term", "coordinator", "round", "phase", "devices", "refused", "accuracy", "s", "J")
    table = new_table(*columns, texts=("phase",))
    for edge, answer in sorted(answers.items()):
        if not isinstance(answer, dict):
            table.add_row(str(edge), "", "", "", f"[red]{escape(str(answer))}[/]")
            continue
        record = answer["record"] or {}
        accuracy = record.get("accuracy")
        table.add_row(
            str(edge),
            str(answer["term"]),
            "?" if answer["leader"] is None else str(answer["leader"]),
            f"{answer['global_round']}.{answer['edge_round']}",
            answer["phase"],
            f"{len(answer['connected'])}/{len(answer['devices'])}",
            str(sum(answer["refused"].values())),
            "" if accuracy is None else f"{100 * accuracy:.1f} %",
            f"{record.get('seconds', 0):,.0f}",
            f"{record.get('joules', 0):,.0f}",
        )
    console.print(table)
