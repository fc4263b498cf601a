"""What a user sees and does while runs are executed: progress bars on standard error, and Ctrl-C.

The same bars serve the command line, scripts and notebooks.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType, TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from cfel.metric import ACCURACY, Metric
from cfel.runlog import RoundRecord
from cfel.wording import NO_BREAK, format_amount

NOTICE = (
    "stopping after this round; --resume continues from its checkpoint; press Ctrl-C again to stop at once"
)


@contextmanager
def defer_interrupt(notify: Callable[[str], None], notice: str = NOTICE) -> Iterator[Callable[[], bool]]:
    """Records the first Ctrl-C instead of raising it; the second one is raised.

    A round cannot be resumed in the middle, as devices have already overwritten their momentum and residuals.
    The run therefore checks for an interrupt between two rounds, where its state is consistent. Gives a
    function that returns whether Ctrl-C was pressed; `notify` gets the notice once it was.
    """
    pressed = False

    def remember(_number: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        # The user does not want to wait for the round to end.
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        notify(notice)

    before = signal.getsignal(signal.SIGINT)
    # Keep a handler that was set on purpose; a shell, for example, ignores Ctrl-C for background jobs. Only
    # the main thread may set one.
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


class RunProgress:
    """One progress bar per run of so many global rounds; a context manager. Costs are realised."""

    def __init__(self, rounds: int, metric: Metric = ACCURACY, quiet: bool = False) -> None:
        self._rounds, self._metric = rounds, metric
        self._bars = Progress(
            # Folded rather than cut off in a narrow terminal.
            TextColumn("{task.description}", table_column=Column(overflow="fold")),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True),
            # Standard output is for the result alone, so that it can be piped. Bars in a notebook are a
            # widget; without its package rich would warn at every refresh.
            console=Console(stderr=True, force_jupyter=None if find_spec("ipywidgets") else False),
            disable=quiet,
        )
        self._tasks: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def print_line(self, text: str) -> None:
        # Without emoji: rich imports their table on first use, and Ctrl-C may arrive during that very import.
        self._bars.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def on_round(self, name: str, record: RoundRecord) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=self._rounds, state="")
        quality = (
            "" if record.accuracy is None else self._metric.format(record.accuracy).replace(NO_BREAK, " ")
        )
        spent = format_amount(record.seconds_realised), format_amount(record.joules_realised)
        state = f"{quality:>7} {spent[0]:>9} s {spent[1]:>9} J"
        self._bars.update(self._tasks[name], completed=record.round, state=state)  # type: ignore[arg-type]
