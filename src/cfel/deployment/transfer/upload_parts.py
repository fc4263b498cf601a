"""Uploads that arrive in parts: what has arrived is kept until the round ends, so that devices can resume."""

import hashlib
from collections.abc import Callable
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
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.messages import Body
from cfel.errors import RejectedError

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
