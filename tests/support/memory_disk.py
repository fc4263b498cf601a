"""A disk made of memory: what `Host.disk` needs, for whole nodes in one process.

It can be full, and lose power: what was synced stays, what was not may be lost, and the write under way is
torn as far as a real disk would tear it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from random import Random
from typing import Self

from cfel.errors import DiskError, RunBusyError


class MemoryDisk:
    """See `Disk`; the files of one or all nodes, by path.

    Attributes:
        files: the content of each.
        is_full: whether writes fail now.
        is_off: whether it has no power, so that nothing reaches it.
        on_write: called with what has reached the disk.
    """

    def __init__(self) -> None:
        self.files: dict[Path, bytes] = {}
        self.is_full = self.is_off = False
        self.on_write: Callable[[Path, bytes], None] = lambda _path, _content: None
        self._reserved: set[Path] = set()
        # What each file was when it was last synced; None if it did not exist.
        self._synced: dict[Path, bytes | None] = {}
        self._tear: tuple[int, Random, Callable[[], None]] | None = None

    def exists(self, path: Path) -> bool:
        """See `Disk`."""
        return path in self.files

    def read(self, path: Path) -> bytes:
        """See `Disk`."""
        if path not in self.files:
            raise DiskError(f"cannot read {path}: it does not exist")
        return self.files[path]

    def replace(self, path: Path, *content: bytes | memoryview) -> None:
        """See `Disk`."""
        whole = b"".join(content)
        # A rename is there or not.
        self._sync(path, whole, lambda chance: chance.choice((self.files.get(path), whole)))

    def append(self, path: Path, length: int, content: bytes) -> None:
        """See `Disk`."""
        kept = self.files.get(path, b"")[:length]

        def tear(chance: Random) -> bytes:
            arrived = chance.randint(0, len(content))
            # A file may have grown before its content arrived.
            return kept + content[:arrived] + bytes(chance.choice((0, len(content) - arrived)))

        self._sync(path, kept + content, tear)

    def replace_unsynced(self, path: Path, content: bytes) -> None:
        """Writes as a program that forgets to sync: readers see it, a power cut may not."""
        self._check(path)
        self._synced.setdefault(path, self.files.get(path))
        self.files[path] = content

    def _check(self, path: Path) -> None:
        if self.is_off or self.is_full:
            raise DiskError(f"cannot write {path}: no space left")

    def _sync(self, path: Path, content: bytes, tear: Callable[[Random], bytes | None]) -> None:
        self._check(path)
        if self._tear is not None:
            left, chance, on_tear = self._tear
            self._tear = (left - 1, chance, on_tear)
            if left == 0:
                self._put(path, tear(chance))
                self._tear, self.is_off = None, True
                on_tear()
                raise DiskError(f"cannot write {path}: the power is gone")
        self._put(path, content)

    def _put(self, path: Path, content: bytes | None) -> None:
        self._synced.pop(path, None)
        if content is None:
            self.files.pop(path, None)
        else:
            self.files[path] = content
            self.on_write(path, content)

    def tear_write(self, after: int, chance: Random, on_tear: Callable[[], None]) -> None:
        """Cuts the power in the middle of a write, that many writes from now."""
        self._tear = (after, chance, on_tear)

    def keep_power(self) -> None:
        """Calls a power cut off that has not come yet."""
        self._tear = None

    def lose_power(self, chance: Random) -> None:
        """Each file that was not synced is as it was, or as it is, by chance."""
        for path, content in sorted(self._synced.items()):
            if chance.random() < 0.75:
                self._put(path, content)
        self._synced.clear()

    def hand_over(self) -> Self:
        """The same disk, for a new process; what the one before still does does not reach it."""
        after, self.is_off = copy(self), True
        return after

    def turn_on(self) -> None:
        """Makes the disk usable again."""
        self.is_off, self._tear = False, None
        self._reserved.clear()

    def remove(self, path: Path) -> None:
        """See `Disk`."""
        if path in self.files and not self.is_off:
            self._synced.setdefault(path, self.files[path])
            del self.files[path]

    def set_aside(self, path: Path) -> Path:
        """See `Disk`."""
        aside = path.with_name(f"{path.name}.damaged")
        self._check(path)
        self.files[aside] = self.files.pop(path)
        return aside

    def list(self, directory: Path) -> list[Path]:
        """See `Disk`."""
        return sorted(path for path in self.files if path.parent == directory)

    def make_directory(self, path: Path) -> None:
        """See `Disk`; directories are where files are."""

    @contextmanager
    def reserve(self, directory: Path) -> Iterator[None]:
        """See `Disk`."""
        if directory in self._reserved:
            raise RunBusyError(f"{directory}: another process works in this directory")
        self._reserved.add(directory)
        try:
            yield
        finally:
            self._reserved.discard(directory)
