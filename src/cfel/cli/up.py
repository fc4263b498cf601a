"""`cfel up`: a whole federation on this machine."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from cfel.cli.interrupt import interruptible
from cfel.cli.progress import RunProgress
from cfel.cli.run import read_experiment
from cfel.cli.shared import Commands, add_changes, add_command, add_json, print_json
from cfel.report import write_report
from cfel.studies.federation import Raising, bring_up
from cfel.studies.node import read_node

EXAMPLE = """  cfel up examples/tiny.toml --out runs/tiny-up
  cfel up examples/tiny.toml --out runs/tiny-up --resume
  cfel status runs/tiny-up"""


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "up", EXAMPLE)
    parser.add_argument("experiment", type=Path, metavar="EXPERIMENT.toml")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default runs/NAME-up)")
    parser.add_argument("--resume", action="store_true", help="go on with the federation in DIR")
    add_changes(parser)
    add_json(parser)
    parser.set_defaults(run=run, engine=None)


def _page(out: Path) -> str:
    """Where edge server 0 shows how things are going."""
    return f"http://{read_node(out / 'nodes' / 'edge-0.toml').dashboard}/"


def run(arguments: argparse.Namespace) -> int:
    """Brings the federation up, and reports when it is done."""
    experiment = read_experiment(arguments)
    out: Path = arguments.out or Path("runs") / f"{experiment.name}-up"
    fleet = experiment.fleet
    with RunProgress(experiment.rounds.global_rounds) as progress, interruptible(progress.say) as interrupted:
        raising = Raising(
            command=tuple(sys.argv),
            resume=arguments.resume,
            on_round=lambda record: progress.on_round(experiment.name, record),
            interrupted=interrupted,
            on_start=lambda _: progress.say(f"{fleet.devices} devices are starting; dashboard: {_page(out)}"),
            import_from=(arguments.experiment.absolute().parent, Path().absolute()),
        )
        records = bring_up(experiment, out, raising)
    page = write_report(out, experiment.simulation.target)
    last = records[-1]
    if arguments.json:
        print_json(
            {
                "directory": str(out),
                "rounds": len(records),
                "accuracy": last.accuracy,
                "seconds": last.seconds,
                "joules": last.joules,
                "model_sha256": last.model_sha256,
            }
        )
        return 0
    console = Console(highlight=False)
    accuracy = "not evaluated" if last.accuracy is None else f"{100 * last.accuracy:.2f} %"
    console.print(f"{len(records)} rounds: accuracy {accuracy}, {last.seconds:,.0f} s, {last.joules:,.0f} J")
    console.print(f"report: {page}")
    return 0
