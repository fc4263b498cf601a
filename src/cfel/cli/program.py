"""The program behind `cfel`: finds the command, runs it, and says in a line what went wrong."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from rich.console import Console
from rich.markup import escape

from cfel import __version__
from cfel.cli.shared import SUMMARIES
from cfel.errors import CfelError, InputError


def run_program(given: Sequence[str]) -> int:
    """Runs the command that the arguments name, and returns its exit code."""
    errors = Console(stderr=True, highlight=False)
    parsed = _parser(given[0] if given else "").parse_args(given)
    try:
        code = int(parsed.run(parsed))
        sys.stdout.flush()
    except InputError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return 2
    except CfelError as error:
        errors.print(f"[bold red]failed:[/] {escape(str(error))}", soft_wrap=True)
        return 1
    except BrokenPipeError:
        # Whoever read the output has gone; what is left in the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


class _OneLineEach(argparse.HelpFormatter):
    """Help in which the longest command stands on the line of its summary."""

    def add_argument(self, action: argparse.Action) -> None:
        """As argparse does, which forgets that commands are indented further than options."""
        super().add_argument(action)
        if action.nargs == argparse.PARSER:
            self._action_max_length += self._indent_increment


def _parser(wanted: str) -> argparse.ArgumentParser:
    """The parser; only the wanted command's module is imported, as some of them take seconds to load."""
    parser = argparse.ArgumentParser(
        prog="cfel",
        description="Cooperative federated edge learning under time and energy budgets.",
        epilog="`cfel COMMAND --help` explains a command and gives an example.",
        formatter_class=_OneLineEach,
    )
    parser.add_argument("--version", action="version", version=f"cfel {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in SUMMARIES.items():
        if name == wanted:
            import_module(f"cfel.cli.{name}").register(commands)
        else:
            commands.add_parser(name, help=summary)
    return parser
