"""`cfel fleet`, `cfel extend` and `cfel status`: change a running federation, and look at it."""

import argparse
import asyncio
import json
import secrets
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cfel.api.models import replay_experiment
from cfel.cli import options, output
from cfel.deployment.node import Node, ask_for_change, ask_status
from cfel.errors import InputError, UnreachableError
from cfel.experiment import experiment_toml
from cfel.experiment.experiment import load_directory_experiment
from cfel.launch.node import read_node
from cfel.membership import FleetChange
from cfel.plugins import ANY_CODE
from cfel.runlog import RunDirectory
from cfel.status import DeviceStatus, Status
from cfel.wording import format_amount, plural

EXAMPLES = {
    "fleet": """  cfel fleet add device 6 --edge 1 --federation runs/tiny-up
  cfel fleet remove edge 2
  cfel fleet replay runs/tiny-up --out replay.toml""",
    "extend": """  cfel extend --rounds 10 --joules 500 --federation runs/tiny-up""",
    "status": """  cfel status runs/tiny-up
  cfel status operator-0.toml --json""",
}
_SECONDS = 600.0
_MOST_LISTED = 8
ABSENT = ("lost", "quarantined")

Answers = Mapping[int, Status | str]
"""Of each edge server its status, or why it does not answer."""


def add_extend_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=options.parse_count, default=0, metavar="N", help="more rounds")
    for amount in ("seconds", "joules"):
        parser.add_argument(f"--{amount}", type=options.parse_number, default=0.0, help="more budget")
    _finish(parser, "extend")


def add_fleet_options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="changes", metavar="ACTION", required=True)
    for verb, text, metavar in (
        ("add", "add devices or an edge server", "device|edge"),
        ("remove", "remove devices or an edge server", "device|edge"),
        ("move", "move devices to another edge server", "device"),
        ("drain", "move all devices of an edge server to others", "edge"),
    ):
        kinds = actions.add_parser(verb, help=text).add_subparsers(metavar=metavar, required=True)
        if "device" in metavar:
            _add_device(kinds, verb)
        if "edge" in metavar:
            _add_edge(kinds, verb)
    for what, text in (("pause", "stop after the present round"), ("resume", "continue after a pause")):
        _finish(actions.add_parser(what, help=text), what)
    replay = actions.add_parser("replay", help="write an experiment file that repeats a federation's run")
    options.add_directory_argument(replay, "directory of `cfel up` or an edge server")
    replay.add_argument("--out", type=Path, metavar="FILE", help="the file (default: standard output)")
    replay.set_defaults(run=write_replay)


def _add_device(kinds: Any, verb: str) -> None:  # noqa: ANN401 — of a private type
    parser = kinds.add_parser("device", help=f"{verb} devices")
    parser.add_argument("device", type=options.parse_count, nargs="+", metavar="N", help="their numbers")
    if verb != "remove":
        parser.add_argument(
            "--edge", type=options.parse_count, required=True, metavar="I", help="their edge server"
        )
    _finish(parser, f"{verb} device")


def _add_edge(kinds: Any, verb: str) -> None:  # noqa: ANN401 — likewise
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
    parser.set_defaults(run=change, what=what)


def change(arguments: argparse.Namespace) -> None:
    """Asks the coordinator for a change, and waits until it holds."""
    operator = _read_operator(arguments.federation, "name the federation with --federation")
    fields = ("device", "edge", "rounds", "seconds", "joules", "address")
    given = {name: getattr(arguments, name) for name in fields if hasattr(arguments, name)}
    wanted = FleetChange(1, arguments.what, ticket=arguments.ticket or secrets.token_hex(8), **given)
    try:
        first = asyncio.run(ask_for_change(operator, wanted, _SECONDS))
    except UnreachableError as error:
        again = f"it may still hold later: try again with `--ticket {wanted.ticket}`, so that it counts once"
        raise UnreachableError(f"{error}; {again}") from error
    wanted = replace(wanted, round=first)
    if arguments.json:
        output.print_json({"round": first, "what": wanted.what, "change": wanted.describe()})
    else:
        sys.stdout.write(f"{wanted.describe()}: holds from round {first} on\n")


def _read_operator(where: Path, advice: str) -> Node:
    """The operator's node of a federation, from its file or the directory of `cfel up`."""
    path = where / "nodes" / "operator-0.toml" if where.is_dir() else where
    if not path.exists():
        raise InputError(f"{path} does not exist: {advice}")
    return read_node(path).node


def write_replay(arguments: argparse.Namespace) -> None:
    """Writes the experiment of a federation with the changes and losses in its log."""
    experiment = load_directory_experiment(arguments.directory, code=ANY_CODE)
    repeated = replay_experiment(RunDirectory.open(arguments.directory), experiment)
    text = experiment_toml(repeated)
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        arguments.out.write_text(text, encoding="utf-8")


def add_status_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "where",
        type=Path,
        metavar="DIR|NODE.toml",
        help="directory of `cfel up`, or the configuration of an operator",
    )
    options.add_json_option(parser)
    parser.set_defaults(run=show_status)


def show_status(arguments: argparse.Namespace) -> int:
    """Asks every edge server for its status; exit code 1 if the federation cannot make progress."""
    advice = "give the directory of `cfel up` or an operator's configuration"
    answers = asyncio.run(ask_status(_read_operator(arguments.where, advice)))
    if arguments.json:
        edges = [
            {"edge": edge, "alive": True, **json.loads(answer.to_json())}
            if isinstance(answer, Status)
            else {"edge": edge, "alive": False, "reason": answer}
            for edge, answer in sorted(answers.items())
        ]
        output.print_json({"edges": edges})
    else:
        print_status(answers)
    # Scripts use the exit code to see whether the federation is running.
    return 1 if find_standstill(answers) else 0


def find_standstill(answers: Answers) -> str:
    """Why the federation cannot make progress; empty if it can, or has finished."""
    alive = [answer for answer in answers.values() if isinstance(answer, Status)]
    if not alive:
        return "no edge server answers: the federation has finished or is not running"
    if any(answer.phase == "finished" for answer in alive):
        return ""
    if 2 * len(alive) <= len(answers):
        return f"no majority: only {len(alive)} of {plural(len(answers), 'edge server')} answered"
    # One that can work is enough: it knows a coordinator, which needs a majority.
    return "" if any(not answer.unready for answer in alive) else alive[0].unready


def print_status(answers: Answers) -> None:
    console = Console(highlight=False)
    table = _build_table(answers)
    output.unfold_table(console, table)
    console.print(table, crop=False)
    for edge, answer in sorted(answers.items()):
        if isinstance(answer, str):
            console.print(f"[red]edge {edge}: {escape(_shorten_reason(answer))}[/]", soft_wrap=True)
        elif answer.problem:
            console.print(f"[yellow]edge {edge}: {escape(answer.problem)}[/]", soft_wrap=True)
    if standstill := find_standstill(answers):
        console.print(f"[red]{escape(standstill)}[/]", soft_wrap=True)
    _print_sources(console, answers)
    _print_versions(console, answers)


def _print_versions(console: Console, answers: Answers) -> None:
    """Prints the versions of all nodes, if they differ."""
    versions: dict[str, list[str]] = {}
    for edge, answer in sorted(answers.items()):
        if isinstance(answer, Status):
            versions.setdefault(answer.version, []).append(f"edge-{edge}")
            for device in _list_devices(edge, answer):
                if device.version:
                    versions.setdefault(device.version, []).append(f"device-{device.device}")
    if len(versions) > 1:
        for version, nodes in sorted(versions.items()):
            shown = ", ".join(nodes[:_MOST_LISTED]) + (" …" if len(nodes) > _MOST_LISTED else "")
            console.print(f"version {escape(version or 'unknown')}: {escape(shown)}", soft_wrap=True)


def _shorten_reason(answer: str) -> str:
    """Why there was no answer, in one line: the last cause in the chain that gRPC reports."""
    words = " ".join(answer.rpartition("last error: ")[2].removeprefix("UNKNOWN: ").split())
    # gRPC quotes IPv6 addresses as in a URL.
    return words.replace("%5B", "[").replace("%5D", "]")


def _build_table(answers: Answers) -> Table:
    columns = ("edge", "term", "coordinator", "round", "phase", "devices", "rejected", "quality", "s", "J")
    table = output.new_table(*columns)
    table.padding = (0, 1, 0, 0)
    for edge, answer in sorted(answers.items()):
        if isinstance(answer, str):
            table.add_row(str(edge), "", "", "", "[red]no answer[/]")
            continue
        accuracy = next((each.accuracy for each in answer.history[::-1] if each.accuracy is not None), None)
        table.add_row(
            str(edge),
            str(answer.term),
            answer.coordinator or "?",
            f"{answer.round}.{answer.edge_round}",
            answer.phase,
            count_devices({edge: answer}),
            str(sum(number for _, number in answer.rejected)),
            "" if accuracy is None else output.use_plain_spaces(answer.metric.format(accuracy)),
            format_amount(answer.seconds),
            format_amount(answer.joules),
        )
    return table


def _list_devices(edge: int, status: Status) -> tuple[DeviceStatus, ...]:
    """An edge server's own devices; none in a status without clusters, as before the first round."""
    return next((each.devices for each in status.clusters if each.cluster == edge), ())


def count_devices(answers: Answers) -> str:
    """Devices present of all devices, as reported by the edge servers that answered."""
    present = total = 0
    for edge, answer in answers.items():
        if isinstance(answer, Status):
            devices = _list_devices(edge, answer)
            present += sum(device.state not in ABSENT for device in devices)
            total += len(devices)
    return f"{present}/{total}"


def _print_sources(console: Console, answers: Answers) -> None:
    """Prints how devices measure their seconds and joules, if they do."""
    sources = Counter(
        device.source
        for edge, answer in answers.items()
        if isinstance(answer, Status) and answer.conditions == "measured"
        for device in _list_devices(edge, answer)
    )
    for source, count in sorted(sources.items()):
        console.print(f"{plural(count, 'device')} measuring: {escape(source or 'nothing reported yet')}")
