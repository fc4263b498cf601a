"""`cfel bench NAME`: the project's own measurements; each has a module of its own."""

import argparse

from cfel.cli import bench_scaleout, bench_simulation, bench_solver
from cfel.cli.shared import Commands, add_command, add_json

EXAMPLE = """  cfel bench solver
  cfel bench simulation --quick --json"""
BENCHES = {"scaleout": bench_scaleout.run, "simulation": bench_simulation.run, "solver": bench_solver.run}


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "bench", EXAMPLE)
    parser.add_argument("name", choices=BENCHES, help="what to measure")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller instances")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints."""
    return BENCHES[arguments.name](arguments)
