"""Ctrl-C during a run: the first one ends it after the round under way, the second one at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NOTICE = "stopping after this round, with a checkpoint; Ctrl-C again stops at once"


@contextmanager
def interruptible(say: Callable[[str], None], notice: str = NOTICE) -> Iterator[Callable[[], bool]]:
    """While it lasts, the first Ctrl-C is remembered instead of raised.

    A round that is cut short cannot be gone on with: devices have already given up what they remembered. So
    the run is asked to stop between two rounds, where its state is whole.

    Args:
        say: tells the user what will happen.
        notice: what that is.

    Yields:
        A function that says whether Ctrl-C was pressed.
    """
    asked = False

    def remember(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        say(notice)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored by whoever started us, or somebody else's business
        yield lambda: False
        return
    signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
