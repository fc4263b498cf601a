"""Ctrl-C during a run: the first one stops it after the current round, the second one at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NOTICE = (
    "stopping after this round; --resume continues from its checkpoint; press Ctrl-C again to stop at once"
)


@contextmanager
def defer_interrupt(notify: Callable[[str], None], notice: str = NOTICE) -> Iterator[Callable[[], bool]]:
    """Records the first Ctrl-C instead of raising it; the second one is raised.

    A round cannot be resumed in the middle, as devices have already overwritten their momentum and residuals.
    The run therefore checks for an interrupt between two rounds, where its state is consistent.

    Args:
        notify: shows a message to the user.
        notice: the message.

    Yields:
        A function that returns whether Ctrl-C was pressed.
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
