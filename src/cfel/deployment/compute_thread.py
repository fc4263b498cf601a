"""One thread for arithmetic, so that the event loop stays free to answer calls; torch uses one thread in it.

A single thread runs functions in the order they come, so results equal the simulator's to the last bit.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cfel.errors import UnreachableError
from cfel.learning.worker_threads import prepare_process, prepare_thread

Result = TypeVar("Result")


class ComputeThread:
    """Runs functions one after the other, off the event loop."""

    def __init__(self) -> None:
        prepare_process()
        self._pool = ThreadPoolExecutor(1, "compute", initializer=prepare_thread)
        self._closed = False

    async def run(self, function: Callable[[], Result]) -> Result:
        """The function's result.

        Raises:
            UnreachableError: the node has ended; a call that came late is not its fault.
        """
        if self._closed:
            raise UnreachableError("this node has ended")
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def close(self) -> None:
        """Waits for the function that runs; drops those that have not begun."""
        self._closed = True
        self._pool.shutdown(cancel_futures=True)
