"""Bodies in parts, so that a transfer that broke resumes where it broke.

The side with the slow link decides how large a part is: about as much as the link carries in a given time.
So little is in flight at once, small calls do not wait long behind it, and each part that arrives shows that
the other side is alive. Nothing here knows gRPC, and a fast link moves a whole model in one part. What has
arrived of an upload is kept until the round ends.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from cfel.deployment.protocol.calls import Endpoint, serve
from cfel.deployment.protocol.device_requests import (
    Round,
    UploadPartAnswer,
    UploadPartRequest,
    UploadRequest,
)
from cfel.deployment.protocol.messages import Body
from cfel.deployment.security.identity import Identity
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
    """

    def __init__(self, sha256: str, size: int) -> None:
        self.sha256, self.size = sha256, size
        self._begin()

    def _begin(self) -> None:
        self._content, self._found = bytearray(), hashlib.sha256()
        # Of a body that arrived whole, which has been hashed while it arrived.
        self._digest: bytes | None = None

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
        if (self._digest or self._found.digest()).hex() != self.sha256:
            self._begin()
            raise InvalidBodyError("the model that arrived is another one")
        return self._content

    def _add(self, part: Body, wanted: int) -> None:
        if len(part) != wanted:
            raise InvalidBodyError(
                f"{len(part)} bytes at byte {self.held_bytes} of {self.size}, {wanted} were asked"
            )
        content = part.join()
        # Usually: neither copied nor hashed again.
        if len(content) == self.size and isinstance(content, bytearray):
            self._content, self._digest = content, part.digest
        else:
            self._found.update(content)
            self._content += content


FindUpload = Callable[[Identity, Round], tuple[int, Any]]
"""(caller, round) → its device number, and its order or None if it has been answered already.

Raises `RejectedError` if no upload is asked of the caller.
"""


@dataclass(slots=True)
class _Partial:
    sha256: str
    content: bytearray = field(default_factory=bytearray)
    found: Any = field(default_factory=hashlib.sha256)


class UploadParts:
    """Keeps at most one unfinished upload per device.

    Args:
        most_bytes: largest upload.
        find_upload: whether an upload is asked of a caller.
    """

    def __init__(self, most_bytes: int, find_upload: FindUpload) -> None:
        self._most_bytes, self._find_upload = most_bytes, find_upload
        self._partials: dict[int, _Partial] = {}

    def endpoint(self) -> Endpoint:
        """What devices may call."""
        return serve(UploadPartRequest, self.add, self._most_bytes)

    async def add(self, caller: Identity, request: UploadPartRequest) -> UploadPartAnswer:
        """Keeps a part, if it is the next one; answers how much has arrived."""
        device, order = self._find_upload(caller, request.round)
        if order is None:
            # The whole was accepted, and the answer was lost: the device may finish.
            return UploadPartAnswer(request.offset + len(request.content))
        partial = self._partials.get(device)
        if partial is None or partial.sha256 != request.sha256:
            partial = self._partials[device] = _Partial(request.sha256)
        if request.offset == len(partial.content):
            if len(partial.content) + len(request.content) > self._most_bytes:
                raise RejectedError(f"an upload of more than {self._most_bytes} bytes")
            content = request.content.join()
            partial.content += content
            partial.found.update(content)
        return UploadPartAnswer(len(partial.content))

    def complete(self, device: int, request: UploadRequest) -> UploadRequest:
        """The request with its content, if that arrived in parts.

        Raises:
            RejectedError: the parts are missing, or not what the request names.
        """
        sha256 = request.content_sha256
        if sha256 is None:
            return request
        partial = self._partials.get(device)
        if partial is None or partial.found.hexdigest() != sha256:
            raise RejectedError("the parts of this upload are missing, or other ones")
        return structs.replace(request, content=Body(partial.found.digest(), (partial.content,)))

    def clear(self) -> None:
        """Drops everything: a round has ended, or another has begun."""
        self._partials = {}
