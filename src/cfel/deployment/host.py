"""What a node takes from its machine, each through one door: time of day, disk, threads and randomness.

A node in production gets `make_host()`. A test can hand in a `Host` with memory for a disk, no threads and a
seeded generator; on an event loop with a virtual clock nothing in the node then touches the machine.
Durations come from the event loop (`loop.time`, `asyncio.sleep`) and never from elsewhere. The network has a
door of its own, `protocol.calls.Client`.
"""

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom
from typing import Protocol, TypeVar

from cfel import durable
from cfel.errors import DiskError, RunBusyError, UnreachableError
from cfel.learning.torch_state import prepare_process, prepare_thread

Result = TypeVar("Result")

FIRST_SECONDS = 0.5
MOST_SECONDS = 5.0
GROWTH = 2.0
STUCK_SECONDS = 10.0
"""A node whose disk fails for this long leaves the coordinator's role to another one."""

_ENDED = "this node has ended"
_LOG = logging.getLogger(__name__)


class Disk(Protocol):
    """Files that survive a crash: a file has its old content or its new content, never a part.

    All methods raise `DiskError` where the system fails; nothing is changed then.
    """

    def exists(self, path: Path) -> bool:
        """Whether there is such a file."""
        ...

    def read(self, path: Path) -> bytes:
        """The content of a file."""
        ...

    def replace(self, path: Path, *content: bytes | memoryview) -> None:
        """Returns when the file has this content, on the disk; only this user may read it."""
        ...

    def append(self, path: Path, length: int, content: bytes) -> None:
        """Returns when the file is its first `length` bytes and this content, on the disk."""
        ...

    def remove(self, path: Path) -> None:
        """Removes a file if possible."""
        ...

    def set_aside(self, path: Path) -> Path:
        """Renames a file that cannot be used, so that somebody can look at it; returns its new path."""
        ...

    def list(self, directory: Path) -> list[Path]:
        """The files in a directory; none if it does not exist."""
        ...

    def make_directory(self, path: Path) -> None:
        """Makes a directory inside one that exists, unless it is there."""
        ...

    def reserve(self, directory: Path) -> AbstractContextManager[None]:
        """Makes a directory and reserves it for one node until the context ends, or the process dies.

        Raises:
            RunBusyError: another node works there.
        """
        ...


class RealDisk:
    """The files of this machine; see `Disk`."""

    def exists(self, path: Path) -> bool:
        """See `Disk`."""
        return path.exists()

    def read(self, path: Path) -> bytes:
        """See `Disk`."""
        return durable.read_bytes(path, max_bytes=None)

    def replace(self, path: Path, *content: bytes | memoryview) -> None:
        """See `Disk`."""
        durable.replace_file(path, *content, private=True)

    def append(self, path: Path, length: int, content: bytes) -> None:
        """See `Disk`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with durable.translate_os_errors("write", path):
            descriptor = os.open(path, flags, 0o666)
            try:
                # Also removes a part of a line that an earlier attempt has left.
                os.ftruncate(descriptor, length)
                os.lseek(descriptor, length, os.SEEK_SET)
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, length)
                raise
            finally:
                os.close(descriptor)

    def remove(self, path: Path) -> None:
        """See `Disk`."""
        durable.remove_quietly(path)

    def set_aside(self, path: Path) -> Path:
        """See `Disk`."""
        return durable.set_aside(path)

    def list(self, directory: Path) -> list[Path]:
        """See `Disk`."""
        durable.check_directory(directory)
        return sorted(directory.iterdir()) if directory.exists() else []

    def make_directory(self, path: Path) -> None:
        """See `Disk`."""
        durable.make_directory(path, private=True)
        durable.remove_leftovers(path)

    @contextmanager
    def reserve(self, directory: Path) -> Iterator[None]:
        """See `Disk`."""
        with durable.translate_os_errors("create", directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunBusyError(f"{directory}: another process works in this directory") from error
            durable.remove_leftovers(directory)
            yield
        finally:
            os.close(descriptor)


class Compute(Protocol):
    """Where a node runs what would keep its event loop from answering calls."""

    async def run(self, function: Callable[[], Result]) -> Result:
        """The result of a function; functions run one after the other, in the order they come.

        Raises:
            UnreachableError: the node has ended; calls may still come while it does.
        """
        ...

    async def run_aside(self, function: Callable[[], Result]) -> Result:
        """The result of a short function that must not wait behind long ones."""
        ...

    def close(self) -> None:
        """Waits for the function that runs; drops those that have not begun."""
        ...


class ComputeThread:
    """One thread for arithmetic and files; torch uses one thread in it.

    A single thread runs functions in the order they come, so results equal those of the engine `threads` to
    the last bit.
    """

    def __init__(self) -> None:
        prepare_process()
        self._is_closed = False
        self._pool = ThreadPoolExecutor(1, "compute", initializer=prepare_thread)

    async def run(self, function: Callable[[], Result]) -> Result:
        """See `Compute`."""
        if self._has_ended():
            raise UnreachableError(_ENDED)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            # Dropped by `close`; a caller that was itself cancelled must stay so.
            if self._has_ended() and task is not None and not task.cancelling():
                raise UnreachableError(_ENDED) from error
            raise

    async def run_aside(self, function: Callable[[], Result]) -> Result:
        """See `Compute`."""
        return await asyncio.to_thread(function)

    def _has_ended(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """See `Compute`."""
        self._is_closed = True
        self._pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Host:
    """The machine that a node runs on."""

    disk: Disk  # its files
    compute: Compute  # its threads
    random: Random  # its randomness
    # Seconds since 1970; only shown and logged, never compared between machines.
    time_of_day: Callable[[], float]

    def make_token(self, digits: int) -> str:
        """A random name of so many hexadecimal digits."""
        return f"{self.random.getrandbits(4 * digits):0{digits}x}"


def make_host() -> Host:
    """This machine."""
    # Seeded generators could draw the same waits on every member, and elections would keep tying.
    return Host(RealDisk(), ComputeThread(), SystemRandom(), time.time)


class DiskHealth:
    """Whether a node's disk takes what is written to it.

    A failure is logged once, and once more when everything is written again; in between it is the node's
    problem.

    Attributes:
        problem: what could not be written, in words; empty if all was.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # What is written apart fails apart: there may be room for a vote, but none for a model.
        self._failing: set[str] = set()
        # Both start now, so that a fresh node is not stuck before its first write.
        self._since = self._worked_at = now()
        self.problem = ""

    @property
    def is_stuck(self) -> bool:
        """Whether something failed and nothing was written for long."""
        return bool(self._failing) and self._now() - max(self._since, self._worked_at) > STUCK_SECONDS

    def note_failure(self, what: str, error: DiskError) -> None:
        """Something was not written."""
        if not self._failing:
            self._since = self._now()
            self.problem = f"{error} (this node tries again by itself)"
            _LOG.error("%s", self.problem)
        self._failing.add(what)

    def note_success(self, what: str) -> None:
        """Something was written."""
        self._worked_at = self._now()
        if what not in self._failing:
            return
        self._failing.remove(what)
        if not self._failing:
            self.problem = ""
            _LOG.warning("the disk takes writes again after %.0f s", self._now() - self._since)


async def write_until_done(
    compute: Compute, health: DiskHealth, what: str, function: Callable[[], Result]
) -> Result:
    """Writes off the event loop, again and again until the disk takes it: a full disk only stops a node.

    Args:
        compute: where to write.
        health: where failures are noted.
        what: names what is written.
        function: writes it; may be called again after it raised a `DiskError`.
    """
    waits = wait_longer()
    while True:
        try:
            result = await compute.run(function)
        except DiskError as error:
            health.note_failure(what, error)
            await asyncio.sleep(next(waits))
            continue
        health.note_success(what)
        return result


def wait_longer() -> Iterator[float]:
    """Seconds to wait after each failure, without end."""
    seconds = FIRST_SECONDS
    while True:
        yield seconds
        seconds = min(GROWTH * seconds, MOST_SECONDS)
