"""Printing for all commands: tables in one style, and JSON documents."""

import json
import math
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cfel.wording import NO_BREAK

UNLIMITED = 10_000
"""A width in columns that no table reaches."""


def print_json(document: object) -> None:
    """Prints one JSON document on standard output; infinities and NaN become null, as JSON has neither."""
    # Not through rich, which would inspect every one of millions of lines.
    json.dump(_to_plain(document), sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def print_line(text: str) -> None:
    """Prints a line as it is: not folded, and not read as markup."""
    Console(highlight=False).print(text, soft_wrap=True, markup=False)


def _to_plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _to_plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_to_plain(entry) for entry in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, np.generic):
        return _to_plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def new_table(*columns: str, texts: Collection[str] = ()) -> Table:
    """An empty table: first column left-aligned, the others right-aligned.

    In a narrow terminal only the columns in `texts` are folded, never the numbers.
    """
    table = Table(header_style="dim", box=None)
    for number, column in enumerate(columns):
        side: Literal["left", "right"] = "left" if number == 0 else "right"
        table.add_column(
            column, justify=side, no_wrap=column not in texts, overflow="fold", vertical="bottom"
        )
    return table


def print_table(console: Console, title: str, table: Table) -> None:
    if all(column.no_wrap for column in table.columns):
        unfold_table(console, table)
    console.print(f"[bold]{title}[/]")
    console.print(table, "", crop=False)


def use_plain_spaces(text: str) -> str:
    """The text for a terminal, where nobody can type or search for a no-break space."""
    return text.replace(NO_BREAK, " ")


def print_report_path(console: Console, directory: Path) -> None:
    """Prints where the report is that was written into a directory."""
    console.print(f"report: {escape(str(directory / 'report.html'))}", soft_wrap=True)


def unfold_table(console: Console, table: Table) -> None:
    """Gives a table its full width: better wider than the terminal than with digits cut off."""
    table.width = console.measure(table, options=console.options.update_width(UNLIMITED)).maximum
