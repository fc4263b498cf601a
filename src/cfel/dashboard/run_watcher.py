"""Watches run directories for the dashboard; only reads, and only what changed.

In a tree of runs (such as `cfel compare` writes) it follows the run whose log changed last, with the others
as curves. The current edge round is not in the files, and therefore not in the snapshot.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from cfel.dashboard.run_status import WatchedRun, build_status
from cfel.durable import translate_os_errors
from cfel.errors import CfelError, RunDirectoryError
from cfel.report.load import find_runs, load_run
from cfel.status import Status

_Signature = tuple[int, int]


class RunWatcher:
    """Follows the newest run in a directory or a tree of them.

    Args:
        path: the directory; it may hold no run yet.

    Raises:
        RunDirectoryError: there is no such directory.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise RunDirectoryError(f"{path} is not a directory")
        self._path = path.resolve()
        self._seen: dict[Path, tuple[_Signature, WatchedRun]] = {}
        self._status = Status(node=self._path.name, source="simulation")
        self.refresh()

    def snapshot(self) -> Status:
        """The state at the last refresh; does not touch the disk."""
        return self._status

    def refresh(self) -> bool:
        """Reads what changed; returns whether the snapshot did.

        A file that cannot be read becomes the snapshot's `problem`, and is tried again the next time.
        """
        before = self._status
        try:
            self._status = self._read()
        except CfelError as error:
            self._status = replace(before, problem=str(error))
        return self._status != before

    async def changes(self, seconds: float) -> AsyncIterator[None]:
        """Refreshes every `seconds` in a thread, and yields when something changed."""
        while True:
            if await asyncio.to_thread(self.refresh):
                yield
            await asyncio.sleep(seconds)

    def _read(self) -> Status:
        found = find_runs(self._path)
        self._seen = {path: entry for path, entry in self._seen.items() if path in found}
        for path in found:
            signature = _signature(path)
            if path not in self._seen or self._seen[path][0] != signature:
                self._seen[path] = (signature, _load_run(path, signature))
        if not found:
            return replace(self._status, phase="waiting", problem="")
        newest = max(found, key=lambda path: self._seen[path][0])
        others = [self._seen[path][1].run for path in found if path != newest]
        name = str(newest.relative_to(self._path.parent))
        return build_status(name, self._seen[newest][1], others)


def _signature(path: Path) -> _Signature:
    log = path / "rounds.jsonl"
    with translate_os_errors("read", log):
        stat = log.stat()
    return stat.st_mtime_ns, stat.st_size


def _load_run(path: Path, signature: _Signature) -> WatchedRun:
    run = load_run(path)
    last = run.records[-1].round if run.records else 0
    # A table is written before its line, so the newest may belong to a round that is not logged yet.
    planned = [number for number in run.directory.plan_rounds() if number <= last]
    plan = run.directory.plan(planned[-1], run.fleet.devices) if planned else None
    return WatchedRun(run=run, plan=plan, unix_seconds=signature[0] / 1e9)
