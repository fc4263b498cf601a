"""`cfel device`: one device of a federation."""

from cfel.cli.arguments import Commands
from cfel.cli.node import register_node

EXAMPLE = "  cfel device --config device-7.toml"


def register(commands: Commands) -> None:
    """Adds the command."""
    register_node(commands, "device", EXAMPLE)
