"""An edge server's log: rounds as the coordinator sends them, and how it learns that the experiment is over.

The files are those of `runlog`; here they are filled over the network, missed rounds included.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np

from cfel.deployment.coordinator.checked_calls import check_closing
from cfel.deployment.coordinator.proposals import ProposalFile
from cfel.deployment.disk_writes import DiskWrites
from cfel.deployment.edge.progress import EdgeProgress
from cfel.deployment.protocol.calls import Calls, Endpoint, serve
from cfel.deployment.protocol.coordinator_requests import (
    CloseCommand,
    ProposeCommand,
    ProposedRecord,
    ReleaseRequest,
)
from cfel.deployment.protocol.device_requests import Confirmation
from cfel.deployment.protocol.peer_requests import RecordsAnswer, RecordsRequest
from cfel.deployment.security.identity import Identity
from cfel.durable import make_directory, remove_leftovers, translate_os_errors
from cfel.errors import (
    CfelError,
    DamagedError,
    RejectedError,
    RunBusyError,
    RunDirectoryError,
    UnreachableError,
)
from cfel.metric import Metric
from cfel.runlog import PlanTable, RoundRecord
from cfel.runlog.plans import plan_path, read_plan, write_plan
from cfel.runlog.records import RoundLog, cut_damaged_log, read_log
from cfel.wording import format_joules, format_seconds, plural

_LOG = logging.getLogger(__name__)


class EdgeLog:
    """The log in an edge server's directory.

    Args:
        directory: the edge server's; created when missing.
        number: the edge server.
        progress: whose commands it carries out.
        calls: how it reaches the others.
        disk: what it writes.
        seconds: how long others may take to answer.

    Attributes:
        records: the rounds so far.
        device_costs: seconds and joules of each device in the last edge round, as far as known.
        awaited: edge servers that do not know yet that the experiment is over.
        finished: set when the last round is in the log.
        released: set when all edge servers know of the end, except those `awaited`.
    """

    def __init__(
        self,
        directory: Path,
        number: int,
        progress: EdgeProgress,
        calls: Calls,
        disk: DiskWrites,
        seconds: float,
    ) -> None:
        self._number, self._progress = number, progress
        self._calls, self._disk, self._seconds = calls, disk, seconds
        with translate_os_errors("create", directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_directory(directory / "plans")
        remove_leftovers(directory)
        remove_leftovers(directory / "plans")
        self._directory, path = directory, directory / "rounds.jsonl"
        self._file = self._open(path)
        # Cuts off a line that was being written when the process died.
        self._file.truncate(self._file.last_round)
        self.records = list(read_log(path).records)
        self._proposals = ProposalFile(directory)
        self._note_round()
        self.device_costs = self._load_costs()
        self.awaited: tuple[int, ...] = ()
        self.finished, self.released = asyncio.Event(), asyncio.Event()

    def _open(self, path: Path) -> RoundLog:
        """The log; damaged lines are cut off and fetched from another edge server, if there is one."""
        try:
            return RoundLog(path)
        except RunBusyError:
            raise
        except RunDirectoryError as error:
            if self._progress.world.setting.fleet.clusters == 1:
                words = "there is no other edge server to take rounds from"
                raise DamagedError(f"{words}: {error}, or delete the directory to begin anew") from error
            done = cut_damaged_log(path)
            _LOG.error("%s. Its rounds are fetched from other edge servers: there is nothing to do", done)
            return RoundLog(path)

    @property
    def last_round(self) -> int:
        """The last round in the log; 0 before the first."""
        return self._file.last_round or 0

    def endpoints(self) -> list[Endpoint]:
        """What other edge servers may call."""
        return [
            serve(ProposeCommand, self.keep_proposal),
            serve(CloseCommand, self.write_round),
            serve(RecordsRequest, self.find_records),
            serve(ReleaseRequest, self.release),
        ]

    @property
    def has_lost_proposal(self) -> bool:
        """Whether a record may have been proposed here that is lost."""
        return self._proposals.is_lost

    @property
    def newest_proposal(self) -> ProposedRecord | None:
        """The newest record that was proposed here; the last one in the log if that is newer, or fetched."""
        proposed = self._proposals.newest
        if self.records and (proposed is None or proposed.record.round < self.last_round):
            return ProposedRecord(0, self.records[-1])
        return proposed

    def _note_round(self) -> None:
        newest = self.newest_proposal
        self._progress.known_round = 0 if newest is None else newest.record.round

    async def keep_proposal(self, caller: Identity, command: ProposeCommand) -> Confirmation:
        """Keeps the record of a round that is about to be logged."""
        await self._progress.admit(caller, command)
        self._check_record(command)
        proposal = ProposedRecord(command.term, command.record)
        # A successor that asks while this is being written must hear of it, so it counts from here on.
        self._proposals.take(proposal)
        self._note_round()
        await self._disk.write("proposal", lambda: self._proposals.save(proposal))
        return Confirmation()

    def _check_proposed(self, command: CloseCommand) -> None:
        """Raises `RejectedError` if the same coordinator has proposed another record for this round."""
        found, record = self._proposals.newest, command.record
        if found is None or (found.term, found.record.round) != (command.term, record.round):
            return
        if found.record != record:
            raise RejectedError(f"round {record.round} is closed with another record than the proposed one")

    def _check_record(self, command: ProposeCommand | CloseCommand) -> None:
        """Raises `RejectedError` for a record of another round, or one that differs from the log's."""
        record = command.record
        if record.round != command.position[0] + 1:
            raise RejectedError(f"record of round {record.round} at {command.position}")
        if any(each.round == record.round and each != record for each in self.records[-2:]):
            raise RejectedError(f"round {record.round} is in the log with another record")

    async def write_round(self, caller: Identity, command: CloseCommand) -> Confirmation:
        """Writes a finished global round; fetches rounds that it missed first."""
        await self._progress.admit(caller, command)
        with self._progress.check(caller):
            check_closing(self._progress.world, command)
            self._check_proposed(command)
        self._check_record(command)
        await self._catch_up(caller, command.record.round - 1)
        await self._disk.write("log", lambda: self._write(command.record, command.plans))
        _LOG.info("%s", describe_round(self.records[-1], self._progress.world.setting.metrics[0]))
        if command.last:
            _LOG.info("the experiment is over")
            self.finished.set()
        return Confirmation()

    async def _catch_up(self, caller: Identity, last_round: int) -> None:
        """Fetches rounds that it missed; the coordinator, which may be itself, may have missed them, too."""
        others = [Identity("edge", i) for i in range(self._progress.world.setting.fleet.clusters)]
        for other in sorted(others, key=lambda each: each != caller):
            if self.last_round >= last_round:
                return
            try:
                missed = () if other.number == self._number else await self.fetch_missed(other)
            except (RejectedError, UnreachableError) as error:
                _LOG.warning("no rounds of %s: %s", other, error)
                continue
            # Records only: a round that was missed has no plan table here.
            await self._disk.write("log", partial(self._append, missed, last_round))
        if self.last_round < last_round:
            raise RejectedError(f"rounds {self.last_round + 1} to {last_round} are missing")

    async def fetch_missed(self, other: Identity) -> tuple[RoundRecord, ...]:
        """Fetches the rounds after its own last one from another edge server.

        Raises:
            DeploymentError: the other one cannot be reached, or rejects.
        """
        answer = await self._calls.call(other, RecordsRequest(self.last_round), self._seconds)
        return answer.records

    async def adopt_end(self, missed: Iterable[RoundRecord], last_round: int) -> None:
        """Takes over the end of the experiment from an edge server that saw it."""
        await self._disk.write("log", lambda: self._append(missed, last_round))
        _LOG.warning("the experiment ended with round %d while this edge server was missing", last_round)
        self.released.set()
        self.finished.set()

    async def find_records(self, caller: Identity, request: RecordsRequest) -> RecordsAnswer:
        """Returns the records of all rounds after one."""
        del caller
        return RecordsAnswer(tuple(each for each in self.records if each.round > request.after))

    async def release(self, caller: Identity, request: ReleaseRequest) -> Confirmation:
        """Lets this edge server stop: all others know that the experiment is over."""
        del caller
        # It may itself be listed, if it was missing and has just come back.
        self.awaited = tuple(i for i in request.missing if i != self._number)
        self.released.set()
        return Confirmation()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _append(self, records: Iterable[RoundRecord], most: int) -> None:
        """Adds missed rounds up to one."""
        for record in records:
            if record.round == self.last_round + 1 <= most:
                self._add(record)

    def _write(self, record: RoundRecord, plans: PlanTable) -> None:
        """Adds a round and its plans, unless it is there already."""
        if record.round > self.last_round:
            # The table before the line: a logged round always has its table.
            write_plan(self._directory, plans)
            self._add(record)
            self.device_costs = _find_last_costs(plans)

    def _load_costs(self) -> dict[int, tuple[float, float]]:
        """Costs of the last round in the log; none if it was fetched without its plans."""
        if not plan_path(self._directory, self.last_round).exists():
            return {}
        try:
            return _find_last_costs(read_plan(self._directory, self.last_round))
        except CfelError as error:
            # They are only shown; the run does not need them.
            _LOG.warning("%s", error)
            return {}

    def _add(self, record: RoundRecord) -> None:
        self._file.append(record)
        self.records.append(record)
        self._note_round()


def _find_last_costs(plans: PlanTable) -> dict[int, tuple[float, float]]:
    """Seconds and joules of each device in the last edge round of a table."""
    order = np.argsort(plans.edge_round, kind="stable")
    rows = zip(plans.device[order], plans.seconds[order], plans.joules[order], strict=True)
    return {int(device): (float(seconds), float(joules)) for device, seconds, joules in rows}


def describe_round(record: RoundRecord, metric: Metric) -> str:
    """A finished round in a line; costs are realised."""
    quality = "" if record.accuracy is None else f"{metric.name} {metric.format(record.accuracy)}, "
    spent = format_seconds(record.seconds_realised), format_joules(record.joules_realised)
    return (
        f"round {record.round}: {quality}{plural(record.devices_taking_part, 'device')}, "
        f"{spent[0]} and {spent[1]} so far"
    )
