"""`cfel report`: writes the HTML report of a run or a comparison from its logs."""

import argparse
from pathlib import Path

from rich.console import Console

from cfel.cli.arguments import Commands, add_command, add_json_option, parse_number
from cfel.cli.output import print_json
from cfel.report import write_events, write_report

EXAMPLE = """  cfel report runs/first
  cfel report runs/table --target 0.7 --tensorboard"""


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "report", EXAMPLE)
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of a run or a comparison")
    parser.add_argument(
        "--target",
        type=parse_number,
        metavar="ACCURACY",
        help="target of the table (default: the experiment's)",
    )
    parser.add_argument("--tensorboard", action="store_true", help="also write TensorBoard event files")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the files and prints their paths."""
    page = write_report(arguments.directory, arguments.target)
    events = write_events(arguments.directory) if arguments.tensorboard else ()
    if arguments.json:
        print_json({"report": str(page), "tensorboard": [str(path) for path in events]})
        return 0
    console = Console(highlight=False)
    for path in (page, *events):
        console.print(str(path), soft_wrap=True)
    return 0
