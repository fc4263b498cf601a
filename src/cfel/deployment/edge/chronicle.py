"""An edge server's log of the finished rounds, and how it learns that the experiment is over."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.edge.round_log import NodeLog
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.grpc_transport import Calls, Method
from cfel.deployment.transport.messages import Message
from cfel.runlog import RoundRecord

_LOG = logging.getLogger(__name__)


class Chronicle:
    """Writes rounds down, and gets lines it has missed from others.

    Args:
        directory: where the log is kept.
        number: the edge server whose it is.
        calls: how it reaches the others.
        compute: where files are written.
        seconds: how long the others may take to answer.

    Attributes:
        log: the rounds so far.
        finished: the last round is written down.
        dismissed: everybody knows, except those that are `awaited`.
    """

    def __init__(
        self, directory: Path, number: int, calls: Calls, compute: ComputeThread, seconds: float
    ) -> None:
        self._number, self._calls, self._compute, self._seconds = number, calls, compute, seconds
        self.log = NodeLog(directory)
        self.awaited: tuple[int, ...] = ()
        self.finished, self.dismissed = asyncio.Event(), asyncio.Event()

    def methods(self) -> dict[str, Method]:
        """What other edge servers may call."""
        return {
            "records": Method(("edge",), self.records),
            "farewell": Method(("edge",), self.farewell),
        }

    async def close(self, caller: Identity, round_number: int, message: Message) -> None:
        """Writes a finished global round down; fetches lines it has missed from the coordinator."""
        if self.log.misses(round_number):
            lines = await self.missed(caller)
            await self._compute.run(lambda: self.log.catch_up(lines, round_number))
        await self._compute.run(lambda: self.log.append(message.text("record"), message.header["plans"]))
        _LOG.info("%s", in_words(self.log.records[-1]))
        if message.header["last"]:
            _LOG.info("the experiment is over")
            self.finished.set()

    async def missed(self, other: Identity) -> Sequence[str]:
        """Lines behind its own last one, as another edge server has them.

        Raises:
            DeploymentError: they cannot be had.
        """
        request = Message({"after": self.log.last_round or 0})
        answer = await self._calls.call(other, "records", request, self._seconds)
        lines: list[str] = answer.header["lines"]
        return lines

    async def end_with(self, lines: Sequence[str], last_round: int) -> None:
        """Takes the end of the experiment over from somebody who saw it."""
        await self._compute.run(lambda: self.log.catch_up(lines, last_round))
        _LOG.warning("the experiment ended with round %d while this edge server was away", last_round)
        self.dismissed.set()
        self.finished.set()

    async def records(self, caller: Identity, message: Message) -> Message:
        """Lines of the log behind a round."""
        del caller
        after = message.whole("after")
        return Message({"lines": await self._compute.run(lambda: self.log.lines(after))})

    async def farewell(self, caller: Identity, message: Message) -> Message:
        """Everybody knows that the experiment is over: it may go."""
        del caller
        # It may itself be missing, and hear this because it has just come back.
        self.awaited = tuple(i for i in message.header.get("missing", ()) if i != self._number)
        self.dismissed.set()
        return Message()


def in_words(record: RoundRecord) -> str:
    """A finished round in a line."""
    accuracy = "" if record.accuracy is None else f"accuracy {100 * record.accuracy:.1f} %, "
    return (
        f"round {record.round}: {accuracy}{record.devices_taking_part} devices, "
        f"{record.seconds:,.1f} s and {record.joules:,.1f} J so far"
    )
