"""An edge server's copy of the log: lines and tables of plans as the coordinator sent them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cfel.durable import make_directory, remove_leftovers, translate_os_errors
from cfel.errors import InputError, RejectedError
from cfel.runlog import PlanTable, RoundRecord
from cfel.runlog.log import RoundLog, read_log
from cfel.runlog.plans import column_names, write_plan


class NodeLog:
    """The log in one node's directory.

    Args:
        directory: the node's; made when missing.

    Attributes:
        records: the rounds written down.
    """

    def __init__(self, directory: Path) -> None:
        with translate_os_errors("create", directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_directory(directory / "plans")
        self._directory = directory
        self._path = directory / "rounds.jsonl"
        self._log = RoundLog(self._path)
        remove_leftovers(directory)
        remove_leftovers(directory / "plans")
        self._log.truncate(self._log.last_round)
        self.records = list(read_log(self._path).records)

    @property
    def last_round(self) -> int | None:
        """The last round written down; None before the first."""
        return self._log.last_round

    def misses(self, global_round: int) -> bool:
        """Whether lines before that of the global round (from 0) are missing."""
        return global_round > (self.last_round or 0)

    def lines(self, after: int) -> list[str]:
        """The lines of rounds behind `after`."""
        return [each.to_json_line() for each in self.records if each.round > after]

    def catch_up(self, lines: Sequence[str], most: int) -> None:
        """Adds missed lines up to a round."""
        for line in lines:
            record = _record(line)
            if (self.last_round or 0) < record.round <= most:
                self._add(record)

    def append(self, line: str, plans: Mapping[str, Sequence[float]]) -> None:
        """Writes a round down, unless it is there already."""
        record = _record(line)
        if self.last_round is not None and record.round <= self.last_round:
            return
        columns: dict[str, Any] = {name: plans[name] for name in column_names()}
        write_plan(self._directory, PlanTable(round=record.round, **columns))
        self._add(record)

    def _add(self, record: RoundRecord) -> None:
        self._log.append(record)
        self.records.append(record)

    def close(self) -> None:
        """Lets the file go."""
        self._log.close()


def _record(line: str) -> RoundRecord:
    try:
        return RoundRecord.from_json_line(line)
    except InputError as error:
        raise RejectedError(f"record: {error}") from error
