"""Finds the command that was typed, runs it, and prints an error as one line."""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from rich.console import Console
from rich.markup import escape

from cfel import __version__
from cfel.cli.options import SUMMARIES
from cfel.errors import BudgetWarning, CfelError, InputError, SilentEdgeServerError
from cfel.extras import explain_missing_extra
from cfel.wording import escape_control

_MOST_SHOWN = 1500
"""Characters of a message."""


def run_command(arguments: Sequence[str]) -> int:
    """Runs a command line without the program's name and returns its exit code."""
    errors = Console(stderr=True, highlight=False)
    parsed = argparse.Namespace()
    try:
        # Imports of the command's module and of what it loads later: both may miss an optional package.
        with explain_missing_extra():
            parsed = _parse(arguments)
            with warnings.catch_warnings():
                # Commands print what was broken in their own words.
                warnings.simplefilter("ignore", BudgetWarning)
                code = int(parsed.run(parsed))
        sys.stdout.flush()
    except CfelError as error:
        errors.print(f"{_choose_word(error)} {escape(_make_printable(error))}", soft_wrap=True)
        # Nodes have more exit codes than other commands, for those who supervise them.
        if choose := getattr(parsed, "choose_exit_code", None):
            return int(choose(error))
        return 2 if isinstance(error, InputError) else 1
    except BrokenPipeError:
        # The reader of our output has ended. Without this, flushing the buffer at exit would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = build_parser(arguments[0] if arguments else "")
    parsed, rest = parser.parse_known_args(arguments)
    if rest:
        hint = " (write --set before each of them)" if "--set" in arguments and "=" in rest[0] else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    return parsed


def _choose_word(error: CfelError) -> str:
    if isinstance(error, SilentEdgeServerError):
        return "[bold yellow]ended:[/]"
    return f"[bold red]{'error' if isinstance(error, InputError) else 'failed'}:[/]"


def _make_printable(error: CfelError) -> str:
    """The message without control characters, and not too long: part of it may come from a file or a peer."""
    text = "\n".join(map(escape_control, str(error).split("\n")))
    # What is allowed is said at the end.
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 2]} … {text[-_MOST_SHOWN // 2 :]}"


class _HelpFormatter(argparse.HelpFormatter):
    """Keeps the longest command on the same line as its summary."""

    def add_argument(self, action: argparse.Action) -> None:
        """Adds the indentation of commands, which argparse leaves out when it measures them."""
        super().add_argument(action)
        if action.nargs == argparse.PARSER:
            self._action_max_length += self._indent_increment


def find_command(name: str) -> ModuleType:
    """The module of a command; `edge` and `device` are one, and so are `fleet` and `extend`."""
    modules = {"edge": "node", "device": "node", "extend": "fleet"}
    return import_module(f"cfel.cli.{modules.get(name, name)}")


def build_parser(wanted: str) -> argparse.ArgumentParser:
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
            find_command(name).register(commands, name)
        else:
            # Without a module it has no options, but it appears in the help and in error messages.
            commands.add_parser(name, help=summary)
    return parser
