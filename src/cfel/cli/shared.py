"""What several commands need to read arguments and to print."""

import argparse
import json
import math
import sys
from collections.abc import Collection
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from cfel.plugins import ANY_CODE, NOT_FROM_DIRECTORIES, CodePolicy
from cfel.plugins import import_from as import_from

Commands = Any
"""argparse's action for sub-commands; its type is private."""


UNLIMITED = 10_000
"""Columns of a terminal that cuts nothing off."""

SUMMARIES = {
    "demo": "compare HCEF with its baselines on 64 devices",
    "plan": "plan one round for a fleet, with a proof of optimality",
    "theory": "evaluate Theorem 1 for an experiment or a run, term by term",
    "run": "simulate one experiment",
    "compare": "simulate several schemes side by side",
    "watch": "serve a live dashboard of a run or a comparison",
    "reproduce": "put a table or figure of the paper beside one measured here",
    "report": "draw the report of a run or a comparison",
    "up": "run an experiment as real processes on this machine",
    "edge": "run one edge server of a federation",
    "device": "run one device of a federation",
    "certs": "make, renew or revoke the certificates of a federation",
    "status": "show who is alive, who coordinates and what was spent",
    "export": "write the trained model of a run to a file",
    "bench": "measure cfel on this machine",
}
"""Every command and what it does, in the order of the help."""


def add_command(commands: Commands, name: str, example: str) -> argparse.ArgumentParser:
    """A sub-command with its one-line summary and an example at the end of its help."""
    summary = SUMMARIES[name]
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_changes(parser: argparse.ArgumentParser) -> None:
    """The option --set."""
    text = "change a key of the experiment, e.g. rounds.global=10; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="A.B=VALUE", help=text)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """The option --trust, for commands that read an experiment out of a directory."""
    text = "allow the directory's experiment to name code (module:function), which then runs here"
    parser.add_argument("--trust", action="store_true", help=text)


def trusted_code(arguments: argparse.Namespace) -> CodePolicy:
    """Whether a directory's experiment may name code; it is never looked for in the directory itself."""
    if not arguments.trust:
        return NOT_FROM_DIRECTORIES
    import_from()
    return ANY_CODE


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def amount(text: str) -> float:
    """A number, with `inf` for no limit; NaN is refused."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number, or inf for no limit")
    return value


def positive(text: str) -> float:
    """A number > 0, with `inf` for no limit."""
    value = amount(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number > 0, or inf for no limit")
    return value


def share(text: str) -> float:
    """A number in (0, 1]."""
    value = amount(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number > 0 and ≤ 1")
    return value


def whole(text: str) -> int:
    """A whole number ≥ 1."""
    return _at_least(text, 1)


def count(text: str) -> int:
    """A whole number ≥ 0."""
    return _at_least(text, 0)


def _at_least(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number ≥ {least}")
    return value


def print_json(document: object) -> None:
    """One JSON document on standard output; infinities and NaN become null, as JSON has neither.

    Written past rich, which would look at every one of millions of lines.
    """
    json.dump(_plain(document), sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def print_table(console: Console, title: str, table: Table) -> None:
    """A table under its title, which may be wider than the table, and an empty line.

    A table of numbers alone that is wider than the terminal sticks out of it: digits are never cut off.
    """
    if all(column.no_wrap for column in table.columns):
        table.width = console.measure(table, options=console.options.update_width(UNLIMITED)).maximum
    console.print(f"[bold]{title}[/]")
    console.print(table, "", crop=False)


def new_table(*columns: str, texts: Collection[str] = ()) -> Table:
    """A table in the house style: first column left, the others right.

    Args:
        *columns: headings.
        texts: columns that hold names or words; in a narrow terminal they are folded, never the numbers.
    """
    table = Table(header_style="dim", box=None)
    for number, column in enumerate(columns):
        side: Literal["left", "right"] = "left" if number == 0 else "right"
        table.add_column(
            column, justify=side, no_wrap=column not in texts, overflow="fold", vertical="bottom"
        )
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
