"""`cfel up`: runs a whole federation as processes on this machine."""

import argparse
import asyncio
import shlex
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cfel.api.progress import defer_interrupt
from cfel.api.results import load_result
from cfel.cli.federation import Answers, count_devices
from cfel.cli.node import add_log_options, choose_log_settings
from cfel.cli.options import (
    add_experiment_argument,
    add_json_option,
    add_out_option,
    add_set_option,
    load_from_arguments,
)
from cfel.cli.output import new_table, use_plain_spaces
from cfel.cli.run import print_run_result
from cfel.deployment.node import Node, ask_status
from cfel.errors import DeploymentError
from cfel.launch.federation import LaunchOptions, Processes, launch_federation
from cfel.launch.logs import LogSettings
from cfel.launch.node import read_node
from cfel.metric import ACCURACY
from cfel.runlog import RoundRecord
from cfel.status import Status
from cfel.wording import format_amount, plural

EXAMPLES = {
    "up": """  cfel up examples/tiny.toml --out runs/tiny-up
  cfel up examples/tiny.toml --out runs/tiny-up --resume
  cfel status runs/tiny-up"""
}
POLL_SECONDS = 1.0
NOTICE = "stopping all processes; their state is on disk. Press Ctrl-C again to stop without waiting"


def add_up_options(parser: argparse.ArgumentParser) -> None:
    add_experiment_argument(parser)
    add_out_option(parser, "run directory (default runs/NAME-up)")
    parser.add_argument("--resume", action="store_true", help="resume the federation in DIR")
    add_log_options(parser)
    add_set_option(parser)
    add_json_option(parser)
    # `load_from_arguments` looks for --engine, which has no meaning here.
    parser.set_defaults(run=run, engine=None)


def _resume_command(arguments: argparse.Namespace, out: Path) -> str:
    """The command that resumes this federation. It repeats --set, as the experiment must be the same."""
    words = ["cfel", "up", str(arguments.experiment), "--out", str(out)]
    words += [part for change in arguments.set for part in ("--set", change)]
    return shlex.join([*words, *(["--json"] if arguments.json else []), "--resume"])


def run(arguments: argparse.Namespace) -> None:
    """Runs the federation and prints the result."""
    experiment = load_from_arguments(arguments)
    out: Path = arguments.out or Path("runs") / f"{experiment.name}-up"
    view = FederationView(experiment.rounds.global_rounds)
    with view, defer_interrupt(view.print_line, NOTICE) as interrupted:

        def on_start(_: Processes) -> None:
            devices = plural(experiment.fleet.devices, "device")
            address = read_node(out / "nodes" / "edge-0.toml").dashboard
            view.print_line(f"starting {devices}; dashboard: http://{address}/")
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
    print_run_result(arguments, load_result(out, experiment))


class FederationView:
    """The live view on standard error: a table in a terminal, else a line per round; a context manager."""

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
        """Records what edge servers answered, and prints every new problem."""
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
            silent = {edge for edge in self._answers if self._is_silent(edge)}
            heard = {edge: self._known[edge] for edge in self._known if edge not in silent}
            parts.append(f"{count_devices(heard)} devices")
            if silent:
                parts.append(f"{plural(len(silent), 'edge server')} not answering")
        if self._last is not None:
            if self._last.accuracy is not None:
                metric = ACCURACY if newest is None else newest.metric
                parts.append(metric.format(self._last.accuracy))
            spent = self._last.seconds_realised, self._last.joules_realised
            parts += [f"{format_amount(spent[0], 1)} s", f"{format_amount(spent[1])} J"]
        left = self.estimate_seconds_left()
        if left is not None:
            parts.append(f"ETA {timedelta(seconds=round(left))}")
        return use_plain_spaces(", ".join(parts))

    def _is_silent(self, edge: int) -> bool:
        """Whether an edge server does not answer although it has not finished."""
        finished = edge in self._known and self._known[edge].phase == "finished"
        return isinstance(self._answers[edge], str) and not finished

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
                count_devices({edge: answer}),
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
