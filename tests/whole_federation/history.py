"""The history of a federation: the calls that edge servers answered, and what reached the disks."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cfel.deployment.coordinator.state import Position
from cfel.deployment.edge.book import join_rows
from cfel.deployment.protocol.edge_requests import MixAnswer, MixCommand, PlanAnswer, PlanCommand
from cfel.deployment.security.identity import Identity
from cfel.runlog import RoundRecord
from cfel.runlog.directory import PlanTable, decode_plan, plan_path
from cfel.runlog.records import parse_log
from cfel.world import World
from tests.whole_federation.schedule import ALL_EDGES, Schedule
from tests.whole_federation.subject import HOME


@dataclass(eq=False)
class Call:
    """One call at an edge server.

    Attributes:
        at: virtual seconds.
        process: which edge server was called, and for the how-manieth time it had been started.
        answer: None if it rejected, failed or died.
        answered_at: how many calls had begun anywhere by then.
    """

    at: float
    caller: Identity
    process: tuple[Identity, int]
    request: Any
    answer: Any = None
    answered_at: int = 0


@dataclass(frozen=True, eq=False)
class Write:
    """What has reached a disk, and after how many calls had begun anywhere."""

    calls: int
    member: Identity
    path: Path
    content: bytes


@dataclass(eq=False)
class History:
    """All that happened.

    Attributes:
        calls: in the order they came.
        writes: to all disks, in their order.
        disks: what is left on each.
        stuck: who had not ended in the end.
        failures: why members were started again, for the reader.
        crashes: what must never be raised.
    """

    schedule: Schedule
    world: World
    calls: list[Call] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    disks: dict[Identity, dict[Path, bytes]] = field(default_factory=dict)
    stuck: list[Identity] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    virtual_seconds: float = 0.0

    def log(self, edge: Identity) -> list[RoundRecord]:
        """The records on an edge server's disk."""
        path = HOME / str(edge) / "rounds.jsonl"
        return list(parse_log(path, self.disks[edge].get(path, b"")).records)

    def find_table(self, edge: Identity, number: int) -> PlanTable | None:
        """The plans of a round that it has logged; those of all edge servers where each logs its own."""
        logged = self.members(number - 1) if self.schedule.is_large else [edge]
        paths = {each: plan_path(HOME / str(each), number) for each in logged}
        found = {each: self.disks[each].get(path) for each, path in paths.items()}
        if None in found.values():
            return None
        tables = [decode_plan(paths[each], number, content or b"") for each, content in found.items()]
        return join_rows(number, tables)

    @cached_property
    def records(self) -> list[RoundRecord]:
        """The longest log."""
        return max((self.log(edge) for edge in ALL_EDGES), key=len)

    @cached_property
    def lived(self) -> World:
        """The world with the changes that are in the log."""
        return self.world.with_changes([change for record in self.records for change in record.changes])

    def members(self, rounds_done: int) -> tuple[Identity, ...]:
        """The edge servers of a global round, counted from 0."""
        return tuple(Identity("edge", i) for i in self.lived.membership_at(rounds_done).edges)

    @property
    def last_members(self) -> tuple[Identity, ...]:
        """The edge servers of the last round; what was asked for during it never held."""
        return self.members(max(len(self.records) - 1, 0))

    def answered(self, *requests: type) -> Iterator[Call]:
        """Calls of a kind that were carried out."""
        return (each for each in self.calls if isinstance(each.request, requests) and each.answer is not None)

    def edge_rounds(self) -> dict[tuple[Identity, Position], PlanAnswer]:
        """What each edge server answered about each edge round."""
        return {(each.process[0], each.request.position): each.answer for each in self.answered(PlanCommand)}

    def mixes(self) -> dict[tuple[Identity, Position], MixAnswer]:
        """What each edge server answered about each gossip step."""
        return {(each.process[0], each.request.position): each.answer for each in self.answered(MixCommand)}
