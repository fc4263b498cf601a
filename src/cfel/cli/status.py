"""`cfel status`: nodes, coordinator, current round and costs of a federation."""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cfel.cli import options, output
from cfel.deployment.node import ask_status
from cfel.errors import InputError
from cfel.launch.node import read_node
from cfel.status import DeviceStatus, Status
from cfel.wording import format_amount, plural

EXAMPLE = """  cfel status runs/tiny-up
  cfel status operator-0.toml --json"""

_MOST_LISTED = 8
ABSENT = ("lost", "quarantined")

Answers = Mapping[int, Status | str]
"""Of each edge server its status, or why it does not answer."""


def register(commands: options.Commands, name: str) -> None:
    parser = options.add_command(commands, name, EXAMPLE)
    parser.add_argument(
        "where",
        type=Path,
        metavar="DIR|NODE.toml",
        help="directory of `cfel up`, or the configuration of an operator",
    )
    options.add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Asks every edge server for its status; exit code 1 if the federation cannot make progress."""
    where: Path = arguments.where
    path = where / "nodes" / "operator-0.toml" if where.is_dir() else where
    if not path.exists():
        raise InputError(
            f"{path} does not exist: give the directory of `cfel up` or an operator's configuration"
        )
    answers = asyncio.run(ask_status(read_node(path).node))
    if arguments.json:
        output.print_json({"edges": [_build_document(i, answer) for i, answer in sorted(answers.items())]})
    else:
        _print(answers)
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


def _build_document(edge: int, answer: Status | str) -> dict[str, Any]:
    if isinstance(answer, Status):
        return {"edge": edge, "alive": True, **json.loads(answer.to_json())}
    return {"edge": edge, "alive": False, "reason": answer}


def _print(answers: Answers) -> None:
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
