"""`cfel rollback`: has a node use an earlier model of those that it has published."""

import argparse
from pathlib import Path

from rich.console import Console

from cfel.cli.options import Commands, add_command, add_json_option, parse_count
from cfel.cli.output import print_json
from cfel.deployment.host import RealDisk
from cfel.deployment.publishing import PublishedModels
from cfel.errors import InputError

EXAMPLE = """  cfel rollback /var/lib/cfel/device-3               # to the model before the one in use
  cfel rollback runs/tiny-up --to 20                 # all nodes of `cfel up`, to the model after round 20
  cfel rollback runs/tiny-up --newest                # use new models again"""


def register(commands: Commands, name: str) -> None:
    parser = add_command(commands, name, EXAMPLE)
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="the directory of a node, or of `cfel up` for all of them"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--to", type=parse_count, metavar="ROUND", help="use the model after this round")
    which.add_argument("--newest", action="store_true", help="use the newest model, now and from now on")
    which.add_argument("--list", action="store_true", help="only show the models that are kept")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Changes the model in use and prints which one it is, per node."""
    nodes = {place: PublishedModels(RealDisk(), place) for place in _find_nodes(arguments.directory)}
    if not arguments.list:
        newest = arguments.newest
        # Chosen for all before any is changed: a fleet with two models is what an operator wants least.
        chosen = {place: None if newest else each.find(arguments.to) for place, each in nodes.items()}
        for place, each in nodes.items():
            each.use(chosen[place])
    if arguments.json:
        print_json({str(place): _describe(each) for place, each in nodes.items()})
        return 0
    console = Console(highlight=False)
    for place, each in nodes.items():
        console.print(f"{place}: {_describe_in_words(each)}", markup=False, soft_wrap=True)
    return 0


def _find_nodes(directory: Path) -> list[Path]:
    places = [directory, *sorted((directory / "nodes").glob("*"))]
    found = [place for place in places if (place / "published.json").is_file()]
    if not found:
        raise InputError(f"{directory}: no node has published a model there")
    return found


def _describe(models: PublishedModels) -> dict[str, object]:
    used = models.find_used()
    return {
        "used": None if used is None else used.round,
        "pinned": models.pinned,
        "kept": [{"round": each.round, "sha256": each.sha256} for each in models.list()],
    }


def _describe_in_words(models: PublishedModels) -> str:
    used, kept = models.find_used(), ", ".join(str(each.round) for each in models.list())
    words = "a model that was not published" if used is None else f"the model of round {used.round}"
    pinned = "" if models.pinned is None else ", until `cfel rollback --newest`"
    return f"uses {words}{pinned}; kept are those of rounds {kept}"
