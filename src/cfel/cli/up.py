"""`cfel up`: runs a whole federation as processes on this machine."""

import argparse
import shlex
import sys
from pathlib import Path

from cfel.api.progress import defer_interrupt
from cfel.api.results import load_result
from cfel.cli.arguments import Commands, add_command, add_json_option, add_out_option, add_set_option
from cfel.cli.node import add_log_options, choose_log_settings
from cfel.cli.run import add_experiment_argument, print_run_result, read_experiment
from cfel.cli.status import FederationView
from cfel.launch.federation import LaunchOptions, launch_federation
from cfel.launch.logs import LogSettings
from cfel.launch.node import read_node
from cfel.launch.processes import Processes
from cfel.wording import plural

EXAMPLE = """  cfel up examples/tiny.toml --out runs/tiny-up
  cfel up examples/tiny.toml --out runs/tiny-up --resume
  cfel status runs/tiny-up"""
NOTICE = "stopping all processes; their state is on disk. Press Ctrl-C again to stop without waiting"


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "up", EXAMPLE)
    add_experiment_argument(parser)
    add_out_option(parser, "run directory (default runs/NAME-up)")
    parser.add_argument("--resume", action="store_true", help="resume the federation in DIR")
    add_log_options(parser)
    add_set_option(parser)
    add_json_option(parser)
    # `read_experiment` looks for --engine, which has no meaning here.
    parser.set_defaults(run=run, engine=None)


def _dashboard_address(out: Path) -> str:
    """Address of the dashboard of edge server 0."""
    return f"http://{read_node(out / 'nodes' / 'edge-0.toml').dashboard}/"


def _resume_command(arguments: argparse.Namespace, out: Path) -> str:
    """The command that resumes this federation. It repeats --set, as the experiment must be the same."""
    changes = [part for change in arguments.set for part in ("--set", change)]
    json = ["--json"] if arguments.json else []
    return shlex.join(
        ["cfel", "up", str(arguments.experiment), "--out", str(out), *changes, *json, "--resume"]
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the federation and prints the result."""
    experiment = read_experiment(arguments)
    out: Path = arguments.out or Path("runs") / f"{experiment.name}-up"
    view = FederationView(experiment.rounds.global_rounds)
    with view, defer_interrupt(view.print_line, NOTICE) as interrupted:

        def on_start(_: Processes) -> None:
            view.print_line(
                f"starting {plural(experiment.fleet.devices, 'device')}; dashboard: {_dashboard_address(out)}"
            )
            view.watch(read_node(out / "nodes" / "operator-0.toml").node)

        options = LaunchOptions(
            command=tuple(sys.argv),
            resume=arguments.resume,
            on_round=view.on_round,
            interrupted=interrupted,
            on_start=on_start,
            on_loss=lambda name: view.print_line(
                f"{name} was rejected; the others continue without it. See {out / 'nodes' / name}.log"
            ),
            on_problem=lambda problem: view.print_line(f"{problem}; the federation waits for that"),
            log=choose_log_settings(arguments, LogSettings()),
            import_from=(arguments.experiment.absolute().parent, Path().absolute()),
        )
        try:
            launch_federation(experiment, out, options)
        except KeyboardInterrupt:
            view.print_line(f"all processes stopped; to resume: {_resume_command(arguments, out)}")
            raise
    return print_run_result(arguments, load_result(out, experiment))
