"""`cfel recount`: counts a finished run again under other conditions, without training again."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from cfel.api.recount import CHANGEABLE, recount
from cfel.cli import options, output
from cfel.wording import format_amount, plural

EXAMPLE = """  cfel recount runs/cef/seed-0 --out recounted/cef \\
    --set fleet.conditions.channel_floor=0 --set scheme.slow_clocks=true"""


def register(commands: options.Commands, name: str) -> None:
    parser = options.add_command(commands, name, EXAMPLE)
    parser.add_argument("directory", type=Path, metavar="DIR", help="the run directory")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write the new log")
    options.add_set_option(parser)
    options.add_trust_option(parser)
    options.add_json_option(parser)
    parser.epilog = (
        f"Works for schemes that ask the same of every device whatever it costs, such as CEF.\n"
        f"Keys that may change: {', '.join(CHANGEABLE)}\n\n{parser.epilog}"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the new run directory and prints its totals."""
    code = options.select_code_policy(arguments, arguments.directory)
    records = recount(arguments.directory, arguments.out, arguments.set, code, sys.argv)
    last = records[-1]
    if arguments.json:
        output.print_json({"rounds": len(records), "seconds": last.seconds, "joules": last.joules})
        return 0
    console = Console(highlight=False)
    console.print(
        f"{arguments.out}: {plural(len(records), 'round')} recounted, "
        f"{format_amount(last.seconds)} s and {format_amount(last.joules)} J in all",
        soft_wrap=True,
        markup=False,
    )
    return 0
