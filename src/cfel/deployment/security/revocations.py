"""The list of revoked certificates: read again whenever its file changes, and never less strict by accident.

One serial number in hexadecimal per line. A line that is none, a file that cannot be read or is gone: each is
told once, and whoever was revoked before stays so.
"""

from collections.abc import Callable
from pathlib import Path

OnProblem = Callable[[str], None]
"""Told in words what is wrong with the list."""

_MOST_SHOWN = 40


class Revocations:
    """The serial numbers that are not let in any more.

    Args:
        path: the file; it need not exist.
        on_problem: told of every change of the file that leaves it with a fault.
    """

    def __init__(self, path: Path, on_problem: OnProblem) -> None:
        self._path, self._on_problem = path, on_problem
        self._seen: tuple[int, int, int] | None = None
        self._revoked: frozenset[int] = frozenset()

    def __contains__(self, serial: object) -> bool:
        """Whether a serial number is on the list, as it is now."""
        self._look()
        return serial in self._revoked

    def _look(self) -> None:
        try:
            found = self._path.stat()
        except OSError as error:
            if self._seen:
                self._on_problem(f"{self._path.name}: the last list stays: {error.strerror}")
            self._seen = None
            return
        now = (found.st_mtime_ns, found.st_size, found.st_ino)
        if now != self._seen:
            self._read()
        self._seen = now

    def _read(self) -> None:
        try:
            lines = self._path.read_bytes().decode("ascii", "replace").splitlines()
        except OSError as error:
            self._on_problem(f"{self._path.name}: the last list stays: {error.strerror}")
            return
        serials = {number: _serial(line) for number, line in enumerate(lines, 1) if line.strip()}
        good = frozenset(serial for serial in serials.values() if serial is not None)
        bad = [number for number, serial in serials.items() if serial is None]
        for number in bad:
            shown = lines[number - 1].strip()[:_MOST_SHOWN]
            self._on_problem(f"{self._path.name}, line {number}: {shown!r} is no serial number")
        # Of a list with faults nobody knows whom it was meant to let in again.
        self._revoked = good | self._revoked if bad else good


def _serial(line: str) -> int | None:
    try:
        return int(line.strip(), 16)
    except ValueError:
        return None
