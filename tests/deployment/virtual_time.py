"""An event loop whose clock jumps to the next thing to do: hours pass in no time, and always the same way."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")
HandleKind = TypeVar("HandleKind", bound=asyncio.Handle)
OWNER: ContextVar[object] = ContextVar("OWNER", default=None)
"""Whose code runs: a node that is frozen does nothing until it thaws."""


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


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock never waits, and owners of code can be stopped as with SIGSTOP."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        self._frozen: dict[object, list[tuple[Callable[[], None], Context]]] = {}
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._jumping.passed

    def freeze(self, owner: object) -> None:
        """Nothing of this owner runs from now on; timers that expire meanwhile fire when it thaws."""
        self._frozen.setdefault(owner, [])

    def thaw(self, owner: object) -> None:
        """Lets an owner continue."""
        for run, context in self._frozen.pop(owner, []):
            super().call_soon(run, context=context)

    def is_frozen(self, owner: object) -> bool:
        """Whether it is stopped now."""
        return owner in self._frozen

    def call_soon(  # type: ignore[override]  # what is called with what is checked by the callers' base class
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """See `asyncio`."""
        return self._gate(super().call_soon, callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See `asyncio`."""
        return self._gate(partial(super().call_at, when), callback, args, context)

    def _gate(
        self,
        schedule: Callable[..., HandleKind],
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> HandleKind:
        owner = OWNER.get() if context is None else context.get(OWNER)
        within = copy_context() if context is None else context

        def run() -> None:
            # One that thaws may cancel a timer of its own that has expired while it was frozen.
            if handle.cancelled():
                return
            if owner in self._frozen:
                self._frozen[owner].append((run, within))
            else:
                callback(*args)

        handle = schedule(run, context=within)
        return handle


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine that uses no threads and no sockets, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
