"""What goes wrong when, drawn from a seed: a list of faults that can be printed and repeated."""

from dataclasses import dataclass
from random import Random
from typing import Any

from cfel.deployment.host import STUCK_SECONDS
from cfel.deployment.security.identity import Identity
from cfel.membership import FleetChange

EDGES = tuple(Identity("edge", i) for i in range(3))
DEVICES = tuple(Identity("device", n) for n in range(6))
LAST_FAULT_SECONDS = 40.0
MOST_FAULTS = 14
MOMENTS = ("newest", "plan", "upload", "fetch", "mix", "propose", "close", "release", "next", "election")
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
class Schedule:
    """The faults of one seed.

    Attributes:
        is_patient: whether deadlines are longer than all faults.
        changes: what an operator asks for, and when.
        is_large: whether the fleet is planned by asking edge servers, as large ones are.
    """

    seed: int
    is_patient: bool
    faults: tuple[Fault, ...]
    changes: tuple[tuple[float, FleetChange], ...] = ()
    is_large: bool = False

    @property
    def loses_nothing(self) -> bool:
        """Whether no upload may be lost; an edge server whose disk is full for long is left out of rounds."""
        full = sum(each.seconds for each in self.faults if each.kind == "full disk")
        return self.is_patient and full < STUCK_SECONDS

    def __str__(self) -> str:
        kind = "patient" if self.is_patient else "with short deadlines"
        asked = (f"  {at:6.2f} s: an operator asks: {change.describe()}" for at, change in self.changes)
        return "\n".join((f"seed {self.seed}, {kind}", *(f"  {each}" for each in self.faults), *asked))


def draw_schedule(seed: int) -> Schedule:
    """The faults of a seed, by time."""
    chance = Random(f"{seed} schedule")  # noqa: S311 (repeatable chance is the point)
    faults = [_draw_fault(chance) for _ in range(chance.randint(1, MOST_FAULTS))]
    is_patient = chance.random() < 0.5
    return Schedule(seed, is_patient, tuple(sorted(faults, key=lambda each: each.at)), _draw_changes(seed))


def _draw_changes(seed: int) -> tuple[tuple[float, FleetChange], ...]:
    """What an operator asks for: nothing in half of the schedules, else up to three changes."""
    chance = Random(f"{seed} changes")  # noqa: S311 (repeatable chance is the point)
    if chance.random() < 0.5:
        return ()
    devices = chance.sample(range(len(DEVICES)), 3)
    found = []
    for number, device in enumerate(devices[: chance.randint(1, 3)]):
        away = chance.choice([i for i in range(len(EDGES)) if i != device // 2])
        fields: dict[str, Any] = chance.choice(
            (
                {"what": "move device", "device": (device,), "edge": away},
                {"what": "remove device", "device": (device,)},
                {"what": "extend", "rounds": 1},
            )
        )
        change = FleetChange(1, ticket=f"{seed} {number}", **fields)
        found.append((round(chance.uniform(0, LAST_FAULT_SECONDS), 3), change))
    return tuple(found)


def _draw_fault(chance: Random) -> Fault:
    kind = chance.choice(KINDS)
    method = chance.choice(MOMENTS) if chance.random() < 0.6 else ""
    whom = chance.choice(("edge", "edge", "any", "edges", "everybody")) if kind == "outage" else "any"
    members = {
        "edge": (chance.choice(EDGES),),
        "any": tuple(chance.sample(EDGES + DEVICES, 2) if chance.random() < 0.3 else chance.sample(EDGES, 2)),
        "edges": EDGES,
        "everybody": EDGES + DEVICES,
    }[whom]
    if method and whom == "any" and chance.random() < 0.7:
        members = ()
    seconds = chance.choice((0.1, 1.0, 5.0, 25.0)) * chance.uniform(0.5, 1.5)
    at = chance.uniform(0, LAST_FAULT_SECONDS)
    return Fault(kind, round(at, 3), method, members, round(seconds, 3), chance.randint(0, 60))
