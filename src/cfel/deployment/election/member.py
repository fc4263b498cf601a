"""An edge server as a member of the election: feeds `rules.step` with time, random numbers and messages.

It decides nothing itself. Its vote is one small JSON file, replaced in one step before anybody hears of it;
without it a member could vote twice in a term. So a file that is damaged or belongs to another member is an
error, never an empty vote. Only a missing file means a first start.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from cfel.deployment.election import rules
from cfel.deployment.election.rules import (
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
from cfel.deployment.host import Disk, DiskHealth, Host, wait_longer
from cfel.deployment.protocol.calls import Calls, Endpoint, serve
from cfel.deployment.protocol.edge_requests import ElectionAnswer, ElectionRequest
from cfel.deployment.security.identity import Identity
from cfel.errors import (
    DamagedError,
    DiskError,
    InputError,
    RejectedError,
    StaleTermError,
    StorageError,
    UnreachableError,
)
from cfel.status import ElectionEvent

_LOG = logging.getLogger(__name__)
_VOTE_VERSION = 1
_LOOK_SECONDS = 0.01
MOST_EVENTS = 50

OnLeader = Callable[[int, int | None], None]
"""Receives the term and its leader, or None while no leader is known."""

OnFault = Callable[[int, str], None]
"""Called with an edge server and what it did wrong."""


def scale_timing(seconds: float) -> Timing:
    """The election's waits, in proportion to the silence after which a coordinator counts as dead."""
    return Timing(
        # A third or so of the silence that ends a term: two may be lost, and each costs CPU on both sides.
        heartbeat_seconds=seconds * 2 / 7,
        contact_seconds=seconds * 6 / 7,
        timeout_seconds=(seconds, seconds * 11 / 7),
        retry_seconds=(seconds / 7, seconds * 4 / 7),
    )


class Member:
    """One member of the election.

    Args:
        electorate: who votes, and which of them this is.
        path: where its vote is stored.
        health: where it notes that its vote cannot be stored.
        on_leader: called at every change of the leader.
        on_fault: called with a member that sent what it may not.
        least_term: of the newest record that it stores; it has been in this term, whatever its vote says.

    Attributes:
        state: what it knows of the election.
        events: the latest events, oldest first.
        leader_changes: how many leaders it has seen elected.
    """

    def __init__(
        self,
        electorate: Electorate,
        path: Path,
        calls: Calls,
        host: Host,
        health: DiskHealth,
        on_leader: OnLeader,
        on_fault: OnFault = lambda _member, _what: None,
        least_term: int = 0,
    ) -> None:
        self._path, self._calls, self._host, self._health = path, calls, host, health
        self._on_leader, self._on_fault, self._least_term = on_leader, on_fault, least_term
        self._recovery: VoteRecovery | None = None
        self.state = self._start(electorate, self._load_vote(electorate))
        self.events: deque[ElectionEvent] = deque(maxlen=MOST_EVENTS)
        self.leader_changes = 0
        self._woken = asyncio.Event()
        # The event loop keeps only weak references to tasks; without this set a send could vanish.
        self._sending: set[asyncio.Task[None]] = set()

    def _load_vote(self, electorate: Electorate) -> Vote:
        try:
            return load_vote(self._host.disk, self._path, electorate.member)
        except DamagedError as error:
            if not electorate.others:
                # Nobody else can have been elected, and this member leads again in the next term.
                _LOG.error("%s; as there is no other member, it begins with an empty vote", error)
                return Vote()
            self._recovery = VoteRecovery(electorate, str(error))
            _LOG.error("%s", self.problem)
            return Vote()

    def _start(self, electorate: Electorate, vote: Vote) -> ElectionState:
        # Votes may be deleted while records stay, and those reject the proposals of earlier terms. Counts as
        # having voted in this term, for whomever.
        if vote.term < self._least_term:
            vote = Vote(self._least_term, electorate.member)
        return rules.start(electorate, vote, _now(), self._host.random.random())

    def change_members(self, members: tuple[int, ...], changes: int) -> None:
        """Who votes from now on."""
        before = self.state.electorate
        if changes == before.changes:
            return
        electorate = Electorate(before.member, members, before.timing, changes)
        _LOG.info("edge servers with a vote: %s", ", ".join(map(str, members)))
        self.state = rules.change_members(self.state, electorate, _now(), self._host.random.random())
        self._woken.set()

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
            self._save(vote)
        except DiskError as error:
            self._health.note_failure("vote", error)
            return
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
            self._send_all(self._step(Resign(rest_seconds)))
            self._woken.set()

    async def admit(self, caller: Identity, term: int, wait_seconds: float) -> None:
        """Returns if the caller leads this term, as soon as that is known here.

        A command proves nothing by the term it names: it is compared with what the election has shown.

        Args:
            caller: who commands.
            term: in which term.
            wait_seconds: how long a command may be ahead of its sender's first heartbeat.

        Raises:
            StaleTermError: it does not lead it, as far as this member knows.
        """
        deadline = _now() + wait_seconds
        while (known := (self.state.term, self.state.leader)) != (term, caller.number):
            if term < known[0]:
                raise StaleTermError(f"stale term {term} of {caller}: term {known[0]} has begun")
            # A term has one leader, so there is nothing to wait for once it is known.
            if (known[0] == term and known[1] is not None) or _now() > deadline:
                leader = "nobody" if known[1] is None else f"edge-{known[1]}"
                reason = f"a command of term {term}, but {leader} leads term {known[0]}"
                self._on_fault(caller.number, f"sent {reason}")
                raise StaleTermError(f"{reason}, as far as known here")
            await asyncio.sleep(_LOOK_SECONDS)

    async def run(self) -> None:
        """Takes part until cancelled; neither votes nor asks for votes while its vote cannot be stored."""
        waits = wait_longer()
        while True:
            self._woken.clear()
            if self._recovery is not None:
                await self._woken.wait()
                continue
            due = rules.next_tick_at(self.state)
            try:
                async with asyncio.timeout(max(0.0, due - _now())):
                    await self._woken.wait()
            except TimeoutError:
                sends = self._try_step(
                    Tick(_now() > due + self.state.electorate.timing.heartbeat_seconds / 2)
                )
                if sends is None:
                    await asyncio.sleep(next(waits))
                    continue
                waits = wait_longer()
                self._send_all(sends)

    async def receive(self, caller: Identity, request: ElectionRequest) -> ElectionAnswer:
        """Handles a message from another member; one that cannot be handled is lost, as on the network."""
        sends = self._handle(caller.number, request.message)
        replies = [each for each in sends if request.takes_reply and each.receiver == caller.number]
        self._send_all(each for each in sends if each not in replies)
        return ElectionAnswer(replies[0].message if replies else None)

    def _handle(self, sender: int, message: ElectionMessage) -> Sequence[Send]:
        """Takes the step that a message from another member leads to; returns what to send then."""
        if self._recovery is not None:
            return ()
        try:
            return self._try_step(Received(sender, message)) or ()
        except InputError as error:
            self._on_fault(sender, f"sent a message of the election that is not used: {error}")
            raise RejectedError(str(error)) from error
        finally:
            self._woken.set()

    def _try_step(self, event: Event) -> Sequence[Send] | None:
        """Takes a step; None if its vote could not be stored, so that nothing happened."""
        try:
            return self._step(event)
        except DiskError as error:
            self._health.note_failure("vote", error)
            return None

    def _step(self, event: Event) -> Sequence[Send]:
        """Takes a step; returns what to send."""
        after, actions = rules.step(self.state, event, _now(), self._host.random.random())
        for action in actions:
            if isinstance(action, Persist):
                # Blocks the event loop on purpose: until it returns, nothing may be sent and no vote counts.
                self._save(action.vote)
        self.state = after
        for action in actions:
            if isinstance(action, LeaderChanged):
                _LOG.info("term %d: leader %s", action.term, action.leader)
                self.leader_changes += action.leader is not None
                self._add_change(action.term, action.leader)
                self._on_leader(action.term, action.leader)
        return [action for action in actions if isinstance(action, Send)]

    def _send_all(self, sends: Iterable[Send]) -> None:
        for each in sends:
            task = asyncio.create_task(self._send(each.receiver, each.message))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def _save(self, vote: Vote) -> None:
        save_vote(self._host.disk, self._path, self.state.electorate.member, vote)
        self._health.note_success("vote")

    def add_no_majority_event(self) -> None:
        """Adds the event that no leader can be elected."""
        self._add_event(self.state.term, "no-majority", self.state.electorate.member)

    def _add_change(self, term: int, leader: int | None) -> None:
        own = self.state.electorate.member
        if leader is None:
            led = bool(self.events) and self.events[-1].kind == "elected"
            self._add_event(term, "stepped-down" if led else "campaign", own)
        else:
            self._add_event(term, "elected" if leader == own else "follows", leader)

    def _add_event(self, term: int, kind: str, whom: int) -> None:
        at, node = self._host.time_of_day(), str(Identity("edge", whom))
        self.events.append(ElectionEvent(unix_seconds=at, term=term, kind=kind, node=node))

    async def _send(self, receiver: int, message: ElectionMessage) -> None:
        seconds = self.state.electorate.timing.timeout_seconds[0]
        request = ElectionRequest(message, takes_reply=True)
        try:
            answer = await self._calls.call(Identity("edge", receiver), request, seconds)
            if answer.reply is not None:
                self._send_all(self._handle(receiver, answer.reply))
        except (UnreachableError, RejectedError) as error:
            _LOG.debug("message to edge server %d lost: %s", receiver, error)


def _now() -> float:
    return asyncio.get_running_loop().time()


class VoteRecovery:
    """How a member gets over the loss of its vote: it abstains until every other member has shown its term.

    A member votes for another one only after that one has entered the term, and stored it. A vote for itself
    counts only together with votes of others, who have entered the term, too. So once all others have shown
    their terms, none of its forgotten votes was given in a later one, and it may vote in the terms after
    that. A majority is not enough: the one that is missing may lead by the forgotten vote.

    Args:
        reason: how the vote was lost, in words.
    """

    def __init__(self, electorate: Electorate, reason: str) -> None:
        self._electorate, self._reason = electorate, reason
        self._shown: dict[int, int] = {}

    def note_term(self, member: int, term: int) -> Vote | None:
        """Notes the term of another member; returns the vote to continue with once all have shown theirs."""
        self._shown[member] = term
        if self._missing():
            return None
        # Counts as having voted in this term, for whomever.
        return Vote(max(self._shown.values()), self._electorate.member)

    def describe(self) -> str:
        """What is wrong, and what to do about it."""
        names = ", ".join(f"edge-{member}" for member in self._missing())
        return (
            f"{self._reason}. It takes no part in elections until it has heard of {names}. If one of them is "
            "gone for good, stop all edge servers, delete vote.json on all of them, and start them again"
        )

    def _missing(self) -> list[int]:
        return [member for member in self._electorate.others if member not in self._shown]


def save_vote(disk: Disk, path: Path, member: int, vote: Vote) -> None:
    """Returns when the vote is on the disk.

    Raises:
        StorageError: it could not be stored; the member must not vote any more.
    """
    content = {"version": _VOTE_VERSION, "member": member, "term": vote.term, "voted_for": vote.voted_for}
    disk.replace(path, json.dumps(content).encode())


def load_vote(disk: Disk, path: Path, member: int) -> Vote:
    """The vote last saved, or an empty one on the very first start.

    Raises:
        DamagedError: the file holds no vote.
        StorageError: it cannot be read, or belongs to another member.
    """
    if not disk.exists(path):
        return Vote()
    try:
        content = json.loads(disk.read(path))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: not a vote: {error}") from error
    if not _is_well_formed(content):
        raise DamagedError(f"{path}: not a vote of version {_VOTE_VERSION}: {content!r}")
    # A directory that was copied from another edge server would give that one's vote away.
    if content["member"] != member:
        raise StorageError(
            f"{path}: the vote of member {content['member']}, not of {member}. The directory is another edge "
            "server's, or a copy: give this one its own"
        )
    try:
        return Vote(content["term"], content["voted_for"])
    except InputError as error:
        raise DamagedError(f"{path}: {error}") from error


def _is_well_formed(content: object) -> bool:
    if not isinstance(content, dict) or set(content) != {"version", "member", "term", "voted_for"}:
        return False
    numbers = [content["member"], content["term"]]
    if content["voted_for"] is not None:
        numbers.append(content["voted_for"])
    return content["version"] == _VOTE_VERSION and all(
        type(number) is int and number >= 0 for number in numbers
    )
