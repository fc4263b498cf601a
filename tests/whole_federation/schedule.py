"""What goes wrong when, drawn from a seed: faults, and what an operator does; printed, it can be repeated."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from cfel.deployment.host import STUCK_SECONDS
from cfel.deployment.security.identity import Identity
from cfel.membership import VOTER_CHANGES, FleetChange

EDGES = tuple(Identity("edge", i) for i in range(3))
DEVICES = tuple(Identity("device", n) for n in range(6))
NEW_EDGE, NEW_DEVICE = Identity("edge", 3), Identity("device", 6)
"""They join in some schedules."""
ALL_EDGES = (*EDGES, NEW_EDGE)
EVERYBODY = (*ALL_EDGES, *DEVICES, NEW_DEVICE)
LAST_FAULT_SECONDS = 40.0
MOST_FAULTS = 14
FOCUSED_FROM = 10_000
"""From this seed on, schedules also aim at the record that says that an edge server comes or goes."""
MOMENTS = (
    *("newest", "plan", "upload", "fetch", "mix", "propose", "close", "release", "next", "election"),
    *("join", "change"),
)
"""Calls that faults wait for: between two of them, most promises are made."""
KINDS = (
    *("kill", "kill", "kill", "outage", "tear", "tear", "freeze", "freeze", "isolate", "isolate", "cut"),
    *("cut one way", "slow", "lossy", "full disk", "clock jump"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; it ends by itself."""

    kind: str  # one of `KINDS`
    at: float  # virtual seconds: when it happens, or from when on it waits for its call
    method: str  # happens when this method is called next; empty for at once
    # Whom it happens to; empty for those between whom the call is.
    members: tuple[Identity, ...]
    seconds: float  # how long it lasts
    number: int  # of writes, seconds or per cent, by its kind

    def __str__(self) -> str:
        moment = f", at the next {self.method}" if self.method else ""
        names = " ".join(map(str, self.members)) or "caller and called"
        return f"{self.at:6.2f} s{moment}: {self.kind} ({self.number}), {names}, for {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class Operation:
    """What an operator asks for: one change after the other, each until it holds or is refused."""

    at: float  # virtual seconds
    changes: tuple[FleetChange, ...]

    def __str__(self) -> str:
        asked = ", then ".join(each.describe() for each in self.changes)
        return f"{self.at:6.2f} s: an operator asks: {asked}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The faults of one seed.

    Attributes:
        is_patient: whether deadlines are longer than all faults.
        returns: whether devices go back to their edge server when it is back.
        operations: what an operator asks for, and when.
        is_large: whether the fleet is planned by asking edge servers, as large ones are.
        downloads: whether devices fetch differences.
    """

    seed: int
    is_patient: bool
    faults: tuple[Fault, ...]
    returns: bool = False
    operations: tuple[Operation, ...] = ()
    is_large: bool = False
    downloads: bool = False

    @property
    def loses_nothing(self) -> bool:
        """Whether no upload may be lost; an edge server whose disk is full for long is left out of rounds."""
        full = sum(each.seconds for each in self.faults if each.kind == "full disk")
        return self.is_patient and full < STUCK_SECONDS

    def __str__(self) -> str:
        kind = "patient" if self.is_patient else "with short deadlines"
        back = ", devices return" if self.returns else ""
        return "\n".join(
            (f"seed {self.seed}, {kind}{back}", *(f"  {x}" for x in self.faults + self.operations))
        )


def draw_schedule(seed: int) -> Schedule:
    """The faults of a seed, by time."""
    chance = Random(f"{seed} schedule")  # noqa: S311 (repeatable chance is the point)
    operations = _draw_operations(seed)
    grows = any(each.what == "add edge" for operation in operations for each in operation.changes)
    edges = ALL_EDGES if grows else EDGES
    faults = [_draw_fault(chance, edges) for _ in range(chance.randint(1, MOST_FAULTS))]
    is_patient, returns = chance.random() < 0.5, chance.random() < 0.5
    if seed >= FOCUSED_FROM:
        faults += _draw_focused(seed, operations, edges)
    in_order = tuple(sorted(faults, key=lambda each: each.at))
    return Schedule(seed, is_patient, in_order, returns, operations)


def _draw_focused(
    seed: int, operations: tuple[Operation, ...], edges: tuple[Identity, ...]
) -> tuple[Fault, ...]:
    """One misses the record that says who comes or goes, and all lose power when others have just logged it.

    Started again, they know of different members, and the one that knows too little may ask for votes first.
    """
    chance = Random(f"{seed} focused")  # noqa: S311 (repeatable chance is the point)
    asked = [op for op in operations if any(each.what in VOTER_CHANGES for each in op.changes)]
    if not asked or chance.random() < 0.5:
        return ()
    at, seconds = chance.choice(asked).at, round(chance.uniform(0.5, 1.5), 3)
    misses = Fault("isolate", at, "propose", (chance.choice(edges),), 3.0, 0)
    return misses, Fault("outage", at, "close", edges, seconds, 0)


def _draw_operations(seed: int) -> tuple[Operation, ...]:
    """What an operator asks for: nothing in half of the schedules, else up to four things."""
    chance = Random(f"{seed} operations")  # noqa: S311 (repeatable chance is the point)
    if chance.random() < 0.5:
        return ()
    devices, edge = iter(chance.sample(range(len(DEVICES)), len(DEVICES))), NEW_EDGE.number
    old = iter(chance.sample(range(len(EDGES)), 2))  # a majority of those that were there first may leave
    added = {"what": "add edge", "edge": edge}
    # Each with what it asks for; no two of them need the same edge server or device.
    kinds: list[Callable[[], list[dict[str, object]]]] = [
        lambda: [_move(chance, next(devices))],
        lambda: [{"what": "remove device", "device": (next(devices),)}],
        lambda: [
            {"what": "add device", "device": (NEW_DEVICE.number,), "edge": chance.randrange(len(EDGES))}
        ],
        lambda: [{"what": "extend", "rounds": chance.randint(1, 2)}],
        lambda: [{"what": "drain edge", "edge": chance.randrange(len(EDGES))}],
        lambda: [{"what": "pause"}, {"what": "resume"}],
        lambda: [added, {"what": "move device", "device": (next(devices),), "edge": edge}],
        lambda: [added, {"what": "remove edge", "edge": next(old)}],
        lambda: [{"what": "remove edge", "edge": next(old)}],
    ]
    found = []
    for number, make in enumerate(chance.sample(kinds, chance.randint(1, 4))):
        asked = make()
        changes = [FleetChange(1, ticket=f"{seed} {number} {i}", **each) for i, each in enumerate(asked)]  # type: ignore[arg-type]
        found.append(Operation(round(chance.uniform(0, LAST_FAULT_SECONDS), 3), tuple(changes)))
    return tuple(sorted(found, key=lambda each: each.at))


def _move(chance: Random, device: int) -> dict[str, object]:
    away = chance.choice([i for i in range(len(EDGES)) if i != device // 2])
    return {"what": "move device", "device": (device,), "edge": away}


def _draw_fault(chance: Random, edges: tuple[Identity, ...]) -> Fault:
    kind = chance.choice(KINDS)
    method = chance.choice(MOMENTS) if chance.random() < 0.6 else ""
    whom = chance.choice(("edge", "edge", "any", "edges", "everybody")) if kind == "outage" else "any"
    members = {
        "edge": (chance.choice(edges),),
        "any": tuple(chance.sample(edges + DEVICES, 2) if chance.random() < 0.3 else chance.sample(edges, 2)),
        "edges": edges,
        "everybody": edges + DEVICES,
    }[whom]
    if method and whom == "any" and chance.random() < 0.7:
        members = ()
    seconds = chance.choice((0.1, 1.0, 5.0, 25.0)) * chance.uniform(0.5, 1.5)
    at = chance.uniform(0, LAST_FAULT_SECONDS)
    return Fault(kind, round(at, 3), method, members, round(seconds, 3), chance.randint(0, 60))
