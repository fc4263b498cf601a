"""A disk made of memory: what `Host.disk` needs, for whole nodes in one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cfel.errors import DiskError, RunBusyError


class MemoryDisk:
    """See `Disk`; the files of all nodes, by path.

    Attributes:
        files: the content of each.
    """

    def __init__(self) -> None:
        self.files: dict[Path, bytes] = {}
        self._reserved: set[Path] = set()

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
        self.files[path] = b"".join(content)

    def append(self, path: Path, length: int, content: bytes) -> None:
        """See `Disk`."""
        self.files[path] = self.files.get(path, b"")[:length] + content

    def remove(self, path: Path) -> None:
        """See `Disk`."""
        self.files.pop(path, None)

    def set_aside(self, path: Path) -> Path:
        """See `Disk`."""
        aside = path.with_name(f"{path.name}.damaged")
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
