"""A simulated network of election members: every fault a real one has, from one seed, in virtual time.

Members have clocks of their own (offset and rate), are killed between any two actions, come back with what
they made durable, stand still for a while and resign; links drop, delay, double, reorder and
break, in one direction or both. What must always hold is checked at every step.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random

from cfel.deployment.election.rules import (
    Action,
    ElectionMessage,
    ElectionState,
    Electorate,
    Event,
    LeaderChanged,
    Persist,
    Received,
    Resign,
    Role,
    Send,
    Tick,
    Timing,
    Vote,
    is_leading,
    next_tick_at,
    start,
    step,
)

Step = Callable[[ElectionState, Event, float, float], tuple[ElectionState, tuple[Action, ...]]]
Memory = Callable[[Vote, Vote], Vote]


USUAL = Timing()


class SafetyError(AssertionError):
    """Two leaders where there may be one, or a word given before it was durable."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What the world does to its members while it is unkind; probabilities per message or per action."""

    drop: float = 0.1
    double: float = 0.1
    slow: float = 0.1
    slow_seconds: float = 2.0
    crash: float = 0.003
    drift: float = 0.03
    upheavals_per_second: float = 2.0
    down_seconds: tuple[float, ...] = (0.001, 0.1, 2.0)
    timing: Timing = USUAL


KIND = Faults(drop=0.0, double=0.0, slow=0.0, crash=0.0, drift=0.0, upheavals_per_second=0.0)


def remembers(_: Vote, new: Vote) -> Vote:
    """A disk as it should be."""
    return new


class World:
    """Members, links and the heap of what happens next."""

    def __init__(
        self, size: int, seed: int, faults: Faults = KIND, act: Step = step, memory: Memory = remembers
    ) -> None:
        self.chance = Random(seed)  # noqa: S311 (repeatable chance is the point)
        self.members = tuple(range(size))
        self.faults, self.act, self.memory = faults, act, memory
        self.timing = faults.timing
        self.now = 0.0
        self.order = count()
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.offset = [self.chance.uniform(0, 1e4) for _ in self.members]
        self.rate = [1 + self.chance.uniform(-faults.drift, faults.drift) for _ in self.members]
        self.durable = {member: Vote() for member in self.members}
        self.states: dict[int, ElectionState] = {}
        self.standing_still: dict[int, float] = {}
        self.broken: set[tuple[int, int]] = set()
        self.leader_of: dict[int, int] = {}
        self.changes: list[tuple[float, int, LeaderChanged]] = []
        self.sent = 0
        for member in self.members:
            self.restart(member)
        if faults.upheavals_per_second:
            self.plan_upheaval()

    def clock(self, member: int) -> float:
        """What the clock of `member` shows."""
        return self.offset[member] + self.rate[member] * self.now

    def later(self, seconds: float, happening: Callable[[], None]) -> None:
        """Puts something on the agenda."""
        heapq.heappush(self.agenda, (self.now + seconds, next(self.order), happening))

    def run(self, seconds: float) -> None:
        """Lets virtual time pass."""
        end = self.now + seconds
        while self.agenda and self.agenda[0][0] <= end:
            self.now, _, happening = heapq.heappop(self.agenda)
            happening()
        self.now = end

    def restart(self, member: int) -> None:
        """Starts a member that does not live, with what it made durable."""
        if member not in self.states:
            electorate = Electorate(member, self.members, self.timing)
            vote = self.durable[member]
            self.states[member] = start(electorate, vote, self.clock(member), self.chance.random())
            self.plan_tick(member)

    def kill(self, member: int) -> None:
        """Ends a member; what it had in memory is gone."""
        self.states.pop(member, None)
        self.standing_still.pop(member, None)

    def plan_tick(self, member: int) -> None:
        """The tick its state asks for, void once the state has changed."""
        state = self.states[member]
        wait = max(0.0, (next_tick_at(state) - self.clock(member)) / self.rate[member])

        def tick() -> None:
            if self.states.get(member) is state:
                self.happen(member, Tick())

        self.later(wait + 1e-6, tick)

    def happen(self, member: int, event: Event) -> None:
        """One event at one member, now or when it moves again; lost if it is dead by then."""
        if self.standing_still.get(member, 0.0) > self.now:
            self.later(self.standing_still[member] - self.now, lambda: self.happen(member, event))
        elif member in self.states:
            state, actions = self.act(self.states[member], event, self.clock(member), self.chance.random())
            self.states[member] = state
            for action in actions:
                if self.chance.random() < self.faults.crash:
                    self.fall(member)
                    return
                self.carry_out(member, action)
            if actions and self.chance.random() < self.faults.crash:
                self.fall(member)
                return
            self.check_one_acts(member)
            self.plan_tick(member)

    def fall(self, member: int) -> None:
        """Kills a member that will be back."""
        self.kill(member)
        self.later(self.chance.choice(self.faults.down_seconds), lambda: self.restart(member))

    def carry_out(self, member: int, action: Action) -> None:
        """One action, checked."""
        match action:
            case Persist(vote):
                self.durable[member] = self.memory(self.durable[member], vote)
            case Send(receiver, message):
                self.send(member, receiver, message)
            case LeaderChanged(term, leader):
                self.changes.append((self.now, member, action))
                if leader == member and self.leader_of.setdefault(term, member) != member:
                    raise SafetyError(f"term {term}: {self.leader_of[term]} and {member} lead")

    def send(self, sender: int, receiver: int, message: ElectionMessage) -> None:
        """Puts copies of a message on their way, or none."""
        if self.memory is remembers and self.durable[sender] != self.states[sender].vote:
            raise SafetyError(f"{sender} sends {message} before its vote is durable")
        self.sent += 1
        copies = 1 + (self.chance.random() < self.faults.double)
        for _ in range(copies):
            if self.chance.random() >= self.faults.drop and (sender, receiver) not in self.broken:
                self.later(self.latency(), lambda: self.happen(receiver, Received(sender, message)))

    def latency(self) -> float:
        """Seconds that one message takes."""
        slow = self.chance.random() < self.faults.slow
        return self.chance.uniform(0.001, self.faults.slow_seconds if slow else 0.01)

    def check_one_acts(self, member: int) -> None:
        """At most one member may act as leader at one instant, whatever the terms."""
        if is_leading(self.states[member], self.clock(member)):
            for other, state in self.states.items():
                if other != member and is_leading(state, self.clock(other)):
                    raise SafetyError(f"{member} and {other} both act as leader at {self.now}")

    def plan_upheaval(self) -> None:
        """Puts the next upheaval on the agenda."""
        self.later(self.chance.expovariate(self.faults.upheavals_per_second), self.upheaval)

    def upheaval(self) -> None:
        """Changes what lives, moves and is connected."""
        if not self.faults.upheavals_per_second:
            return
        member = self.chance.choice(self.members)
        match self.chance.randrange(6):
            case 0:
                self.fall(member)
            case 1:
                self.standing_still[member] = self.now + self.chance.uniform(0.1, 3.0)
            case 2:
                self.part(
                    frozenset(self.chance.sample(self.members, self.chance.randint(1, len(self.members))))
                )
            case 3:
                self.broken = {
                    (one, other)
                    for one in self.members
                    for other in self.members
                    if one != other and self.chance.random() < 0.3
                }
            case 4:
                for leader in [each for each, state in self.states.items() if state.role is Role.LEADER]:
                    self.happen(leader, Resign(self.chance.uniform(0.1, 3.0)))
            case _:
                self.broken = set()
        self.plan_upheaval()

    def part(self, side: frozenset[int]) -> None:
        """Nothing passes between `side` and the others until `broken` changes again."""
        self.broken = {
            (one, other) for one in self.members for other in self.members if (one in side) != (other in side)
        }

    def calm(self) -> None:
        """The faults stop: links are whole, everybody lives and moves."""
        self.faults = KIND
        self.broken = set()
        self.standing_still = {}
        for member in self.members:
            self.restart(member)

    def leader(self) -> int | None:
        """The member that all living ones follow and that may act, or none."""
        named = {(state.leader, state.term) for state in self.states.values()}
        leader = next(iter(named))[0]
        if len(named) > 1 or leader is None or leader not in self.states:
            return None
        return leader if is_leading(self.states[leader], self.clock(leader)) else None
