"""An edge server as a member of the election: feeds `rules.step` with time, random numbers and messages.

The only module of the election that knows a clock, a network and a disk. It decides nothing itself.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom

from cfel.deployment.disk_writes import DiskHealth, wait_longer
from cfel.deployment.election import rules
from cfel.deployment.election.leadership import OnFault
from cfel.deployment.election.raises import raises_too_often
from cfel.deployment.election.recovery import VoteRecovery
from cfel.deployment.election.state import (
    MOST_TERM_JUMP,
    ElectionMessage,
    ElectionState,
    Electorate,
    Event,
    LeaderChanged,
    Persist,
    Received,
    Resign,
    Send,
    Tick,
    Timing,
    Vote,
)
from cfel.deployment.election.vote_file import load_vote, save_vote
from cfel.deployment.protocol.calls import Calls, Endpoint, serve
from cfel.deployment.protocol.device_requests import Confirmation
from cfel.deployment.protocol.peer_requests import ElectionRequest
from cfel.deployment.security.identity import Identity
from cfel.errors import DamagedError, DiskError, InputError, RejectedError, UnreachableError
from cfel.status import ElectionEvent

_LOG = logging.getLogger(__name__)
MOST_EVENTS = 50

OnLeader = Callable[[int, int | None], None]
"""Receives the term and its leader, or None while no leader is known."""


def scale_timing(seconds: float) -> Timing:
    """The election's waits, in proportion to the silence after which a coordinator counts as dead."""
    return Timing(
        heartbeat_seconds=seconds / 7,
        contact_seconds=seconds * 6 / 7,
        timeout_seconds=(seconds, seconds * 11 / 7),
        retry_seconds=(seconds / 7, seconds * 4 / 7),
    )


class Member:
    """One member of the election.

    Args:
        number: which edge server.
        members: how many there are.
        election_seconds: see `DeploymentParameters`.
        path: where its vote is stored.
        calls: how it reaches the others.
        on_leader: called at every change of the leader.
        on_fault: called with a member that sends a term out of reach, and what it did.
        disk: where it notes that its vote cannot be stored.

    Attributes:
        state: what it knows of the election.
        events: the latest events, oldest first.
        leader_changes: how many leaders it has seen elected.
    """

    def __init__(
        self,
        number: int,
        members: int,
        election_seconds: float,
        path: Path,
        calls: Calls,
        on_leader: OnLeader,
        on_fault: OnFault = lambda _member, _what: None,
        disk: DiskHealth | None = None,
    ) -> None:
        self._on_fault, self._disk = on_fault, disk or DiskHealth(time.monotonic)
        self._path, self._calls, self._on_leader = path, calls, on_leader
        # Seeded generators could draw the same waits on every member, and elections would keep tying.
        self._random = SystemRandom()
        self._seconds = election_seconds
        electorate = Electorate(number, tuple(range(members)), scale_timing(election_seconds))
        self._recovery: VoteRecovery | None = None
        self.state = self._start(electorate, self._load_vote(electorate))
        self.events: deque[ElectionEvent] = deque(maxlen=MOST_EVENTS)
        self.leader_changes = 0
        self._distrusted_until: dict[int, float] = {}
        self._woken = asyncio.Event()
        # The event loop keeps only weak references to tasks; without this set a send could vanish.
        self._sending: set[asyncio.Task[None]] = set()

    def _load_vote(self, electorate: Electorate) -> Vote:
        try:
            return load_vote(self._path, electorate.member)
        except DamagedError as error:
            if not electorate.others:
                # Nobody else can have been elected, and this member leads again in the next term.
                _LOG.error("%s; as there is no other member, it begins with an empty vote", error)
                return Vote()
            self._recovery = VoteRecovery(electorate, str(error))
            _LOG.error("%s", self.problem)
            return Vote()

    def _start(self, electorate: Electorate, vote: Vote) -> ElectionState:
        return rules.start(electorate, vote, _now(), self._random.random())

    @property
    def problem(self) -> str:
        """Why it takes no part in elections; empty if it does."""
        return "" if self._recovery is None else self._recovery.describe()

    def note_term(self, member: int, term: int) -> None:
        """Another member has shown its term; matters only to a member that has lost its vote."""
        vote = None if self._recovery is None else self._recovery.note_term(member, term)
        if vote is None:
            return
        try:
            save_vote(self._path, self.state.electorate.member, vote)
        except DiskError as error:
            self._disk.note_failure("vote", error)
            return
        self._disk.note_success("vote")
        self._recovery, self.state = None, self._start(self.state.electorate, vote)
        _LOG.warning("takes part in elections again, after term %d", vote.term)
        self._woken.set()

    def endpoints(self) -> list[Endpoint]:
        """The methods that other members may call."""
        return [serve(ElectionRequest, self.receive)]

    def is_leading(self) -> bool:
        """Whether this member may act as coordinator now."""
        return rules.is_leading(self.state, _now())

    def resign(self, term: int, rest_seconds: float) -> None:
        """Steps down as leader of `term`, if it still is, and asks for no votes for a while."""
        if self.state.term == term:
            self._step(Resign(rest_seconds))
            self._woken.set()

    def distrust(self, member: int, seconds: float) -> None:
        """Ignores a member for a while, so that another one is elected; its messages count as lost."""
        self._distrusted_until[member] = _now() + seconds
        electorate = self.state.electorate
        while len(self.distrusted) > len(electorate.members) - electorate.majority:
            # Without a majority to trust nobody could be elected: the earliest doubt is dropped.
            self._distrusted_until.pop(min(self.distrusted, key=self._distrusted_until.__getitem__))

    @property
    def distrusted(self) -> tuple[int, ...]:
        """Members that it ignores at the moment."""
        now = _now()
        return tuple(sorted(member for member, until in self._distrusted_until.items() if now < until))

    async def run(self) -> None:
        """Takes part until cancelled; neither votes nor asks for votes while its vote cannot be stored."""
        waits = wait_longer()
        while True:
            self._woken.clear()
            if self._recovery is not None:
                await self._woken.wait()
                continue
            wait = max(0.0, rules.next_tick_at(self.state) - _now())
            try:
                async with asyncio.timeout(wait):
                    await self._woken.wait()
            except TimeoutError:
                if self._try_step(Tick()):
                    waits = wait_longer()
                else:
                    await asyncio.sleep(next(waits))

    async def receive(self, caller: Identity, request: ElectionRequest) -> Confirmation:
        """Handles a message from another member; one that cannot be handled is lost, as on the network."""
        if self._recovery is not None or _now() < self._distrusted_until.get(caller.number, 0.0):
            return Confirmation()
        if raises_too_often(self.state, caller.number, request.message, _now()):
            self._on_fault(caller.number, "raises the term again and again, and is not heeded for a while")
        try:
            self._try_step(Received(caller.number, request.message))
        except InputError as error:
            raise RejectedError(str(error)) from error
        finally:
            self._woken.set()
        self._check_term(caller, request.message.term)
        return Confirmation()

    def _check_term(self, caller: Identity, term: int) -> None:
        if term > self.state.term + MOST_TERM_JUMP:
            what = f"shows term {term}, but the newest known here is {self.state.term}"
            self._on_fault(caller.number, what)
            raise RejectedError(f"{caller} {what}: more than {MOST_TERM_JUMP} terms at once")

    def _try_step(self, event: Event) -> bool:
        """Takes a step; False if its vote could not be stored, so that nothing happened."""
        try:
            self._step(event)
        except DiskError as error:
            self._disk.note_failure("vote", error)
            return False
        return True

    def _step(self, event: Event) -> None:
        after, actions = rules.step(self.state, event, _now(), self._random.random())
        for action in actions:
            if isinstance(action, Persist):
                # Blocks the event loop on purpose: until it returns, nothing may be sent and no vote counts.
                save_vote(self._path, after.electorate.member, action.vote)
                self._disk.note_success("vote")
        self.state = after
        for action in actions:
            match action:
                case Send(receiver, message):
                    task = asyncio.create_task(self._send(receiver, message))
                    self._sending.add(task)
                    task.add_done_callback(self._sending.discard)
                case LeaderChanged(term, leader):
                    _LOG.info("term %d: leader %s", term, leader)
                    self.leader_changes += leader is not None
                    self._add_event(term, leader)
                    self._on_leader(term, leader)

    def add_no_majority_event(self) -> None:
        """Adds the event that no leader can be elected."""
        own = str(Identity("edge", self.state.electorate.member))
        self.events.append(
            ElectionEvent(unix_seconds=time.time(), term=self.state.term, kind="no-majority", node=own)
        )

    def _add_event(self, term: int, leader: int | None) -> None:
        own = self.state.electorate.member
        led = bool(self.events) and self.events[-1].kind == "elected"
        if leader is None:
            kind, whom = ("stepped-down", own) if led else ("campaign", own)
        else:
            kind, whom = ("elected" if leader == own else "follows"), leader
        self.events.append(
            ElectionEvent(unix_seconds=time.time(), term=term, kind=kind, node=str(Identity("edge", whom)))
        )

    async def _send(self, receiver: int, message: ElectionMessage) -> None:
        try:
            await self._calls.call(Identity("edge", receiver), ElectionRequest(message), self._seconds)
        except (UnreachableError, RejectedError) as error:
            _LOG.debug("message to edge server %d lost: %s", receiver, error)


def _now() -> float:
    return asyncio.get_running_loop().time()
