"""Who belongs to a fleet, and how that changes from one global round to the next.

An experiment starts with the devices and edge servers of `[fleet]`. Changes add, remove and move them, and
extend the run. Simulator and federation apply them with the same function, so that a federation's log is
enough to repeat its run.

A number names a device or an edge server for good: its data, its random streams, what it remembers and its
place in the accounts belong to the number, whichever edge server it is with. Numbers are never reused.

Devices and edge servers that were cut off, killed or too late are missing in a round (`RoundLoss`). With the
same members and the same losses, the simulator makes the same plans and the same models.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cfel import validation
from cfel.errors import InputError, unknown_name
from cfel.wording import show

DEVICE_CHANGES = ("add device", "remove device", "move device")
VOTER_CHANGES = ("add edge", "remove edge")
EDGE_CHANGES = (*VOTER_CHANGES, "drain edge")
CHANGES = (*DEVICE_CHANGES, *EDGE_CHANGES, "extend", "pause", "resume")
"""What a change can be."""

MOST_SKIPPED = 1000
"""So many numbers may be skipped by a new one; beyond, it is more likely a slip than a plan."""

_MOST_DEVICES = 100_000


@dataclass(frozen=True, slots=True)
class FleetChange:
    """One change of a fleet or of the length of its run: an entry of `fleet.changes` in the file."""

    round: int  # the first global round, from 1, that it holds for
    what: str  # one of `CHANGES`
    device: tuple[int, ...] = ()  # number of the device, or a list of them
    # Number of the edge server: where devices are added or moved to, or which one is changed.
    edge: int | None = None
    rounds: int = 0  # global rounds that "extend" adds
    # `seconds`, `joules`: what "extend" adds to the budgets.
    seconds: float = 0.0
    joules: float = 0.0
    address: str = ""  # "host:port" of an edge server that is added; the simulator does not use it
    # Edge server that devices which are moved go back to when it returns, if that is asked for.
    home: int | None = None
    ticket: str = ""  # names the command that asked for it, so that one that is repeated counts once

    def __post_init__(self) -> None:
        validation.check_whole("fleet.changes.round", self.round, least=1)
        if self.what not in CHANGES:
            raise InputError(unknown_name("fleet.changes.what", self.what, CHANGES))
        given: object = self.device
        devices = list(given) if isinstance(given, list | tuple) else [given]
        numbers = [validation.check_whole("fleet.changes.device", n, least=0) for n in devices]
        object.__setattr__(self, "device", tuple(sorted(set(numbers))))
        self._check_fields()

    def _check_fields(self) -> None:
        needs_edge = self.what in ("add device", "move device", *EDGE_CHANGES)
        self._check_given("device", bool(self.device), self.what in DEVICE_CHANGES)
        self._check_given("edge", self.edge is not None, needs_edge)
        if needs_edge:
            validation.check_whole("fleet.changes.edge", self.edge, least=0)
        for name in ("rounds", "seconds", "joules"):
            check = validation.check_whole if name == "rounds" else validation.check_number
            check(f"fleet.changes.{name}", getattr(self, name), least=0)
        extends = bool(self.rounds or self.seconds or self.joules)
        self._check_given("rounds, seconds or joules", extends, self.what == "extend")
        if self.home is not None and self.what != "move device":
            raise InputError(f"fleet.changes.home = {show(self.home)}: belongs to 'move device'")
        if not isinstance(self.address, str) or (self.address and self.what != "add edge"):
            raise InputError(f"fleet.changes.address = {show(self.address)}: belongs to 'add edge'")

    def _check_given(self, field: str, given: bool, needed: bool) -> None:
        if given != needed:
            problem = "is missing" if needed else "does not belong there"
            raise InputError(f"fleet.changes: {self.what!r} in round {self.round}: {field} {problem}")

    def describe(self) -> str:
        """The change in a few words, for logs and pages."""
        match self.what:
            case "extend":
                parts = ((self.rounds, "rounds"), (self.seconds, "s"), (self.joules, "J"))
                return "extend by " + ", ".join(f"{amount:g} {unit}" for amount, unit in parts if amount)
            case "pause" | "resume":
                return self.what
        verb, kind = self.what.split()
        if kind == "edge":
            return f"{verb} edge-{self.edge}"
        names = ", ".join(f"device-{n}" for n in self.device)
        return f"{verb} {names}" if self.edge is None else f"{verb} {names} to edge-{self.edge}"


@dataclass(frozen=True, slots=True)
class Membership:
    """Who belongs to a fleet during a global round, and what was added to the length of its run."""

    edge_of: tuple[int, ...]  # per device number, its edge server, or the last one it had
    devices: frozenset[int]  # numbers of the devices that belong to the fleet
    edges: tuple[int, ...]  # numbers of the edge servers that do, in increasing order
    clusters: int  # edge servers that ever were: their numbers are smaller
    # `rounds`, `seconds`, `joules`: what was added.
    rounds: int = 0
    seconds: float = 0.0
    joules: float = 0.0
    is_paused: bool = False  # whether the next global round waits for "resume"
    voter_changes: int = 0  # how often edge servers were added or removed
    # Devices that have failed over to another edge server, each with the one they came from.
    guests: tuple[tuple[int, int], ...] = ()

    def list_devices(self, edge: int) -> list[int]:
        return [n for n in sorted(self.devices) if self.edge_of[n] == edge]


def start_membership(edge_of: Sequence[int]) -> Membership:
    """Before any change: all devices, each at its edge server."""
    clusters = max(edge_of) + 1
    return Membership(tuple(edge_of), frozenset(range(len(edge_of))), tuple(range(clusters)), clusters)


def apply_changes(before: Membership, changes: Iterable[FleetChange]) -> Membership:
    """The membership after some changes, in their order.

    Raises:
        InputError: one of them is not possible; the message says why.
    """
    after = before
    for change in changes:
        try:
            after = _drop_guests(_apply(after, change))
        except InputError as error:
            raise InputError(f"fleet.changes: round {change.round}, {change.describe()}: {error}") from error
    return after


def has_left(changes: Iterable[FleetChange], device: int) -> bool:
    """Whether a device was removed, and not added again."""
    kinds = ("add device", "remove device")
    about = [each.what for each in changes if each.what in kinds and device in each.device]
    return bool(about) and about[-1] == "remove device"


def check_changes(changes: Sequence[FleetChange]) -> None:
    """Raises an `InputError` unless rounds increase, and edge servers join or leave one at a time."""
    rounds = [each.round for each in changes]
    if rounds != sorted(rounds):
        raise InputError(f"fleet.changes: rounds must not decrease, got {rounds}")
    # Two majorities share a member only if one edge server at a time comes or goes. Nobody votes before the
    # first round.
    voters = [each.round for each in changes if each.what in VOTER_CHANGES and each.round > 1]
    twice = next((number for number in voters if voters.count(number) > 1), None)
    if twice is not None:
        raise InputError(f"fleet.changes: round {twice} adds or removes more than one edge server")


def list_memberships(start: Membership, changes: Sequence[FleetChange]) -> tuple[tuple[int, Membership], ...]:
    """Each membership with the first global round, from 0, that it holds for."""
    check_changes(changes)
    first = apply_changes(start, (each for each in changes if each.round == 1))
    found = [(0, first)]
    for number in sorted({each.round for each in changes if each.round > 1}):
        after = apply_changes(found[-1][1], (each for each in changes if each.round == number))
        found.append((number - 1, after))
    return tuple(found)


def _apply(before: Membership, change: FleetChange) -> Membership:
    match change.what:
        case "add device":
            return _add_devices(before, change.device, _check_edge(before, change.edge))
        case "move device":
            edge = _check_edge(before, change.edge)
            after = _move_devices(before, change.device, edge)
            guests = dict.fromkeys(change.device, edge if change.home is None else change.home)
            return replace(after, guests=tuple((dict(before.guests) | guests).items()))
        case "remove device":
            return _remove_devices(before, change.device)
        case "add edge":
            return _add_edge(before, change.edge)
        case "remove edge":
            return _remove_edge(before, _check_edge(before, change.edge))
        case "drain edge":
            return _drain(before, _check_edge(before, change.edge))
        case "extend":
            return replace(
                before,
                rounds=before.rounds + change.rounds,
                seconds=before.seconds + change.seconds,
                joules=before.joules + change.joules,
            )
        case _:
            return replace(before, is_paused=change.what == "pause")


def _drop_guests(after: Membership) -> Membership:
    """Without guests that are at home again, have left, or whose home has."""
    found = ((n, home) for n, home in after.guests if n in after.devices and home in after.edges)
    return replace(after, guests=tuple((n, home) for n, home in found if after.edge_of[n] != home))


def _check_edge(before: Membership, edge: int | None) -> int:
    if edge is None or edge not in before.edges:
        raise InputError(f"edge {edge} is no member (members: {', '.join(map(str, before.edges))})")
    return edge


def _check_members(before: Membership, devices: Iterable[int]) -> None:
    for n in devices:
        if n not in before.devices:
            raise InputError(f"device {n} is no member")


def _add_devices(before: Membership, devices: tuple[int, ...], edge: int) -> Membership:
    for n in devices:
        if n in before.devices:
            raise InputError(f"device {n} is a member already, of edge {before.edge_of[n]}")
        if n > len(before.edge_of) + MOST_SKIPPED or n >= _MOST_DEVICES:
            raise InputError(f"device {n}: the next new number is {len(before.edge_of)}")
    size = max(len(before.edge_of), max(devices) + 1)
    edge_of = [*before.edge_of, *[edge] * (size - len(before.edge_of))]
    for n in devices:
        edge_of[n] = edge
    return replace(before, edge_of=tuple(edge_of), devices=before.devices | set(devices))


def _move_devices(before: Membership, devices: tuple[int, ...], edge: int) -> Membership:
    _check_members(before, devices)
    for n in devices:
        if before.edge_of[n] == edge:
            raise InputError(f"device {n} is at edge {edge} already")
    edge_of = [edge if n in devices else old for n, old in enumerate(before.edge_of)]
    return replace(before, edge_of=tuple(edge_of))


def _remove_devices(before: Membership, devices: tuple[int, ...]) -> Membership:
    _check_members(before, devices)
    left = before.devices - set(devices)
    if not left:
        raise InputError("no device would be left")
    return replace(before, devices=left)


def _add_edge(before: Membership, edge: int | None) -> Membership:
    if edge is None or edge in before.edges:
        raise InputError(f"edge {edge} is a member already")
    if edge > before.clusters + MOST_SKIPPED:
        raise InputError(f"edge {edge}: the next new number is {before.clusters}")
    edges, clusters = tuple(sorted((*before.edges, edge))), max(before.clusters, edge + 1)
    return replace(before, edges=edges, clusters=clusters, voter_changes=before.voter_changes + 1)


def _remove_edge(before: Membership, edge: int) -> Membership:
    if len(before.edges) == 1:
        raise InputError("no edge server would be left")
    after = _drain(before, edge)
    edges = tuple(i for i in after.edges if i != edge)
    return replace(after, edges=edges, voter_changes=after.voter_changes + 1)


def _drain(before: Membership, edge: int) -> Membership:
    """Moves all devices of an edge server, one by one, to the one with the fewest; of several, the first."""
    others = [i for i in before.edges if i != edge]
    if not others:
        raise InputError("there is no other edge server to move its devices to")
    sizes = {i: len(before.list_devices(i)) for i in others}
    edge_of = list(before.edge_of)
    for n in before.list_devices(edge):
        target = min(others, key=lambda i: (sizes[i], i))
        edge_of[n] = target
        sizes[target] += 1
    return replace(before, edge_of=tuple(edge_of))


Rows = tuple[tuple[float, ...], ...]
Place = tuple[int, int, int | None]
"""Global round from 1, edge round from 0, and gossip step from 0 or None."""


@dataclass(frozen=True, slots=True)
class RoundLoss:
    """The losses of an edge round or of a gossip step: an entry of the experiment file's `fleet.losses`.

    Attributes:
        round: global round, from 1.
        edge_round: edge round, from 0; of a gossip step, how many edge rounds were done before it.
        absent: devices that were not asked, though the conditions of the fleet had them.
        lost: devices that were asked and whose update was not used.
        trained: those of them that had trained: what they remember has changed.
        step: the gossip step, from 0; None for an edge round.
        rows: mixing weights of the step, row by row.
        mixed: edge servers that averaged their models with them; the others kept theirs.
    """

    round: int
    edge_round: int
    absent: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    trained: tuple[int, ...] = ()
    step: int | None = None
    rows: Rows = ()
    mixed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        validation.check_whole("fleet.losses.round", self.round, least=1)
        validation.check_whole("fleet.losses.edge_round", self.edge_round, least=0)
        for name in ("absent", "lost", "trained", "mixed"):
            numbers = validation.check_list(f"fleet.losses.{name}", list(getattr(self, name)))
            checked = {validation.check_whole(f"fleet.losses.{name}", n, least=0) for n in numbers}
            object.__setattr__(self, name, tuple(sorted(checked)))
        if self.step is not None:
            validation.check_whole("fleet.losses.step", self.step, least=0)
        rows = tuple(tuple(float(weight) for weight in row) for row in self.rows)
        if bool(rows) != (self.step is not None) or any(len(row) != len(rows) for row in rows):
            raise InputError(f"fleet.losses.rows = {show(self.rows)}: a gossip step has as many as columns")
        object.__setattr__(self, "rows", rows)

    @property
    def place(self) -> Place:
        """Where in the run."""
        return self.round, self.edge_round, self.step


def merge_losses(losses: Iterable[RoundLoss]) -> tuple[RoundLoss, ...]:
    """One loss per place: what devices say later about a round is added to what was known at its end."""
    found: dict[Place, RoundLoss] = {}
    for each in losses:
        known = found.get(each.place, each)
        found[each.place] = replace(
            known,
            absent=(*known.absent, *each.absent),
            lost=(*known.lost, *each.lost),
            trained=(*known.trained, *each.trained),
        )
    # A device that was late says so, too; the simulator finds that out by itself.
    kept = (replace(each, trained=tuple(set(each.trained) & set(each.lost))) for each in found.values())
    said = (each for each in kept if each.absent or each.lost or each.rows)
    return tuple(sorted(said, key=lambda each: (each.round, each.edge_round, each.step is not None)))
