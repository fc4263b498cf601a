"""One thread for arithmetic, so that the event loop stays free to answer calls; torch uses one thread in it.

A single thread runs functions in the order they come, so results equal those of the engine
`threads` to the last bit.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cfel.errors import UnreachableError
from cfel.learning.torch_state import prepare_process, prepare_thread

Result = TypeVar("Result")
_ENDED = "this node has ended"


class ComputeThread:
    """Runs functions one after the other, off the event loop."""

    def __init__(self) -> None:
        prepare_process()
        self._is_closed = False
        self._pool = ThreadPoolExecutor(1, "compute", initializer=prepare_thread)

    async def run(self, function: Callable[[], Result]) -> Result:
        """The function's result.

        Raises:
            UnreachableError: the thread has been closed; calls may still come while a node ends.
        """
        if self._has_ended():
            raise UnreachableError(_ENDED)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            # Dropped by `close`; a caller that was itself cancelled must stay so.
            if self._has_ended() and task is not None and not task.cancelling():
                raise UnreachableError(_ENDED) from error
            raise

    def _has_ended(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Waits for the function that runs; drops those that have not begun."""
        self._is_closed = True
        self._pool.shutdown(cancel_futures=True)
