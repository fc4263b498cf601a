"""`cfel deploy`: one archive per host, for a federation that is set up in advance."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.cli.options import Commands, add_command
from cfel.launch.machine import pack_hosts, read_inventory

EXAMPLE = """  cfel deploy inventory.toml --out federation
  cfel join gateway-1.tar.gz                          # on that host"""


def register(commands: Commands, name: str) -> None:
    """Adds the command."""
    parser = add_command(commands, name, EXAMPLE)
    parser.add_argument(
        "inventory", type=Path, metavar="INVENTORY.toml", help="which host runs which nodes; see the guide"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="where you keep the federation",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the archives."""
    for archive in pack_hosts(read_inventory(arguments.inventory), arguments.out):
        Console(highlight=False).print(escape(str(archive)), soft_wrap=True)
    return 0
