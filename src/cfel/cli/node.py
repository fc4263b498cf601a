"""The common part of `cfel edge` and `cfel device`."""

import argparse
from pathlib import Path

from cfel.cli.arguments import Commands, add_command
from cfel.errors import InputError
from cfel.launch.node import run_node, start_logging
from cfel.launch.node_file import read_node


def register_node(commands: Commands, role: str, example: str) -> None:
    """Adds the command of a role."""
    parser = add_command(commands, role, example)
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="NODE.toml",
        help="configuration of the node; see docs/deploy.md",
    )
    parser.add_argument("--log", type=Path, metavar="FILE", help="log file (default: standard error)")
    parser.set_defaults(run=run, role=role)


def run(arguments: argparse.Namespace) -> int:
    """Runs the node until the experiment is finished; a node stopped before that exits with 130."""
    identity = read_node(arguments.config).node.identity
    if identity.role != arguments.role:
        raise InputError(
            f"{arguments.config}: configures {identity}, which `cfel {arguments.role}` cannot run"
        )
    start_logging(arguments.log)
    if not run_node(arguments.config):
        raise KeyboardInterrupt
    return 0
