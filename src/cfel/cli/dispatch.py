"""Finds the command that was typed, runs it, and prints an error as one line."""

import argparse
import os
import sys
import textwrap
import warnings
from collections.abc import Sequence
from importlib import import_module

from rich.console import Console
from rich.markup import escape

from cfel import __version__
from cfel.errors import BudgetWarning, CfelError, InputError, SilentEdgeServerError, unknown_name
from cfel.extras import explain_missing_extra
from cfel.wording import escape_control

GROUPS = {
    "try and simulate": {
        "demo": ("compare", "compare six schemes on 64 simulated devices"),
        "run": ("run", "simulate one experiment"),
        "compare": ("compare", "simulate several schemes or other variants under the same conditions"),
        "sweep": ("compare", "simulate every combination of some values of some keys"),
        "tune": ("compare", "choose values of keys by held-out quality under the budgets"),
        "watch": ("results", "serve a live dashboard of a run or a comparison"),
        "report": ("results", "write the HTML report of runs, or export its figures and table"),
        "reproduce": ("reproduce", "reproduce a table or figure of the paper"),
    },
    "plan": {
        "plan": ("plan", "plan one round: how much each device computes and sends"),
        "theory": ("theory", "evaluate Theorem 1 for an experiment or a run, term by term"),
    },
    "deploy": {
        "up": ("up", "run an experiment as real processes on this machine"),
        "edge": ("node", "run one edge server of a federation"),
        "device": ("node", "run one device of a federation"),
        "invite": ("enrol", "invite machines to a federation, and serve what they need to join"),
        "join": ("enrol", "make this machine a node of a federation, with a token or an archive"),
        "deploy": ("enrol", "write one archive per host for a federation that is set up in advance"),
        "certs": ("certs", "create, renew or revoke the certificates of a federation"),
        "fleet": (
            "federation",
            "add, remove or move devices and edge servers of a running federation; pause it; repeat its run",
        ),
        "extend": ("federation", "give a running federation more rounds or a larger budget"),
        "status": ("federation", "show the nodes, the coordinator and the costs of a federation"),
        "rollback": ("node", "use an earlier model of those that a node has published"),
    },
    "tools": {
        "keys": ("keys", "list the keys of an experiment file with their values and meanings"),
        "recount": ("results", "recount a finished run under other conditions"),
        "export": ("results", "write the trained model of a run to a file"),
        "predict": ("results", "run a trained model on a file of samples"),
        "devices": ("devices", "list device classes, import one from a phone, or convert traces"),
        "calibrate": ("devices", "measure this machine and write it as a device class"),
    },
}
"""Every command in the order of the help: the module that has it, and its summary."""

COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

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
                # Of most commands None: they succeed or raise.
                code: int = parsed.run(parsed) or 0
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
    wanted = arguments[0] if arguments else ""
    parser = build_parser(wanted)
    if wanted and wanted not in COMMANDS and not wanted.startswith("-"):
        parser.error(unknown_name("COMMAND", wanted, COMMANDS))
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
    """Shows the commands in their groups."""

    def _format_action(self, action: argparse.Action) -> str:
        if action.nargs != argparse.PARSER:
            return super()._format_action(action)
        lines = []
        for title, commands in GROUPS.items():
            lines.append(f"  {title}:")
            for name, (_, summary) in commands.items():
                text = f"    {name:12}{summary}"
                lines.append(textwrap.fill(text, self._width, subsequent_indent=16 * " "))
        return "\n".join([*lines, ""])


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
    for name, (module, summary) in COMMANDS.items():
        # Without its module a command has no options, but it appears in the help and in error messages.
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == wanted:
            found = import_module(f"cfel.cli.{module}")
            command.epilog = f"example:\n{found.EXAMPLES[name]}"
            getattr(found, f"add_{name}_options")(command)
    return parser
