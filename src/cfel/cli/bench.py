"""`cfel bench NAME`: the project's own measurements; each has a module of its own."""

import argparse

from cfel.cli import bench_deployment, bench_scaleout, bench_simulation, bench_solver
from cfel.cli.shared import Commands, add_command, add_json
from cfel.errors import InputError

EXAMPLE = """  cfel bench solver
  cfel bench simulation --quick --json
  cfel bench simulation --only small_cnn
  cfel bench deployment --quick"""
BENCHES = {
    "deployment": bench_deployment.run,
    "scaleout": bench_scaleout.run,
    "simulation": bench_simulation.run,
    "solver": bench_solver.run,
}
PARTS = {"deployment": bench_deployment.PARTS, "simulation": bench_simulation.SETTINGS}


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "bench", EXAMPLE)
    parser.add_argument("name", choices=BENCHES, help="what to measure")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller instances")
    parser.add_argument(
        "--only",
        choices=[part for parts in PARTS.values() for part in parts],
        metavar="PART",
        help=f"nothing else: of simulation {', '.join(PARTS['simulation'])}; of deployment "
        f"{', '.join(PARTS['deployment'])}",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints."""
    parts = PARTS.get(arguments.name, ())
    if arguments.only is not None and arguments.only not in parts:
        allowed = f"has {', '.join(parts)}" if parts else "has no settings to choose from"
        raise InputError(f"--only {arguments.only}: bench {arguments.name} {allowed}")
    return BENCHES[arguments.name](arguments)
