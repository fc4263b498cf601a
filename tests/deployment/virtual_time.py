"""An event loop whose clock jumps to the next thing to do: hours pass in no time, and always the same way."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Jumping(selectors.DefaultSelector):
    """Never waits: tells the loop that the time it wanted to sleep has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now; if nothing is, the clock has advanced."""
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everybody waits for something that nobody will do")
        if not ready and timeout:
            self.passed += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.passed


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine that uses no threads and no sockets, in virtual time."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)
