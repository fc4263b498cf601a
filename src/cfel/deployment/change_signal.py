"""Wakes tasks that wait for something to change; what changed is for them to find out."""

import asyncio


class ChangeSignal:
    """A condition without a value."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()

    async def notify(self) -> None:
        """Wakes all that wait."""
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, seconds: float) -> None:
        """Returns at the next change, or when the time is up."""
        async with self._changed:
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                return
