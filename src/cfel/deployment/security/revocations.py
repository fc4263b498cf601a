"""The list of revoked certificates: read again whenever its file changes, never less strict by accident.

One serial number in hexadecimal per line. A bad line, an unreadable file or a missing file is reported once,
and certificates that were revoked before stay revoked. Calls are checked against it in `identity`.
"""

from collections.abc import Callable
from pathlib import Path

from cfel.durable import read_bytes
from cfel.errors import StorageError

OnProblem = Callable[[str], None]
"""Receives a message that says what is wrong with the list."""

_MOST_SHOWN = 40
_MAX_BYTES = 64 * 1024**2


class Revocations:
    """The serial numbers of revoked certificates.

    Args:
        path: the file; it need not exist.
        on_problem: called when a change of the file leaves it with a fault.
    """

    def __init__(self, path: Path, on_problem: OnProblem) -> None:
        self._path, self._on_problem = path, on_problem
        self._seen: tuple[int, int, int] | None = None
        self._revoked: frozenset[int] = frozenset()

    def __contains__(self, serial: object) -> bool:
        """Whether a serial number is on the list as the file is now."""
        self._refresh()
        return serial in self._revoked

    def _refresh(self) -> None:
        try:
            found = self._path.stat()
        except OSError as error:
            if self._seen:
                self._on_problem(f"{self._path.name}: the previous list stays in force: {error.strerror}")
            self._seen = None
            return
        # The inode shows a file that was replaced within one tick of the clock by one of the same size.
        now = (found.st_mtime_ns, found.st_size, found.st_ino)
        if now != self._seen:
            self._read()
        self._seen = now

    def _read(self) -> None:
        try:
            content = read_bytes(self._path, max_bytes=_MAX_BYTES, follow_links=True)
        except StorageError as error:
            self._on_problem(f"{self._path.name}: the previous list stays in force: {error}")
            return
        lines = content.decode("ascii", "replace").splitlines()
        serials = {number: _parse_serial(line) for number, line in enumerate(lines, 1) if line.strip()}
        good = frozenset(serial for serial in serials.values() if serial is not None)
        bad = [number for number, serial in serials.items() if serial is None]
        for number in bad:
            shown = lines[number - 1].strip()[:_MOST_SHOWN]
            self._on_problem(f"{self._path.name}, line {number}: {shown!r} is not a serial number")
        # A list with bad lines may be half written, so it readmits nobody.
        self._revoked = good | self._revoked if bad else good


def _parse_serial(line: str) -> int | None:
    try:
        return int(line.strip(), 16)
    except ValueError:
        return None
