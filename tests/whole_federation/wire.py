"""The network between whole nodes: directed links that are cut, slow or lossy, and senders that die.

A message under way arrives even if its sender has given up, died or frozen meanwhile. A connection that
carries nothing is noticed after a while, as by the keepalive of gRPC.
"""

import asyncio
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from random import Random

from cfel.deployment.protocol.calls import Endpoint
from cfel.deployment.protocol.messages import Message
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError, UnreachableError
from tests.deployment.memory_federation import Network
from tests.deployment.virtual_time import VirtualLoop

KEEPALIVE_SECONDS = 2.0
LATE_SECONDS = 10.0
_MOST_DRAWS = 8
Link = tuple[Identity, Identity]


@dataclass(frozen=True, slots=True)
class Quality:
    """How well a link works in one direction."""

    seconds: float = 0.01  # the longest a message is under way
    drop: float = 0.0  # share of messages that are lost
    double: float = 0.0  # share of messages that arrive twice
    late: float = 0.0  # share of messages that take up to `LATE_SECONDS`, as after many retransmissions


class Fate:
    """What happens to one message and its answer: numbers from [0, 1), drawn beforehand."""

    def __init__(self, drawn: list[float]) -> None:
        self._drawn = drawn

    def random(self) -> float:
        """The next number."""
        return self._drawn.pop()

    def uniform(self, low: float, high: float) -> float:
        """The next number, scaled."""
        return low + (high - low) * self._drawn.pop()


@dataclass
class Wire(Network):
    """The links between all members.

    Attributes:
        qualities: of links that are not as usual.
        broken: links that nothing passes.
        contexts: where the code of each member runs, so that a frozen one does nothing.
        failures: what handlers raised besides rejections.
        seed: of everything that happens by chance.
        at_work: calls that a member is answering.
    """

    qualities: dict[Link, Quality] = field(default_factory=dict)
    broken: set[Link] = field(default_factory=set)
    contexts: dict[Identity, Context] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seed: int = 0
    chances: dict[Link, Random] = field(default_factory=dict)
    at_work: dict[Identity, dict["asyncio.Task[Message]", None]] = field(default_factory=dict)
    carrying: set["asyncio.Task[None]"] = field(default_factory=set)
    own_context: Context = field(default_factory=copy_context)

    async def deliver(self, caller: Identity, to: Identity, method: str, message: Message) -> Message:
        """See `Network`."""
        self.on_call(caller, to, method)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        # What happens to a message is drawn when it is sent: the nth of a link has the same fate, in
        # whichever order things happen that happen at once.
        chance = self.chances.setdefault((caller, to), Random(f"{self.seed} {caller} {to}"))  # noqa: S311
        double = chance.random() < self.qualities.get((caller, to), Quality()).double
        fates = [Fate([chance.random() for _ in range(_MOST_DRAWS)]) for _ in range(2)]
        for fate in fates[: 1 + double]:
            carry = self._carry((caller, to), method, message, answer, fate)
            task = asyncio.get_running_loop().create_task(carry, context=self.own_context)
            self.carrying.add(task)
            task.add_done_callback(self.carrying.discard)
        return await answer

    async def _carry(
        self, link: Link, method: str, message: Message, answer: "asyncio.Future[Message]", fate: Fate
    ) -> None:
        caller, to = link
        if not await self._pass(caller, to, fate):
            await asyncio.sleep(fate.uniform(0, KEEPALIVE_SECONDS))
            _settle(answer, UnreachableError(f"{to}, {method}: nobody answers"))
        elif to not in self.members:
            _settle(answer, UnreachableError(f"{to}, {method}: nobody listens"))
        else:
            outcome = await self._handle(link, method, message, answer, fate)
            if not await self._pass(to, caller, fate):
                await asyncio.sleep(fate.uniform(0, KEEPALIVE_SECONDS))
                outcome = UnreachableError(f"{to}, {method}: the answer was lost")
            _settle(answer, outcome)

    async def _pass(self, sender: Identity, receiver: Identity, fate: Fate) -> bool:
        """Returns after a message's time on a link, with whether it arrives."""
        link = (sender, receiver)
        quality = self.qualities.get(link, Quality())
        is_late = quality.late and fate.random() < quality.late
        await asyncio.sleep(fate.uniform(0, LATE_SECONDS if is_late else quality.seconds))
        return link not in self.broken and fate.random() >= quality.drop

    async def _handle(
        self, link: Link, method: str, message: Message, answer: "asyncio.Future[Message]", fate: Fate
    ) -> Message | Exception:
        caller, to = link
        offered = self.members[to][method]
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        work = loop.create_task(_answer(offered, caller, message), context=self.contexts[to].copy())
        self.at_work.setdefault(to, {})[work] = None
        work.add_done_callback(lambda done: self.at_work[to].pop(done))
        while not work.done():
            await asyncio.wait([work, answer], timeout=KEEPALIVE_SECONDS, return_when="FIRST_COMPLETED")
            silent = loop.is_frozen(to) or {link, (to, caller)} & self.broken
            if not work.done() and (silent or answer.done()):
                # The connection is gone, or its caller has given up: the handler hears of it later.
                await asyncio.wait([work], timeout=fate.uniform(0, KEEPALIVE_SECONDS))
                work.cancel()
                return UnreachableError(f"{to}, {method}: the connection broke")
        if work.cancelled():
            return UnreachableError(f"{to}, {method}: died")
        error = work.exception()
        if error is None:
            return work.result()
        if isinstance(error, RejectedError | UnreachableError):
            return type(error)(f"{to}, {method}: {error}")
        self.failures.append(f"{to}, {method}: {error!r}")
        return UnreachableError(f"{to}, {method}: failed")

    def drop_work(self, member: Identity) -> None:
        """Ends what a member that dies is doing for others."""
        for work in list(self.at_work.get(member, ())):
            work.cancel()


async def _answer(offered: Endpoint, caller: Identity, message: Message) -> Message:
    offered.check_caller(caller)
    return await offered.answer(caller, message)


def _settle(answer: "asyncio.Future[Message]", outcome: Message | Exception) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


@dataclass
class WireClient:
    """How one process sends messages; one that has died sends none."""

    own: Identity
    wire: Wire
    is_dead: bool = False

    async def send(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        """See `Client`."""
        if self.is_dead:
            raise UnreachableError("this process has died")
        try:
            async with asyncio.timeout(seconds):
                return await self.wire.deliver(self.own, to, method, message)
        except TimeoutError:
            raise UnreachableError(f"{to}, {method}: no answer in time") from None
