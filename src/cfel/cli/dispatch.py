"""Finds the command that was typed, runs it, and prints an error as one line."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from rich.console import Console
from rich.markup import escape

from cfel import __version__
from cfel.cli.arguments import SUMMARIES
from cfel.errors import CfelError, InputError, SilentEdgeServerError
from cfel.wording import escape_control

SILENT = 4
"""Exit code of a device whose edge server has been silent for too long."""


def run_command(arguments: Sequence[str]) -> int:
    """Runs a command line without the program's name and returns its exit code."""
    errors = Console(stderr=True, highlight=False)
    parsed = _build_parser(arguments[0] if arguments else "").parse_args(arguments)
    try:
        code = int(parsed.run(parsed))
        sys.stdout.flush()
    except InputError as error:
        errors.print(f"[bold red]error:[/] {escape(_make_printable(error))}", soft_wrap=True)
        return 2
    except SilentEdgeServerError as error:
        errors.print(f"[bold yellow]ended:[/] {escape(_make_printable(error))}", soft_wrap=True)
        return SILENT
    except CfelError as error:
        errors.print(f"[bold red]failed:[/] {escape(_make_printable(error))}", soft_wrap=True)
        return 1
    except BrokenPipeError:
        # The reader of our output has ended. Without this, flushing the buffer at exit would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _make_printable(error: CfelError) -> str:
    """The message without control characters: part of it may come from a file or from a peer."""
    return "\n".join(map(escape_control, str(error).split("\n")))


class _HelpFormatter(argparse.HelpFormatter):
    """Keeps the longest command on the same line as its summary."""

    def add_argument(self, action: argparse.Action) -> None:
        """Adds the indentation of commands, which argparse leaves out when it measures them."""
        super().add_argument(action)
        if action.nargs == argparse.PARSER:
            self._action_max_length += self._indent_increment


def _build_parser(wanted: str) -> argparse.ArgumentParser:
    """The parser; imports only the module of the wanted command, as some take seconds to load."""
    parser = argparse.ArgumentParser(
        prog="cfel",
        description="Cooperative federated edge learning under time and energy budgets.",
        epilog="Run `cfel COMMAND --help` for the options of a command and an example.",
        formatter_class=_HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cfel {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in SUMMARIES.items():
        if name == wanted:
            import_module(f"cfel.cli.{name}").register(commands)
        else:
            # Without a module it has no options, but it appears in the help and in error messages.
            commands.add_parser(name, help=summary)
    return parser
