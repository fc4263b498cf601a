"""`cfel edge`: one edge server of a federation."""

from cfel.cli.arguments import Commands
from cfel.cli.node import register_node

EXAMPLE = "  cfel edge --config edge-0.toml"


def register(commands: Commands) -> None:
    """Adds the command."""
    register_node(commands, "edge", EXAMPLE)
