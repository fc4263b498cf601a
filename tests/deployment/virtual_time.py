"""An event loop whose clock jumps to the next thing to do: hours pass in no time, and always the same way."""

import asyncio
import heapq
import selectors
from collections import deque
from collections.abc import Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar

Result = TypeVar("Result")
OWNER: ContextVar[object] = ContextVar("OWNER", default=None)
"""Whose code runs: a node that is frozen does nothing until it thaws."""


class _Jumping(selectors.DefaultSelector):
    """Never waits: tells the loop that the time it wanted to sleep has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Nothing: there are no sockets. If nothing is left to do now, the clock has advanced."""
        if timeout is None:
            raise RuntimeError("everybody waits for something that nobody will do")
        if timeout > 0:
            self.passed += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock never waits, and owners of code can be stopped as with SIGSTOP."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        self._jumping = _Jumping()
        self._frozen: dict[object, list[asyncio.Handle]] = {}
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._jumping.passed

    def freeze(self, owner: object) -> None:
        """Nothing of this owner runs from now on; timers that expire meanwhile fire when it thaws."""
        self._frozen.setdefault(owner, [])
        timers, self._scheduled = self._scheduled, []
        for timer in timers:
            self._put(timer)

    def thaw(self, owner: object) -> None:
        """Lets an owner continue."""
        for handle in self._frozen.pop(owner, []):
            self._put(handle)

    def is_frozen(self, owner: object) -> bool:
        """Whether it is stopped now."""
        return owner in self._frozen

    def _put(self, handle: asyncio.Handle) -> None:
        """Has a callback called when it is due and its owner is not frozen."""
        owner = _owner_of(handle)
        if owner in self._frozen:
            self._frozen[owner].append(handle)
        elif isinstance(handle, asyncio.TimerHandle):
            heapq.heappush(self._scheduled, handle)
        else:
            self._ready.append(handle)

    def _run_once(self) -> None:
        """See `asyncio`; what is due for somebody who is frozen is put aside first."""
        if self._frozen:
            ready, self._ready = self._ready, deque[asyncio.Handle]()
            for handle in ready:
                self._put(handle)
            # A callback of the moment in which its owner was frozen may have started a timer.
            while self._scheduled and _owner_of(self._scheduled[0]) in self._frozen:
                self._put(heapq.heappop(self._scheduled))
        super()._run_once()  # type: ignore[misc]


def _owner_of(handle: asyncio.Handle) -> object:
    context: Context = handle._context  # type: ignore[attr-defined]
    return context.get(OWNER)


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine that uses no threads and no sockets, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
