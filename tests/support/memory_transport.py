"""The transport without a network: calls within one process, with every fault that a network has.

Messages take the same bytes as over gRPC, with the same limits and the same rules on who may call what.
What happens to the nth message from one node to another depends on the seed, the two nodes and n alone, so a
schedule repeats however the rest of the program interleaves. Not a substitute for tests with real processes:
it has no certificates and no buffers of an operating system.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product

from cfel import validation
from cfel.deployment.protocol.calls import Endpoint
from cfel.deployment.protocol.messages import Message, join_message, split_message
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError, UnreachableError
from cfel.seeding import make_generator


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """What may happen to one message in one direction; a call is a message there and one back.

    Attributes:
        drop: probability that it is lost.
        double: probability that it arrives twice.
        late: probability that it takes up to `late_seconds`, and so is overtaken by later ones.
        seconds: bounds of what a message takes otherwise.
        late_seconds: the most that a late one takes.
    """

    drop: float = 0.0
    double: float = 0.0
    late: float = 0.0
    seconds: tuple[float, float] = (0.0, 0.0)
    late_seconds: float = 1.0

    def __post_init__(self) -> None:
        for name in ("drop", "double", "late"):
            validation.check_number(f"link faults: {name}", getattr(self, name), least=0, most=1)
        validation.check_number("link faults: late_seconds", self.late_seconds, least=0)
        validation.check_number("link faults: seconds[0]", self.seconds[0], least=0)
        validation.check_number("link faults: seconds[1]", self.seconds[1], least=self.seconds[0])


@dataclass(slots=True)
class MemoryNetwork:
    """Who can be called, and what the links between them do.

    Attributes:
        seed: of all faults.
        faults: of every link; may be changed at any time.
        failures: what handlers raised besides rejections; a real server would log it and answer "unknown".
    """

    seed: int
    faults: LinkFaults = field(default_factory=LinkFaults)
    failures: list[Exception] = field(default_factory=list)
    _serving: dict[Identity, Mapping[str, Endpoint]] = field(default_factory=dict)
    _broken: set[tuple[Identity, Identity]] = field(default_factory=set)
    _sent: Counter[tuple[Identity, Identity]] = field(default_factory=Counter)
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)

    def serve(self, own: Identity, endpoints: Iterable[Endpoint]) -> None:
        """Lets others call `own`, from now until it leaves."""
        self._serving[own] = {each.request.method: each for each in endpoints}

    def leave(self, own: Identity) -> None:
        """`own` is killed: calls to it fail at once."""
        self._serving.pop(own, None)

    def client(self, own: Identity) -> "MemoryClient":
        """How `own` sends messages to the others."""
        return MemoryClient(self, own)

    def part(self, side: Iterable[Identity], other_side: Iterable[Identity]) -> None:
        """Nothing passes between the two sides any more, in either direction."""
        for one, other in product(side, other_side):
            self._broken |= {(one, other), (other, one)}

    def cut(self, sender: Identity, receiver: Identity) -> None:
        """Nothing passes from `sender` to `receiver`; the way back stays open."""
        self._broken.add((sender, receiver))

    def restore_links(self) -> None:
        """All links are whole again."""
        self._broken.clear()

    def draw_deliveries(self, sender: Identity, receiver: Identity) -> list[float]:
        """Seconds until each copy of the next message on a link arrives; none if it is lost."""
        link = (sender, receiver)
        self._sent[link] += 1
        numbers = (_place(sender), sender.number, _place(receiver), receiver.number, self._sent[link])
        draw = make_generator(self.seed, "memory transport", *numbers)
        # Always the same draws in the same order, whatever the faults are at the moment.
        lost, double = draw.random(2) < (self.faults.drop, self.faults.double)
        takes = [self._draw_seconds(*draw.random(2).tolist()) for _ in range(2)]
        if lost or link in self._broken:
            return []
        return takes[: 1 + bool(double)]

    def _draw_seconds(self, late: float, share: float) -> float:
        low, high = self.faults.seconds
        return low + share * ((self.faults.late_seconds if late < self.faults.late else high) - low)

    def method(self, caller: Identity, to: Identity, name: str) -> Endpoint:
        """What is called, if it is there and open to the caller."""
        if to not in self._serving:
            raise UnreachableError(f"{to}, {name}: nobody listens")
        method = self._serving[to].get(name)
        if method is None:
            raise RejectedError(f"{to}, {name}: no such method")
        method.check_caller(caller)
        return method

    def start(self, work: "asyncio.Task[None]") -> None:
        """Keeps a task alive until it is done."""
        self._under_way.add(work)
        work.add_done_callback(self._under_way.discard)


@dataclass(frozen=True, slots=True)
class MemoryClient:
    """How one node sends messages to the others; see `Client`."""

    network: MemoryNetwork
    own: Identity

    async def send(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        """See `Client`; a lost message is noticed when the time is up, as on a network."""
        # Fails at once for a node that was killed, as a closed port does.
        self.network.method(self.own, to, method)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        wire = list(split_message(message))
        for delay in self.network.draw_deliveries(self.own, to):
            self.network.start(asyncio.create_task(self._carry(to, method, wire, delay, answer)))
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError as error:
            raise UnreachableError(f"{to}, {method}: no answer within {seconds} s") from error
        finally:
            answer.cancel()

    async def _carry(
        self, to: Identity, name: str, wire: list[bytes], delay: float, answer: "asyncio.Future[Message]"
    ) -> None:
        """One copy of a request, and its answer on the way back."""
        await asyncio.sleep(delay)
        outcome: Message | RejectedError | UnreachableError
        try:
            method = self.network.method(self.own, to, name)
            request = await join_message(_stream(wire), method.most_bytes)
            reply = await method.answer(self.own, request)
            outcome = await join_message(_stream(split_message(reply)), len(reply.body))
        except (RejectedError, UnreachableError) as error:
            outcome = type(error)(f"{to}, {name}: {error}")
        except Exception as error:  # noqa: BLE001 — a server survives what its handlers raise; kept for the test
            self.network.failures.append(error)
            outcome = UnreachableError(f"{to}, {name}: {error!r}")
        for seconds in self.network.draw_deliveries(to, self.own):
            await asyncio.sleep(seconds)
            _settle(answer, outcome)


def _settle(answer: "asyncio.Future[Message]", outcome: Message | Exception) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


async def _stream(wire: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in wire:
        yield piece


def _place(identity: Identity) -> int:
    """Roles as numbers, as streams are named by numbers."""
    return ("edge", "device", "operator").index(identity.role)
