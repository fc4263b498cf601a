"""Compute without threads: functions run at once, where they are called."""

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class InlineCompute:
    """See `Compute`."""

    async def run(self, function: Callable[[], Result]) -> Result:
        """See `Compute`."""
        return function()

    async def run_aside(self, function: Callable[[], Result]) -> Result:
        """See `Compute`."""
        return function()

    def close(self) -> None:
        """See `Compute`."""
