"""`cfel keys`: every key of an experiment file, with its values, default and meaning."""

import argparse

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from cfel.cli.options import add_json_option
from cfel.cli.output import print_json
from cfel.errors import InputError
from cfel.experiment.key_reference import KeyEntry, list_tables

EXAMPLES = {
    "keys": """  cfel keys
  cfel keys local
  cfel keys local.steps
  cfel keys momentum"""
}


def add_keys_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "word", nargs="?", default="", metavar="WORD", help="only keys and tables whose name contains it"
    )
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    found = [
        (table, when, chosen)
        for table, when, entries in list_tables()
        if (chosen := [each for each in entries if arguments.word.lower() in _join(table, each)])
    ]
    if not found:
        raise InputError(f"no key contains {arguments.word!r}; `cfel keys` lists all of them")
    if arguments.json:
        rows = [
            {
                "key": _join(table, each),
                "when": when,
                "values": _plain(each.values),
                "default": _plain(each.default),
                "meaning": each.meaning,
            }
            for table, when, entries in found
            for each in entries
        ]
        print_json(rows)
        return
    console = Console(highlight=False)
    for table, when, entries in found:
        title = f"[bold]{escape(f'[{table}]')}[/]  " if table else ""
        console.print(f"{title}{when}")
        for each in entries:
            line = f"  {each.key} = {escape(_plain(each.default))}  [dim]{escape(_plain(each.values))}[/]"
            console.print(line, soft_wrap=True)
            console.print(Padding(escape(each.meaning), (0, 0, 0, 6)))
        console.print()


def _plain(text: str) -> str:
    """The text without the marks of code, which Markdown needs."""
    return text.replace("`", "")


def _join(table: str, entry: KeyEntry) -> str:
    return f"{table}.{entry.key}" if table else entry.key
