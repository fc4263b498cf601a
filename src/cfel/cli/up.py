"""`cfel up`: a whole federation on this machine."""

import argparse
import shlex
import sys
from pathlib import Path

from cfel.cli.ending import tell_ending
from cfel.cli.federation_view import FederationView
from cfel.cli.interrupt import interruptible
from cfel.cli.run import read_experiment
from cfel.cli.shared import Commands, add_changes, add_command, add_json
from cfel.launch.federation import Processes, Raising, bring_up
from cfel.launch.node import read_node

EXAMPLE = """  cfel up examples/tiny.toml --out runs/tiny-up
  cfel up examples/tiny.toml --out runs/tiny-up --resume
  cfel status runs/tiny-up"""
NOTICE = "stopping all processes; what counts is on the disk. Ctrl-C again does not wait for them"


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


def _resuming(arguments: argparse.Namespace, out: Path) -> str:
    """The command that goes on with what this one has begun; without its changes it would be refused."""
    changes = [part for change in arguments.set for part in ("--set", change)]
    json = ["--json"] if arguments.json else []
    return shlex.join(
        ["cfel", "up", str(arguments.experiment), "--out", str(out), *changes, *json, "--resume"]
    )


def run(arguments: argparse.Namespace) -> int:
    """Brings the federation up, and reports when it is done."""
    experiment = read_experiment(arguments)
    out: Path = arguments.out or Path("runs") / f"{experiment.name}-up"
    view = FederationView(experiment.rounds.global_rounds)
    with view, interruptible(view.say, NOTICE) as interrupted:

        def started(_: Processes) -> None:
            view.say(f"{experiment.fleet.devices} devices are starting; dashboard: {_page(out)}")
            view.watch(read_node(out / "nodes" / "operator-0.toml").node)

        raising = Raising(
            command=tuple(sys.argv),
            resume=arguments.resume,
            on_round=view.on_round,
            interrupted=interrupted,
            on_start=started,
            on_loss=lambda name: view.say(
                f"{name} was turned away, the others go on without it; see {out / 'nodes' / name}.log"
            ),
            import_from=(arguments.experiment.absolute().parent, Path().absolute()),
        )
        try:
            records = bring_up(experiment, out, raising)
        except KeyboardInterrupt:
            view.say(f"all stopped; to go on: {_resuming(arguments, out)}")
            raise
    return tell_ending(arguments, experiment, out, records)
