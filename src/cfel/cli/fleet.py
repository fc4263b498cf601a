"""`cfel fleet` and `cfel extend`: change the fleet or the length of a federation's run, and repeat it."""

import argparse
import asyncio
import secrets
import sys
from dataclasses import replace
from pathlib import Path

from cfel.api.models import replay_experiment
from cfel.cli import options, output
from cfel.deployment.node import ask_for_change
from cfel.errors import InputError, UnreachableError
from cfel.experiment import experiment_toml
from cfel.experiment.experiment import load_directory_experiment
from cfel.launch.node import read_node
from cfel.membership import FleetChange
from cfel.plugins import ANY_CODE
from cfel.runlog import RunDirectory

EXAMPLES = {
    "fleet": """  cfel fleet add device 6 --edge 1 --federation runs/tiny-up
  cfel fleet remove edge 2
  cfel fleet replay runs/tiny-up --out replay.toml""",
    "extend": """  cfel extend --rounds 10 --joules 500 --federation runs/tiny-up""",
}
_SECONDS = 600.0


def register(commands: options.Commands, name: str) -> None:
    parser = options.add_command(commands, name, EXAMPLES[name])
    if name == "extend":
        parser.add_argument("--rounds", type=options.parse_count, default=0, metavar="N", help="more rounds")
        for amount in ("seconds", "joules"):
            parser.add_argument(f"--{amount}", type=options.parse_number, default=0.0, help="more budget")
        _finish(parser, "extend")
        return
    actions = parser.add_subparsers(title="changes", metavar="ACTION", required=True)
    texts = {"add": "add devices or an edge server", "remove": "remove devices or an edge server"}
    for verb, text in texts.items():
        kinds = actions.add_parser(verb, help=text).add_subparsers(metavar="device|edge", required=True)
        _add_device(kinds, verb, goes_to_edge=verb == "add")
        _add_edge(kinds, verb)
    kinds = actions.add_parser("move", help="move devices to another edge server").add_subparsers(
        metavar="device", required=True
    )
    _add_device(kinds, "move", goes_to_edge=True)
    kinds = actions.add_parser("drain", help="move all devices of an edge server to others").add_subparsers(
        metavar="edge", required=True
    )
    _add_edge(kinds, "drain")
    for what, text in (("pause", "stop after the present round"), ("resume", "continue after a pause")):
        _finish(actions.add_parser(what, help=text), what)
    replay = actions.add_parser("replay", help="write an experiment file that repeats a federation's run")
    replay.add_argument(
        "directory", type=Path, metavar="DIR", help="directory of `cfel up` or an edge server"
    )
    replay.add_argument("--out", type=Path, metavar="FILE", help="the file (default: standard output)")
    replay.set_defaults(run=write_replay)


def _add_device(kinds: options.Commands, verb: str, *, goes_to_edge: bool) -> None:
    parser = kinds.add_parser("device", help=f"{verb} devices")
    parser.add_argument("device", type=options.parse_count, nargs="+", metavar="N", help="their numbers")
    if goes_to_edge:
        parser.add_argument(
            "--edge", type=options.parse_count, required=True, metavar="I", help="their edge server"
        )
    _finish(parser, f"{verb} device")


def _add_edge(kinds: options.Commands, verb: str) -> None:
    parser = kinds.add_parser("edge", help=f"{verb} an edge server")
    parser.add_argument("edge", type=options.parse_count, metavar="I", help="its number")
    if verb == "add":
        parser.add_argument("--address", default="", metavar="HOST:PORT", help="where others reach it")
    _finish(parser, f"{verb} edge")


def _finish(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--federation",
        type=Path,
        default=Path("operator-0.toml"),
        metavar="DIR|NODE.toml",
        help="directory of `cfel up`, or an operator's configuration (default: operator-0.toml)",
    )
    parser.add_argument(
        "--ticket", default="", metavar="T", help="repeat a command whose error named T: it counts once"
    )
    options.add_json_option(parser)
    parser.set_defaults(run=run, what=what)


def run(arguments: argparse.Namespace) -> int:
    """Asks the coordinator for a change, and waits until it holds."""
    where: Path = arguments.federation
    path = where / "nodes" / "operator-0.toml" if where.is_dir() else where
    if not path.exists():
        raise InputError(f"{path} does not exist: name the federation with --federation")
    fields = ("device", "edge", "rounds", "seconds", "joules", "address")
    given = {name: getattr(arguments, name) for name in fields if hasattr(arguments, name)}
    change = FleetChange(1, arguments.what, ticket=arguments.ticket or secrets.token_hex(8), **given)
    try:
        first = asyncio.run(ask_for_change(read_node(path).node, change, _SECONDS))
    except UnreachableError as error:
        again = f"it may still hold later: try again with `--ticket {change.ticket}`, so that it counts once"
        raise UnreachableError(f"{error}; {again}") from error
    change = replace(change, round=first)
    if arguments.json:
        output.print_json({"round": first, "what": change.what, "change": change.describe()})
    else:
        sys.stdout.write(f"{change.describe()}: holds from round {first} on\n")
    return 0


def write_replay(arguments: argparse.Namespace) -> int:
    """Writes the experiment of a federation with the changes and losses in its log."""
    experiment = load_directory_experiment(arguments.directory, code=ANY_CODE)
    repeated = replay_experiment(RunDirectory.open(arguments.directory), experiment)
    text = experiment_toml(repeated)
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        arguments.out.write_text(text, encoding="utf-8")
    return 0
