"""Memory of processes on Linux, read from /proc."""

from pathlib import Path


def read_peak_bytes() -> int:
    """Peak resident memory of this process.

    Not from `getrusage`: its value survives exec, so it may be that of a larger parent process.
    """
    return _sum_lines(Path("/proc/self/status"), "VmHWM:")


def read_memory(pid: int, kind: str) -> int:
    """Memory of a process in bytes; 0 if it has ended.

    Args:
        pid: process id.
        kind: "Rss:" for all its pages, "Pss:" for shared pages divided by the number of processes that share
            them, "Private_" for pages of this process alone.
    """
    try:
        return _sum_lines(Path(f"/proc/{pid}/smaps_rollup"), kind)
    except OSError:
        return 0


def find_parent(pid: int) -> int:
    """The parent of a process; 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    # The name of the program may contain spaces and brackets, so split after the last bracket.
    return int(text.rpartition(")")[2].split()[1])


def _sum_lines(file: Path, prefix: str) -> int:
    """Bytes in all lines with that prefix; the kernel counts in kibibytes."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(prefix))
