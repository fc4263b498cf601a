"""A federation while it works, on standard error: a live table in a terminal, a line per round elsewhere."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cfel.cli.shared import new_table
from cfel.deployment.node import Node, ask_status
from cfel.runlog import RoundRecord
from cfel.status import Status

LOOK_SECONDS = 1.0
GONE = ("lost", "quarantined")

Answers = Mapping[int, Status | str]


class FederationView:
    """What `cfel up` shows; a context manager.

    Args:
        rounds: global rounds of the experiment.
        console: where it is shown.
        now: a clock that only runs forward.
    """

    def __init__(
        self, rounds: int, console: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._rounds, self._now = rounds, now
        self._console = console or Console(stderr=True, highlight=False)
        self._answers: Answers = {}
        self._problems: dict[int, str] = {}
        self._last: RoundRecord | None = None
        self._begun: tuple[float, int] | None = None
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None
        self._live = Live(console=self._console, get_renderable=self._shown, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()
        self._live.stop()

    def say(self, text: str) -> None:
        """A line of its own, above the table."""
        self._console.print(escape(text), soft_wrap=True)

    def watch(self, operator: Node) -> None:
        """Asks the edge servers how they are, again and again, until the view is closed."""
        self._begun = self._begun or (self._now(), 0 if self._last is None else self._last.round)
        self._watcher = threading.Thread(target=self._look, args=(operator,), daemon=True)
        self._watcher.start()

    def on_round(self, record: RoundRecord) -> None:
        """Takes note of a finished round; where there is no table, says so."""
        self._last = record
        if not self._console.is_terminal:
            self.say(self.line())

    def see(self, answers: Answers) -> None:
        """Takes note of what the edge servers said of themselves, and says what is newly wrong with one."""
        self._answers = answers
        for edge, answer in sorted(answers.items()):
            problem = answer.problem if isinstance(answer, Status) else self._problems.get(edge, "")
            if problem and problem != self._problems.get(edge):
                self.say(f"edge-{edge}: {problem}")
            self._problems[edge] = problem

    def line(self) -> str:
        """The state of the federation in a line."""
        alive = [each for each in self._answers.values() if isinstance(each, Status)]
        newest = max(alive, key=lambda each: (each.round, each.edge_round or 0), default=None)
        done = 0 if self._last is None else self._last.round
        parts = [f"round {done}/{self._rounds}"]
        if newest is not None:
            # Each is asked once a second: by the time a round is told, its phase is an old one.
            parts.append(f"coordinator {newest.coordinator or 'none'} (term {newest.term})")
            parts.append(f"{_there(self._answers)} devices")
        if self._last is not None:
            if self._last.accuracy is not None:
                parts.append(f"{100 * self._last.accuracy:.1f} %")
            parts += [f"{self._last.seconds:,.1f} s", f"{self._last.joules:,.0f} J"]
        left = self.seconds_left()
        if left is not None:
            parts.append(f"ETA {timedelta(seconds=round(left))}")
        return ", ".join(parts)

    def seconds_left(self) -> float | None:
        """Until the last round at the present pace; None before there is one."""
        if self._begun is None or self._last is None:
            return None
        began, before = self._begun
        done = self._last.round - before
        if done <= 0:
            return None
        return (self._rounds - self._last.round) * (self._now() - began) / done

    def table(self) -> Table:
        """A row per edge server."""
        table = new_table(
            "edge", "phase", "round", "term", "coordinator", "devices", "refused", texts=("phase",)
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
                _there({edge: answer}),
                str(sum(number for _, number in answer.refused)),
            )
        return table

    def _shown(self) -> Group:
        return Group(self.table(), Text(self.line(), overflow="fold"))

    def _look(self, operator: Node) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self.see(asyncio.run(ask_status(operator, LOOK_SECONDS)))


def _there(answers: Answers) -> str:
    """Devices that are there, of all, as their own edge servers see it; of a silent one's, none are."""
    there = total = 0
    for edge, answer in answers.items():
        if isinstance(answer, Status):
            devices = answer.clusters[edge].devices
            there += sum(device.state not in GONE for device in devices)
            total += len(devices)
    silent = sum(isinstance(answer, str) for answer in answers.values())
    return f"{there}/{total}" + (f" + those of {silent} silent" if silent else "")
