"""A device's link to its edge server: calls are repeated until they are answered, and bodies resume.

A link may be slow and break at any time. What has arrived is kept on both sides: a model is fetched from the
byte where it broke, an upload continues where the edge server says that it broke. What is sent when is
decided in `agent`.
"""

import asyncio
import logging
from collections.abc import Callable

from msgspec import structs

from cfel.deployment.device.backoff import Backoff
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.payloads import model_size, read_model
from cfel.deployment.protocol.calls import Answer, Calls, Request
from cfel.deployment.protocol.device_requests import (
    DivergedRequest,
    EstimatesRequest,
    ModelRequest,
    UploadPartAnswer,
    UploadPartRequest,
    UploadRequest,
)
from cfel.deployment.security.identity import Identity
from cfel.deployment.transfer.parts import DEVICE_PART_SECONDS, DEVICE_PARTS_AT_ONCE, Download, PartSize
from cfel.deployment.transport.messages import NO_BODY, Body
from cfel.errors import RejectedError, UnreachableError
from cfel.learning.models.flat import FlatModel

_LOG = logging.getLogger(__name__)


class EdgeLink:
    """The calls of one device that carry models, estimates and uploads.

    Args:
        calls: how the edge server is reached.
        edge: the edge server.
        parameters: how long calls may take.
        start: any model of the experiment, for its size.
        backoff: the waits after calls without an answer.
        now: a monotonic clock.
    """

    def __init__(
        self,
        calls: Calls,
        edge: Identity,
        parameters: DeploymentParameters,
        start: FlatModel,
        backoff: Backoff,
        now: Callable[[], float],
    ) -> None:
        self._calls, self._edge, self._parameters = calls, edge, parameters
        self._start, self._backoff, self._now = start, backoff, now
        self._download = Download("", model_size(start))
        self._down, self._up = PartSize(DEVICE_PART_SECONDS), PartSize(DEVICE_PART_SECONDS)
        self._broken_upload = ""

    async def fetch_model(self, sha256: str, is_wanted: Callable[[], bool]) -> FlatModel:
        """Fetches a model; tries until it is there or not wanted any more.

        Raises:
            RejectedError: it is not wanted any more, or the edge server has another one.
        """
        if self._download.sha256 != sha256:
            self._download = Download(sha256, model_size(self._start))
        download, began, breaks = self._download, self._now(), 0

        async def ask(offset: int, most_bytes: int) -> Body:
            if not is_wanted():
                raise RejectedError("a newer order needs another model")
            part = await self._call(ModelRequest(sha256, offset, most_bytes), most_bytes)
            return part.model

        while True:
            try:
                content = await download.complete(ask, self._down, self._now, DEVICE_PARTS_AT_ONCE)
            except UnreachableError as error:
                self._down.shrink()
                breaks += 1
                held, size = download.held_bytes, download.size
                _LOG.info("model: %s; resumes at byte %d of %d", error, held, size)
                await asyncio.sleep(self._backoff.next_seconds())
                continue
            break
        # The model keeps these bytes, so the next download must not find them.
        self._download = Download("", download.size)
        seconds = self._now() - began
        _LOG.info("model: %d bytes in %.1f s, %d breaks", download.size, seconds, breaks)
        return read_model(content, self._start)

    async def try_send(self, request: EstimatesRequest | UploadRequest | DivergedRequest) -> int | None:
        """Sends estimates, an upload, or why there is none.

        Returns:
            How many bytes of the body were sent by this attempt; None, after a while, if it was not answered.

        Raises:
            RejectedError: the edge server does not take it.
        """
        content = request.content if isinstance(request, UploadRequest) else NO_BODY
        sha256 = content.digest.hex()
        # An upload that broke once continues in parts, even if it would fit into one call.
        resumes = bool(self._broken_upload) and self._broken_upload == sha256
        self._broken_upload = ""
        try:
            if isinstance(request, UploadRequest) and (resumes or len(content) > self._up.bytes):
                return await self._send_parts(request, sha256, resumes=resumes)
            await self._call(request, len(content))
            return len(content)
        except UnreachableError as error:
            self._broken_upload = sha256 if len(content) else ""
            self._up.shrink()
            _LOG.info("%s: %s", request.method, error)
            await asyncio.sleep(self._backoff.next_seconds())
            return None

    async def _send_parts(self, request: UploadRequest, sha256: str, *, resumes: bool) -> int:
        """Sends what the edge server does not have yet, then the upload itself without its content."""
        content = memoryview(request.content.join())
        held = sent = 0
        if resumes:
            held = (await self._send_part(request, sha256, 0, content[:0])).held
            _LOG.info("upload: resumes at byte %d of %d", held, len(content))
        while held < len(content):
            part, began = content[held : held + self._up.bytes], self._now()
            answer = await self._send_part(request, sha256, held, part)
            self._up.adapt(len(part), self._now() - began)
            held, sent = answer.held, sent + len(part)
        await self._call(structs.replace(request, content=NO_BODY, content_sha256=sha256), 0)
        return sent

    async def _send_part(
        self, request: UploadRequest, sha256: str, held: int, part: memoryview
    ) -> UploadPartAnswer:
        body = Body.hash(part)
        return await self._call(UploadPartRequest(request.round, sha256, held, body), len(part))

    async def _call(self, request: Request[Answer], body_bytes: int) -> Answer:
        answer = await self._calls.call(self._edge, request, self._parameters.transfer_seconds(body_bytes))
        self._backoff.reset()
        return answer
