"""`cfel report`: the page of a run or a comparison, from its logs."""

import argparse
from pathlib import Path

from rich.console import Console

from cfel.cli.shared import Commands, add_command, amount
from cfel.report import write_events, write_report

EXAMPLE = """  cfel report runs/first
  cfel report runs/table --target 0.7 --tensorboard"""


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "report", EXAMPLE)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--target", type=amount, metavar="ACCURACY", help="default: the experiment's")
    parser.add_argument("--tensorboard", action="store_true", help="write TensorBoard event files as well")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draws and says where."""
    console = Console(highlight=False)
    console.print(str(write_report(arguments.directory, arguments.target)), soft_wrap=True)
    if arguments.tensorboard:
        for path in write_events(arguments.directory):
            console.print(str(path), soft_wrap=True)
    return 0
