"""What `cfel edge` and `cfel device` have in common."""

import argparse
from pathlib import Path

from cfel.cli.shared import Commands, add_command
from cfel.errors import InputError
from cfel.launch.node import read_node, run_node, start_logging


def register_node(commands: Commands, role: str, example: str) -> None:
    """Adds the command of a role."""
    parser = add_command(commands, role, example)
    parser.add_argument("--config", type=Path, required=True, metavar="NODE.toml", help="see docs/deploy.md")
    parser.add_argument("--log", type=Path, metavar="FILE", help="log file (default: standard error)")
    parser.set_defaults(run=run, role=role)


def run(arguments: argparse.Namespace) -> int:
    """Runs the node until the experiment is over; 130 if it was asked to stop before."""
    given = read_node(arguments.config).node.identity
    if given.role != arguments.role:
        raise InputError(f"{arguments.config}: it configures {given}, not one for `cfel {arguments.role}`")
    start_logging(arguments.log)
    if not run_node(arguments.config):
        raise KeyboardInterrupt
    return 0
