"""An edge server's part in the election: feeds `election.step` with time, chance and messages."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from random import SystemRandom

from cfel.deployment.election import messages as ballots
from cfel.deployment.election import rules as election
from cfel.deployment.election.electorate import Electorate
from cfel.deployment.election.messages import LeaderChanged, Persist, Received, Resign, Send, Tick, Timing
from cfel.deployment.election.vote_file import load_ballot, save_ballot
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.grpc_transport import Calls, Method
from cfel.deployment.transport.messages import Message
from cfel.errors import InputError, RejectedError, StorageError, UnreachableError
from cfel.status import ElectionEvent

_LOG = logging.getLogger(__name__)
MOST_EVENTS = 50
_KINDS = {
    kind.__name__: kind
    for kind in (ballots.VoteRequest, ballots.VoteReply, ballots.Heartbeat, ballots.HeartbeatReply)
}

OnLeader = Callable[[int, int | None], None]
"""Told the term and its leader, or None while nobody is known to lead."""


def timing(seconds: float) -> Timing:
    """The election's waits, in proportion to the silence after which a coordinator is thought dead."""
    return Timing(
        heartbeat_seconds=seconds / 7,
        contact_seconds=seconds * 6 / 7,
        timeout_seconds=(seconds, seconds * 11 / 7),
        retry_seconds=(seconds / 7, seconds * 4 / 7),
    )


class Member:
    """One voter.

    Args:
        number: which edge server.
        members: how many there are.
        election_seconds: see `DeploymentParameters`.
        path: where its ballot is kept.
        calls: how it reaches the others.
        on_leader: told of every change.
    """

    def __init__(
        self,
        number: int,
        members: int,
        election_seconds: float,
        path: Path,
        calls: Calls,
        on_leader: OnLeader,
    ) -> None:
        self._path, self._calls, self._on_leader = path, calls, on_leader
        self._chance = SystemRandom()
        self._seconds = election_seconds
        electorate = Electorate(number, tuple(range(members)), timing(election_seconds))
        ballot = load_ballot(path, number)
        self.state = election.start(electorate, ballot, _now(), self._chance.random())
        self.events: deque[ElectionEvent] = deque(maxlen=MOST_EVENTS)
        self._woken = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._unsaved: StorageError | None = None

    def methods(self) -> dict[str, Method]:
        """What the other members may call."""
        return {"ballot": Method(("edge",), self.received)}

    def leads(self) -> bool:
        """Whether this member may act as coordinator at this instant."""
        return election.leads(self.state, _now())

    def resign(self, term: int, rest_seconds: float) -> None:
        """Gives the office of a term up, if it still holds it, and leaves it to the others for a while."""
        if self.state.term == term:
            self._step(Resign(rest_seconds))
            self._woken.set()

    async def run(self) -> None:
        """Takes part until cancelled.

        Raises:
            StorageError: its ballot cannot be kept: it must not go on voting.
        """
        while self._unsaved is None:
            self._woken.clear()
            wait = max(0.0, election.wakes_at(self.state) - _now())
            try:
                async with asyncio.timeout(wait):
                    await self._woken.wait()
            except TimeoutError:
                self._step(Tick())
        raise self._unsaved

    async def received(self, caller: Identity, message: Message) -> Message:
        """Takes a message of another member."""
        fields = dict(message.header)
        kind = _KINDS.get(str(fields.pop("kind", None)))
        if kind is None:
            raise RejectedError(f"kind = {message.header.get('kind')!r}: no message of an election")
        try:
            self._step(Received(caller.number, kind(**fields)))
        except (InputError, TypeError, OverflowError) as error:
            raise RejectedError(f"not a {kind.__name__}: {error}") from error
        except StorageError as error:
            # Only its caller would hear of it here; whoever runs this member has to.
            self._unsaved = error
            raise
        finally:
            self._woken.set()
        return Message()

    def _step(self, event: ballots.Event) -> None:
        after, actions = election.step(self.state, event, _now(), self._chance.random())
        for action in actions:
            if isinstance(action, Persist):
                # On the event loop on purpose: nothing is said, nor a vote counted as given, before that.
                save_ballot(self._path, after.electorate.member, action.ballot)
        self.state = after
        for action in actions:
            match action:
                case Send(receiver, message):
                    task = asyncio.create_task(self._send(receiver, message))
                    self._sending.add(task)
                    task.add_done_callback(self._sending.discard)
                case LeaderChanged(term, leader):
                    _LOG.info("term %d: leader %s", term, leader)
                    self._note(term, leader)
                    self._on_leader(term, leader)

    def note_no_majority(self) -> None:
        """Adds to the events that nobody can be elected."""
        own = str(Identity("edge", self.state.electorate.member))
        self.events.append(
            ElectionEvent(unix_seconds=time.time(), term=self.state.term, kind="no-majority", node=own)
        )

    def _note(self, term: int, leader: int | None) -> None:
        own = self.state.electorate.member
        led = bool(self.events) and self.events[-1].kind == "elected"
        if leader is None:
            kind, whom = ("stepped-down", own) if led else ("campaign", own)
        else:
            kind, whom = ("elected" if leader == own else "follows"), leader
        self.events.append(
            ElectionEvent(unix_seconds=time.time(), term=term, kind=kind, node=str(Identity("edge", whom)))
        )

    async def _send(self, receiver: int, message: ballots.Message) -> None:
        header = {"kind": type(message).__name__, **asdict(message)}
        try:
            await self._calls.call(Identity("edge", receiver), "ballot", Message(header), self._seconds)
        except (UnreachableError, RejectedError) as error:
            _LOG.debug("message to edge server %d lost: %s", receiver, error)


def _now() -> float:
    return asyncio.get_running_loop().time()
