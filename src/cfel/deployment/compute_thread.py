"""One thread for arithmetic, so that the event loop stays free to answer; torch uses one thread in it.

One, so that what is done runs in the order it was asked, and results are the simulator's to the last bit.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cfel.learning.worker_threads import prepare_process, prepare_thread

Result = TypeVar("Result")


class ComputeThread:
    """Runs functions one after the other, off the event loop."""

    def __init__(self) -> None:
        prepare_process()
        self._pool = ThreadPoolExecutor(1, "compute", initializer=prepare_thread)

    async def run(self, function: Callable[[], Result]) -> Result:
        """The function's result."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def close(self) -> None:
        """Waits for what is under way; what has not begun is dropped."""
        self._pool.shutdown(cancel_futures=True)
