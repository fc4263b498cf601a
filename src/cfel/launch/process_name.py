"""Gives a process a name that `ps` and `top` show, on Linux; elsewhere this does nothing.

The nodes of `cfel up` are forked from one server process and would all be called like it. There is no
function for this in the standard library: the kernel keeps the short name, and reads the long one from the
memory where the command line was put when the process started.
"""

import ctypes
import sys
from pathlib import Path

_PR_SET_NAME = 15
_MOST_SHORT = 15
# Fields of /proc/self/stat behind the name in parentheses: where the command line begins and ends.
_ARG_START, _ARG_END = 45, 46


def name_process(name: str) -> None:
    """Sets the name of this process; a system that does not allow it is left as it is."""
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:_MOST_SHORT], 0, 0, 0)
        _replace_command_line(name.encode())
    except (OSError, AttributeError, ValueError, IndexError):
        return


def _replace_command_line(name: bytes) -> None:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    if 0 < begin < end:
        ctypes.memmove(begin, name[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)
