"""`cfel status`: nodes, coordinator, current round and costs of a federation."""

import argparse
import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cfel.cli.arguments import Commands, add_command, add_json_option
from cfel.cli.output import new_table, print_json, unfold_table
from cfel.deployment.node import Node, ask_status
from cfel.errors import DeploymentError, InputError
from cfel.launch.node import read_node
from cfel.runlog import RoundRecord
from cfel.status import Status
from cfel.wording import plural

# --------------------------------------------------------------------------------------------------
# Live view of a federation on standard error: a table in a terminal, otherwise one line per round.


POLL_SECONDS = 1.0
ABSENT = ("lost", "quarantined")

Answers = Mapping[int, Status | str]


class FederationView:
    """The live view of `cfel up`; a context manager.

    Args:
        rounds: global rounds of the experiment.
        console: where to print.
        now: a monotonic clock.
    """

    def __init__(
        self, rounds: int, console: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._rounds, self._now = rounds, now
        self._console = console or Console(stderr=True, highlight=False)
        self._answers: Answers = {}
        # The last status of each edge server: at the end they stop, and their devices have not been lost.
        self._known: dict[int, Status] = {}
        self._problems: dict[int, str] = {}
        self._last: RoundRecord | None = None
        self._started: tuple[float, int] | None = None
        self._blind = ""
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The watcher prints too: wait for it, or it would print into what comes after the view.
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()
        self._live.stop()

    def print_line(self, text: str) -> None:
        """Prints a line above the table."""
        self._console.print(escape(text), soft_wrap=True)

    def watch(self, operator: Node) -> None:
        """Polls the status of all edge servers until the view is closed."""
        self._started = self._started or (self._now(), 0 if self._last is None else self._last.round)
        self._watcher = threading.Thread(target=self._poll, args=(operator,), daemon=True)
        self._watcher.start()

    def on_round(self, record: RoundRecord) -> None:
        """Records a finished round; prints it if there is no live table."""
        self._last = record
        if not self._console.is_terminal:
            self.print_line(self.format_line())

    def update(self, answers: Answers) -> None:
        """Records the answers of the edge servers, and prints every new problem."""
        self._answers = answers
        self._known |= {edge: answer for edge, answer in answers.items() if isinstance(answer, Status)}
        for edge, answer in sorted(answers.items()):
            problem = answer.problem if isinstance(answer, Status) else self._problems.get(edge, "")
            if problem and problem != self._problems.get(edge):
                self.print_line(f"edge-{edge}: {problem}")
            self._problems[edge] = problem

    def format_line(self) -> str:
        """The state of the federation in one line."""
        alive = [each for each in self._answers.values() if isinstance(each, Status)]
        newest = max(
            alive or self._known.values(), key=lambda each: (each.round, each.edge_round or 0), default=None
        )
        done = 0 if self._last is None else self._last.round
        parts = [f"round {done}/{self._rounds}"]
        if newest is not None:
            # No phase here: edge servers are polled once a second, so it would often be outdated.
            parts.append(f"coordinator {newest.coordinator or 'none'} (term {newest.term})")
            parts.append(f"{self._count_all_devices()} devices")
            if silent := sum(self._is_silent(edge) for edge in self._answers):
                parts.append(f"{plural(silent, 'edge server')} not answering")
        if self._last is not None:
            if self._last.accuracy is not None:
                parts.append(f"{100 * self._last.accuracy:.1f} %")
            parts += [f"{self._last.seconds:,.1f} s", f"{self._last.joules:,.0f} J"]
        left = self.estimate_seconds_left()
        if left is not None:
            parts.append(f"ETA {timedelta(seconds=round(left))}")
        return ", ".join(parts)

    def _is_silent(self, edge: int) -> bool:
        """Whether an edge server does not answer although it has not finished."""
        finished = edge in self._known and self._known[edge].phase == "finished"
        return isinstance(self._answers[edge], str) and not finished

    def _count_all_devices(self) -> str:
        return _count_devices({edge: self._known[edge] for edge in self._known if not self._is_silent(edge)})

    def estimate_seconds_left(self) -> float | None:
        """Seconds until the last round at the current pace; None before the first round."""
        if self._started is None or self._last is None:
            return None
        began, before = self._started
        done = self._last.round - before
        if done <= 0:
            return None
        return (self._rounds - self._last.round) * (self._now() - began) / done

    def build_table(self) -> Table:
        """One row per edge server."""
        table = new_table(
            "edge", "phase", "round", "term", "coordinator", "devices", "rejected", texts=("phase",)
        )
        for edge, answer in sorted(self._answers.items()):
            if isinstance(answer, str):
                table.add_row(str(edge), "[yellow]no answer[/]")
                continue
            table.add_row(
                str(edge),
                answer.phase,
                f"{answer.round}.{answer.edge_round}",
                str(answer.term),
                escape(answer.coordinator or "?"),
                _count_devices({edge: answer}),
                str(sum(number for _, number in answer.rejected)),
            )
        return table

    def _render(self) -> Group:
        return Group(self.build_table(), Text(self.format_line(), overflow="fold"))

    def _poll(self, operator: Node) -> None:
        while not self._over.wait(POLL_SECONDS):
            try:
                self.update(asyncio.run(ask_status(operator, POLL_SECONDS)))
            except DeploymentError as error:
                # As with an expired certificate of the operator; the federation continues without being seen.
                if str(error) != self._blind:
                    self.print_line(f"the status cannot be asked for: {error}")
                self._blind = str(error)


def _count_devices(answers: Answers) -> str:
    """Devices present of all devices, as reported by the edge servers that answered."""
    present = total = 0
    for edge, answer in answers.items():
        if isinstance(answer, Status):
            devices = answer.clusters[edge].devices
            present += sum(device.state not in ABSENT for device in devices)
            total += len(devices)
    return f"{present}/{total}"


EXAMPLE = """  cfel status runs/tiny-up
  cfel status operator-0.toml --json"""

_MOST_LISTED = 8


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "status", EXAMPLE)
    parser.add_argument(
        "where",
        type=Path,
        metavar="DIR|NODE.toml",
        help="directory of `cfel up`, or the configuration of an operator",
    )
    add_json_option(parser)
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
        print_json({"edges": [_build_document(i, answer) for i, answer in sorted(answers.items())]})
    else:
        _print(answers)
    # Scripts use the exit code to see whether the federation is running.
    return 1 if find_standstill(answers) else 0


def find_standstill(answers: Mapping[int, Status | str]) -> str:
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


def _print(answers: dict[int, Status | str]) -> None:
    console = Console(highlight=False)
    table = _build_table(answers)
    unfold_table(console, table)
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


def _print_versions(console: Console, answers: dict[int, Status | str]) -> None:
    """Prints the versions of all nodes, if they differ."""
    versions: dict[str, list[str]] = {}
    for edge, answer in sorted(answers.items()):
        if isinstance(answer, Status):
            versions.setdefault(answer.version, []).append(f"edge-{edge}")
            for device in answer.clusters[edge].devices:
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


def _build_table(answers: dict[int, Status | str]) -> Table:
    columns = ("edge", "term", "coordinator", "round", "phase", "devices", "rejected", "accuracy", "s", "J")
    table = new_table(*columns)
    table.padding = (0, 1, 0, 0)
    for edge, answer in sorted(answers.items()):
        if isinstance(answer, str):
            table.add_row(str(edge), "", "", "", "[red]no answer[/]")
            continue
        devices = answer.clusters[edge].devices
        present = sum(device.state not in ABSENT for device in devices)
        accuracy = next((each.accuracy for each in answer.history[::-1] if each.accuracy is not None), None)
        table.add_row(
            str(edge),
            str(answer.term),
            answer.coordinator or "?",
            f"{answer.round}.{answer.edge_round}",
            answer.phase,
            f"{present}/{len(devices)}",
            str(sum(number for _, number in answer.rejected)),
            "" if accuracy is None else f"{100 * accuracy:.1f} %",
            f"{answer.seconds:,.0f}",
            f"{answer.joules:,.0f}",
        )
    return table


def _print_sources(console: Console, answers: dict[int, Status | str]) -> None:
    """Prints how devices measure their seconds and joules, if they do."""
    sources = Counter(
        device.source
        for edge, answer in answers.items()
        if isinstance(answer, Status) and answer.conditions == "measured"
        for device in answer.clusters[edge].devices
    )
    for source, count in sorted(sources.items()):
        console.print(f"{plural(count, 'device')} measuring: {escape(source or 'nothing reported yet')}")
