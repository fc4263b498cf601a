"""Bodies in parts, so that a transfer that broke resumes where it broke.

The side with the slow link decides how large a part is: about as much as the link carries in a given time.
So little is in flight at once, small calls do not wait long behind it, and each part that arrives shows that
the other side is alive. Nothing here knows gRPC, and a fast link moves a whole model in one part.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from cfel.deployment.transport.messages import Body
from cfel.errors import RejectedError

FIRST_PART_BYTES = 32 * 1024
LEAST_PART_BYTES = 8 * 1024
MOST_PART_BYTES = 64 * 1024 * 1024
DEVICE_PART_SECONDS = 2.0
# While one part arrives, the next is asked for; else the link would be idle for a round trip after each.
DEVICE_PARTS_AT_ONCE = 2
# Heartbeats share the backhaul, and must arrive within `election_seconds`.
PEER_PART_SECONDS = 0.3
_MOST_GROWTH = 4.0

AskPart = Callable[[int, int], Coroutine[Any, Any, Body]]
"""(offset, most bytes) → the next part."""


class InvalidBodyError(RejectedError):
    """The bytes that arrived are not those that were named."""


class PartSize:
    """How many bytes to move at once; follows the link.

    Args:
        seconds: how long a part should take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.bytes = FIRST_PART_BYTES

    def adapt(self, moved_bytes: int, seconds: float) -> None:
        """Learns from a part that arrived."""
        wanted = moved_bytes / max(seconds, 1e-6) * self._seconds
        if moved_bytes < self.bytes:
            # The last part is small, and mostly shows how long a round trip takes.
            wanted = max(wanted, self.bytes)
        self._set(min(wanted, _MOST_GROWTH * self.bytes))

    def shrink(self) -> None:
        """A part did not arrive: smaller ones lose less."""
        self._set(self.bytes / 2)

    def _set(self, wanted: float) -> None:
        self.bytes = int(min(max(wanted, LEAST_PART_BYTES), MOST_PART_BYTES))


class Download:
    """A body of known size and digest that arrives in parts.

    Args:
        sha256: names it.
        size: its bytes.

    Attributes:
        sha256, size: as given.
    """

    def __init__(self, sha256: str, size: int) -> None:
        self.sha256, self.size = sha256, size
        self._content, self._found = bytearray(), hashlib.sha256()

    @property
    def held_bytes(self) -> int:
        """How much has arrived."""
        return len(self._content)

    async def complete(
        self, ask: AskPart, part_size: PartSize, clock: Callable[[], float], at_once: int = 1
    ) -> bytearray:
        """Asks for the missing parts, some at once; returns the whole.

        If asking fails, what has arrived is kept for the next call.

        Raises:
            InvalidBodyError: it is not the body that was named; nothing of it is kept.
        """
        asked: deque[tuple[int, float, asyncio.Task[Body]]] = deque()
        next_byte, arrived = self.held_bytes, clock()
        try:
            while self.held_bytes < self.size:
                while next_byte < self.size and len(asked) < at_once:
                    wanted = min(part_size.bytes, self.size - next_byte)
                    asked.append((wanted, clock(), asyncio.create_task(ask(next_byte, wanted))))
                    next_byte += wanted
                wanted, began, answer = asked[0]
                part = await answer
                # A part asked for early had the link for itself only after the one before it.
                began, arrived = max(began, arrived), clock()
                asked.popleft()
                part_size.adapt(len(part), arrived - began)
                self._add(part, wanted)
        finally:
            for *_, answer in asked:
                answer.cancel()
            await asyncio.gather(*(answer for *_, answer in asked), return_exceptions=True)
        if self._found.hexdigest() != self.sha256:
            self._content, self._found = bytearray(), hashlib.sha256()
            raise InvalidBodyError("the model that arrived is another one")
        return self._content

    def _add(self, part: Body, wanted: int) -> None:
        if len(part) != wanted:
            raise InvalidBodyError(
                f"{len(part)} bytes at byte {self.held_bytes} of {self.size}, {wanted} were asked"
            )
        content = part.join()
        self._found.update(content)
        if not self._content and isinstance(content, bytearray):
            self._content = content  # whole, usually: not copied
        else:
            self._content += content
