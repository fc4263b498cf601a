"""`cfel bench NAME`: the benchmarks of the project, one module each."""

import argparse

from cfel.cli import (
    bench_deployment,
    bench_peers,
    bench_resilience,
    bench_scaleout,
    bench_simulation,
    bench_solver,
)
from cfel.cli.arguments import Commands, add_command, add_json_option
from cfel.errors import InputError

EXAMPLE = """  cfel bench solver
  cfel bench simulation --quick --json
  cfel bench simulation --only small_cnn
  cfel bench deployment --quick
  cfel bench resilience --only coordinator
  cfel bench peers --only small_cnn"""
BENCHES = {
    "deployment": bench_deployment.run,
    "peers": bench_peers.run,
    "resilience": bench_resilience.run,
    "scaleout": bench_scaleout.run,
    "simulation": bench_simulation.run,
    "solver": bench_solver.run,
}
PARTS = {
    "deployment": bench_deployment.PARTS,
    "peers": bench_peers.PARTS,
    "resilience": bench_resilience.PARTS,
    "simulation": bench_simulation.SETTINGS,
}


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "bench", EXAMPLE)
    parser.add_argument("name", choices=BENCHES, help="benchmark to run")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller measurements")
    parser.add_argument(
        "--only",
        choices=sorted({part for parts in PARTS.values() for part in parts}),
        metavar="PART",
        help="run one part only; "
        + "; ".join(f"{name}: {', '.join(parts)}" for name, parts in sorted(PARTS.items())),
    )
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark and prints the results."""
    parts = PARTS.get(arguments.name, ())
    if arguments.only is not None and arguments.only not in parts:
        allowed = f"has the parts {', '.join(parts)}" if parts else "has no parts"
        raise InputError(f"--only {arguments.only}: bench {arguments.name} {allowed}")
    return BENCHES[arguments.name](arguments)
