"""What several commands need to read arguments and to print."""

import argparse
import json
import math
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

Commands = Any
"""argparse's action for sub-commands; its type is private."""


def add_command(commands: Commands, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    """A sub-command with its one-line summary and an example at the end of its help."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def amount(text: str) -> float:
    """A number, with `inf` for no limit; NaN is refused."""
    value = float(text)
    if math.isnan(value):
        raise ValueError
    return value


def whole(text: str) -> int:
    """A whole number."""
    return int(text)


def print_json(document: object) -> None:
    """One JSON document on standard output; infinities and NaN become null, as JSON has neither."""
    Console(soft_wrap=True, highlight=False, markup=False, emoji=False).print(
        json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False), crop=False
    )


def print_table(console: Console, title: str, table: Table) -> None:
    """A table under its title, which may be wider than the table, and an empty line."""
    console.print(f"[bold]{title}[/]")
    console.print(table, "")


def new_table(*columns: str) -> Table:
    """A table in the house style: first column left, the others right."""
    table = Table(header_style="dim", box=None)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(entry) for entry in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
