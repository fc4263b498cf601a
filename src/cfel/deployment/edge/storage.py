"""What an edge server keeps on its disk: where it is, its models, the record being closed, and its log.

    state.bin        where it is, its answers, and the coordinator's state; names models by their SHA-256
    models/SHA-256   a model's bytes
    proposal.bin     the newest record that was proposed to it
    rounds.jsonl     the log, as in any run directory (`runlog`), with plans/
    losses/          devices of its own that were missing, where a fleet is planned by clusters

A model is on the disk before a state names it. It is written once, however many states name it, and removed
when none does. Knows files only; when they are written is decided in `server`.
"""

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from cfel.deployment import state_file
from cfel.deployment.coordinator.state import CoordinatorState, Position
from cfel.deployment.edge.book import OwnRound
from cfel.deployment.host import Disk
from cfel.deployment.payloads import model_views, read_model
from cfel.deployment.protocol.device_requests import Round
from cfel.deployment.protocol.edge_requests import LOGGED, DeviceEntry, MixAnswer, PlanAnswer, ProposedRecord
from cfel.deployment.protocol.messages import Count, Digest, decode, encode
from cfel.errors import CfelError, DamagedError, InputError, RejectedError, RunDirectoryError, StorageError
from cfel.learning.models.flat import FlatModel
from cfel.membership import RoundLoss
from cfel.runlog import PlanTable, RoundRecord
from cfel.runlog.directory import decode_plan, encode_plan, plan_path
from cfel.runlog.records import find_damage, parse_log

_LOG = logging.getLogger(__name__)
_STATE, _RECORDS = "state.bin", "rounds.jsonl"


@dataclass(frozen=True, slots=True, eq=False)
class EdgeState:
    """An edge server between two edge rounds."""

    position: Position  # what comes next
    model: FlatModel  # its model
    previous_model: FlatModel  # its model before the last gossip step, for neighbours that ask late
    # Its answers about edge rounds of this global round and the one before.
    reports: Mapping[Position, PlanAnswer] = field(default_factory=dict)
    # Per device, the round of its last upload that went into the model.
    last_used_rounds: Mapping[int, Round] = field(default_factory=dict)
    gossip: MixAnswer | None = None  # its answer about the last gossip step, or None
    coordinator_state: CoordinatorState | None = None  # the newest it has seen of a coordinator, or None
    # Where a fleet is planned by clusters: what it knows of its devices, and what it logs of them, for edge
    # rounds of this global round and the one before.
    book: Mapping[int, DeviceEntry] = field(default_factory=dict)
    own_rounds: Mapping[Position, OwnRound] = field(default_factory=dict)
    # Where edge servers send differences: what its neighbours know of its model; None before the first step.
    public: FlatModel | None = None
    earlier_mixes: tuple[MixAnswer, ...] = ()  # its answers about the steps of that global round before it

    @property
    def mixes(self) -> tuple[MixAnswer, ...]:
        """Its answers about gossip steps of the last global round in which it mixed."""
        return (*self.earlier_mixes, *filter(None, [self.gossip]))

    def find_mix(self, at: Position) -> MixAnswer | None:
        """Its answer about one of these steps."""
        return next((each for each in self.mixes if each.position == at), None)

    def has_mixed(self, at: Position) -> bool:
        """Whether the last gossip step was this one."""
        return self.gossip is not None and self.gossip.position == at


class _Stored(msgspec.Struct, frozen=True):
    """What `state.bin` holds."""

    position: Position
    models: tuple[Digest, Digest]
    reports: dict[Position, PlanAnswer]
    last_used_rounds: dict[Count, Round]
    gossip: MixAnswer | None
    coordinator_state: CoordinatorState | None
    book: dict[Count, DeviceEntry] = {}
    own_rounds: dict[Position, OwnRound] = {}
    public: Digest | None = None
    earlier_mixes: tuple[MixAnswer, ...] = ()


class EdgeDisk:
    """An edge server's state on its disk.

    Args:
        start: the model before the first round.
    """

    def __init__(self, disk: Disk, directory: Path, start: FlatModel) -> None:
        self._disk, self._start = disk, start
        self._path, self._models = directory / _STATE, directory / "models"
        self._kept: dict[str, FlatModel] = {}

    @staticmethod
    def holds_state(directory: Path) -> bool:
        """Whether an edge server has saved its state there, on this machine."""
        return (directory / _STATE).exists()

    def load(self) -> EdgeState:
        """The state saved last, or the one before the first round.

        Raises:
            DamagedError: it is not what was saved.
            StorageError: it is of another experiment or version.
        """
        found = state_file.load(self._disk, self._path)
        if found is None:
            log = self._path.with_name(_RECORDS)
            if self._disk.exists(log) and self._disk.read(log):
                raise DamagedError(f"{self._path} does not exist, but rounds were logged")
            return EdgeState((0, 0, 0), self._start, self._start)
        try:
            stored = decode(found[1], _Stored)
        except RejectedError as error:
            raise state_file.explain_other_version(self._path, error) from error
        named = stored.models if stored.public is None else (*stored.models, stored.public)
        self._kept = {name: self._read(name) for name in named}
        model, previous = (self._kept[name] for name in stored.models)
        return EdgeState(
            stored.position,
            model,
            previous,
            stored.reports,
            stored.last_used_rounds,
            stored.gossip,
            stored.coordinator_state,
            stored.book,
            stored.own_rounds,
            None if stored.public is None else self._kept[stored.public],
            stored.earlier_mixes,
        )

    def begin_anew(self) -> EdgeState:
        """The state before the first round; a state that cannot be used is set aside."""
        if self._disk.exists(self._path):
            self._disk.set_aside(self._path)
        self._kept = {}
        return EdgeState((0, 0, 0), self._start, self._start)

    def save(self, state: EdgeState) -> None:
        """Makes the state durable.

        Raises:
            StorageError: the file cannot be written; what was saved before is still there.
        """
        names = (self._keep(state.model), self._keep(state.previous_model))
        public = None if state.public is None else self._keep(state.public)
        kept = {*names, public}
        reports, used_rounds = dict(state.reports), dict(state.last_used_rounds)
        newest = state.coordinator_state
        rest = dict(state.book), dict(state.own_rounds), public, state.earlier_mixes
        stored = _Stored(state.position, names, reports, used_rounds, state.gossip, newest, *rest)
        state_file.save(self._disk, self._path, {}, encode(stored))
        self._kept = {name: model for name, model in self._kept.items() if name in kept}
        # Also those that were written just before a crash.
        for path in self._disk.list(self._models):
            if path.name not in kept:
                self._disk.remove(path)

    def _keep(self, model: FlatModel) -> str:
        # By identity: hashing a large model again takes longer than the search.
        for name, kept in self._kept.items():
            if kept is model:
                return name
        name = model.sha256().hex()
        if name not in self._kept:
            self._disk.make_directory(self._models)
            self._disk.replace(self._models / name, *model_views(model))
        self._kept[name] = model
        return name

    def _read(self, name: str) -> FlatModel:
        path = self._models / name
        if path not in self._disk.list(self._models):
            raise DamagedError(f"{path} does not exist, but {self._path} names it")
        content = self._disk.read(path)
        if hashlib.sha256(content).hexdigest() != name:
            raise DamagedError(f"{path} is damaged: its SHA-256 is not its name")
        try:
            return read_model(content, self._start)
        except RejectedError as error:
            raise StorageError(f"{path} is of another experiment: {error}") from error


class ProposalFile:
    """The newest record that was proposed to an edge server.

    Attributes:
        newest: that record, or None before the first.
        is_lost: whether the file was damaged, and nothing was proposed since.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk, self._path = disk, directory / "proposal.bin"
        self.newest: ProposedRecord | None = None
        self.is_lost = False
        try:
            self.newest = self._load()
        except DamagedError as error:
            self.is_lost = True
            aside = disk.set_aside(self._path)
            _LOG.error("%s. Other edge servers have the record; the old file is %s", error, aside)

    def _load(self) -> ProposedRecord | None:
        found = state_file.load(self._disk, self._path)
        try:
            return None if found is None else decode(found[1], ProposedRecord)
        except RejectedError as error:
            raise state_file.explain_other_version(self._path, error) from error

    def take(self, proposal: ProposedRecord) -> None:
        """Makes a proposal the newest one; it is on the disk after `save`.

        Raises:
            RejectedError: a newer one is known.
        """
        self._reject_old(proposal)
        self.newest = proposal

    def save(self, proposal: ProposedRecord) -> None:
        """Returns when it is on the disk.

        Raises:
            RejectedError: a newer one has come while this one could not be written.
            StorageError: the file cannot be written; what was saved before is still there.
        """
        self._reject_old(proposal)
        state_file.save(self._disk, self._path, {}, encode(proposal))
        self.is_lost = False

    def _reject_old(self, proposal: ProposedRecord) -> None:
        newest = self.newest
        if newest is not None and _recency(proposal) < _recency(newest):
            raise RejectedError(
                f"record of round {proposal.record.round} in term {proposal.term}: a newer record, of round "
                f"{newest.record.round} in term {newest.term}, has been proposed"
            )


def _recency(proposal: ProposedRecord) -> tuple[int, int]:
    return proposal.term, proposal.record.round


class EdgeLog:
    """The log in an edge server's directory, which it reserves until it is closed.

    Args:
        directory: the edge server's; created when missing.
        has_others: whether other edge servers have the rounds, too.
        kept_plans: of how many rounds plan tables are kept; 0 for all.

    Attributes:
        records: the rounds so far.
        device_costs: seconds and joules of each device in the last edge round, as far as known.
        proposals: the record that is about to be logged.

    Raises:
        RunBusyError: another process works in the directory.
        DamagedError: lines are damaged, and nobody else has them.
    """

    def __init__(self, disk: Disk, directory: Path, *, has_others: bool, kept_plans: int = 0) -> None:
        self._disk, self._directory, self._path = disk, directory, directory / _RECORDS
        self._kept_plans = kept_plans
        with ExitStack() as opening:
            opening.enter_context(disk.reserve(directory))
            disk.make_directory(directory / "plans")
            content = parse_log(self._path, self._read(has_others=has_others))
            self.records = list(content.records)
            self._length = content.ends[-1] if content.ends else 0
            # Cuts off a line that was being written when the process died.
            disk.append(self._path, self._length, b"")
            self.proposals = ProposalFile(disk, directory)
            self.device_costs = self._load_costs()
            self._reserved = opening.pop_all()

    def _read(self, *, has_others: bool) -> bytes:
        """The log; damaged lines are cut off, to be fetched from another edge server, if there is one."""
        if not self._disk.exists(self._path):
            return b""
        whole = self._disk.read(self._path)
        try:
            parse_log(self._path, whole)
        except RunDirectoryError as error:
            if not has_others:
                words = "there is no other edge server to take rounds from"
                raise DamagedError(f"{words}: {error}, or delete the directory to begin anew") from error
            line, good = find_damage(self._path, whole)
            copy = self._path.with_name(f"{self._path.name}.damaged")
            self._disk.replace(copy, whole)
            self._disk.replace(self._path, whole[:good])
            _LOG.error(
                "%s was cut before line %d, which is damaged; all of it is in %s. Its rounds are fetched "
                "from other edge servers: there is nothing to do",
                *(self._path, line, copy.name),
            )
            return whole[:good]
        return whole

    @property
    def last_round(self) -> int:
        """The last round in the log; 0 before the first."""
        return self.records[-1].round if self.records else 0

    @property
    def newest_proposal(self) -> ProposedRecord | None:
        """The newest record that was proposed here; the last one in the log if that is newer, or fetched."""
        proposed = self.proposals.newest
        if self.records and (proposed is None or proposed.record.round < self.last_round):
            return ProposedRecord(LOGGED, self.records[-1])
        return proposed

    def check(self, record: RoundRecord) -> None:
        """Raises `RejectedError` for a record that differs from the one in the log."""
        if any(each.round == record.round and each != record for each in self.records[-2:]):
            raise RejectedError(f"round {record.round} is in the log with another record")

    def append(self, records: Iterable[RoundRecord], most: int) -> None:
        """Adds missed rounds up to one; records only, as a round that was missed has no plan table here."""
        for record in records:
            if record.round == self.last_round + 1 <= most:
                self._add(record)

    def write(self, record: RoundRecord, plans: PlanTable, losses: Sequence[RoundLoss] = ()) -> None:
        """Adds a round, its plans and the losses of its own devices, unless it is there already."""
        if record.round > self.last_round:
            if losses:
                path = losses_path(self._directory, record.round)
                self._disk.make_directory(path.parent)
                self._disk.replace(path, msgspec.json.encode(losses))
            # The table before the line: a logged round always has its table.
            self._disk.replace(plan_path(self._directory, record.round), encode_plan(plans))
            self._add(record)
            self._drop_plans(record.round - self._kept_plans)
            self.device_costs = _find_last_costs(plans)

    def close(self) -> None:
        """Gives the directory back."""
        self._reserved.close()

    def _drop_plans(self, last: int) -> None:
        """Removes the plan table of a round that is no longer kept; rounds that were missed have none."""
        path = plan_path(self._directory, last)
        if self._kept_plans and last > 0 and self._disk.exists(path):
            self._disk.remove(path)

    def _add(self, record: RoundRecord) -> None:
        line = record.to_json_line().encode()
        self._disk.append(self._path, self._length, line)
        self._length += len(line)
        self.records.append(record)

    def _load_costs(self) -> dict[int, tuple[float, float]]:
        """Costs of the last round in the log; none if it was fetched without its plans."""
        path = plan_path(self._directory, self.last_round)
        if not self._disk.exists(path):
            return {}
        try:
            return _find_last_costs(decode_plan(path, self.last_round, self._disk.read(path)))
        except CfelError as error:
            # They are only shown; the run does not need them.
            _LOG.warning("%s", error)
            return {}


def losses_path(directory: Path, global_round: int) -> Path:
    """Where an edge server stores what it lost of its own devices in a global round."""
    return directory / "losses" / f"round-{global_round:05d}.json"


def read_losses(disk: Disk, directory: Path, global_round: int) -> list[RoundLoss]:
    """What an edge server lost of its own devices in a global round.

    Raises:
        DamagedError: the file is not what was written.
    """
    path = losses_path(directory, global_round)
    if not disk.exists(path):
        return []
    try:
        return msgspec.json.decode(disk.read(path), type=list[RoundLoss])
    except (msgspec.MsgspecError, InputError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error


def _find_last_costs(plans: PlanTable) -> dict[int, tuple[float, float]]:
    """Seconds and joules of each device in the last edge round of a table."""
    order = np.argsort(plans.edge_round, kind="stable")
    rows = zip(plans.device[order], plans.seconds[order], plans.joules[order], strict=True)
    return {int(device): (float(seconds), float(joules)) for device, seconds, joules in rows}
