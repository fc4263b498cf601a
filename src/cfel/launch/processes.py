"""The processes of a federation on one machine: started, restarted when they die, and stopped.

Knows exit codes and signals; what a node does is in `node`, what `cfel up` waits for in `federation`.
"""

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from cfel.errors import (
    AllDivergedError,
    CfelError,
    CredentialsError,
    DeploymentError,
    DiskError,
    InputError,
    NotAdmittedError,
    RunBusyError,
    SilentEdgeServerError,
    StorageError,
    VersionError,
)
from cfel.launch.logs import LogSettings, start_logging
from cfel.launch.node import read_node, run_node

# Exit codes of a node, which tell a supervisor whether to restart it.
FAILED = 1
"""Failed: an address in use, the disk, a clock that is behind. Restarting it may help."""
INVALID = 2
"""Invalid usage or configuration: arguments, node file, experiment, samples, the dashboard's token."""
REJECTED = 3
"""Not admitted: certificate or key missing, damaged, expired or revoked, or another experiment. The message
names the file and the command."""
SILENT = 4
"""A device whose edge server has been silent for `deployment.give_up_seconds`: it missed the end, or the edge
server is gone for good. If the run continues, start it again."""
DAMAGED = 5
"""Its directory is damaged and cannot be recovered, or is of another experiment or version. The message says
which file, and what to do."""
DIVERGED = 6
"""An edge server of a run in which the training of all devices diverged. Started again it goes on from the
last round, most likely to the same end: use a smaller `local.learning_rate` in a new run."""

OTHER_VERSION = 7
"""The others speak other versions of the protocol: upgrade the older ones, one version at a time."""
BUSY = 8
"""Its directory is in use by another process: the node runs already, perhaps started by hand."""

STOPPED = 130
"""Asked to stop."""

FINAL = (INVALID, REJECTED, SILENT, DAMAGED, DIVERGED, OTHER_VERSION, BUSY)
"""Codes after which no supervisor should start a node again: somebody has to change something first."""


def choose_exit_code(error: CfelError) -> int:
    """The exit code of a node that ends with an error."""
    match error:
        case InputError():
            return INVALID
        case VersionError():
            return OTHER_VERSION
        case NotAdmittedError() | CredentialsError():
            return REJECTED
        case SilentEdgeServerError():
            return SILENT
        case AllDivergedError():
            return DIVERGED
        # A full disk may not be full the next time.
        case DiskError():
            return FAILED
        case RunBusyError():
            return BUSY
        case StorageError():
            return DAMAGED
        case _:
            return FAILED


_PR_SET_NAME = 15
_MOST_SHORT = 15
# Fields of /proc/self/stat behind the name in parentheses: where the command line begins and ends.
_ARG_START, _ARG_END = 45, 46


def name_process(name: str) -> None:
    """Sets the name of this process that `ps` and `top` show, on Linux; elsewhere this does nothing.

    The nodes of `cfel up` are forked from one server process and would all be called like it. There is no
    function for this in the standard library: the kernel keeps the short name, and reads the long one from
    the memory where the command line was put when the process started.
    """
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


STOP_SECONDS = 10.0
MOST_RESTARTS = 20

_LOG = logging.getLogger(__name__)


@dataclass
class _NodeProcess:
    configuration: Path
    process: BaseProcess
    restarts: int = 0
    over: bool = False

    @property
    def is_device(self) -> bool:
        return self.configuration.stem.startswith("device-")

    @property
    def is_rejected(self) -> bool:
        return self.process.exitcode == REJECTED


class Processes:
    """The processes of a federation; a context manager that leaves none behind.

    They are forked from one server process that has imported all code once, so that they start quickly and
    share its memory. Each has a configuration file.
    """

    def __init__(self, configurations: Iterable[Path]) -> None:
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["cfel.launch.processes"])
        self._processes = [_NodeProcess(path, self._start(path)) for path in configurations]

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def pid(self, name: str) -> int:
        """The process id of a node, such as "edge-0"."""
        (found,) = (each for each in self._processes if each.configuration.stem == name)
        return found.process.pid or 0

    @property
    def are_over(self) -> bool:
        """Whether all nodes have ended, as `restart_dead` saw them last."""
        return all(each.over for each in self._processes)

    def restart_dead(self) -> list[str]:
        """Restarts processes that have died.

        Returns:
            The devices that were rejected since the last call; the others continue without them.

        Raises:
            DeploymentError: one of them cannot continue.
        """
        rejected = []
        for each in self._processes:
            code = each.process.exitcode
            if code is None or each.over:
                continue
            if code == 0:
                each.over = True
            elif code == REJECTED and each.is_device:
                each.over = True
                rejected.append(each.configuration.stem)
            elif code == DIVERGED:
                raise AllDivergedError(
                    "training diverged at all devices, so nothing is left to learn from; most likely "
                    f"local.learning_rate is too large. See {each.configuration.with_suffix('.log')}"
                )
            elif code in (INVALID, REJECTED, DAMAGED, OTHER_VERSION) or each.restarts >= MOST_RESTARTS:
                log = each.configuration.with_suffix(".log")
                raise DeploymentError(f"{each.configuration.stem} ended with code {code}, see {log}")
            else:
                each.process, each.restarts = self._start(each.configuration), each.restarts + 1
        if rejected and all(each.is_rejected for each in self._processes if each.is_device):
            raise DeploymentError(
                "all devices were rejected; --resume gives those that are not revoked another try"
            )
        return rejected

    def wait(self, seconds: float) -> None:
        """Returns when all processes have ended, or after `seconds`."""
        deadline = time.monotonic() + seconds
        for each in self._processes:
            each.process.join(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Ends all processes; kills those that do not end in time."""
        for each in self._processes:
            if each.process.exitcode is None and each.process.pid is not None:
                # A suspended process would not see the signal to stop.
                os.kill(each.process.pid, signal.SIGCONT)
                each.process.terminate()
        self.wait(STOP_SECONDS)
        for each in self._processes:
            if each.process.exitcode is None:
                each.process.kill()
                each.process.join()

    def _start(self, configuration: Path) -> BaseProcess:
        process = self._context.Process(target=_run_process, args=(configuration,), name=configuration.stem)
        process.start()
        return process


def _run_process(configuration: Path) -> None:
    """Runs one node in its own process, with its log in a file."""
    # Ctrl-C reaches the whole process group; the parent decides when nodes stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name_process(f"cfel {configuration.stem}")
    start_logging(configuration.with_suffix(".log"), _read_log_settings(configuration))
    try:
        run_node(configuration)
    except CfelError as error:
        _LOG.error("%s", error)
        raise SystemExit(choose_exit_code(error)) from error
    except Exception:  # noqa: BLE001 — any failure must be in the node's log before the process ends
        _LOG.exception("the node failed")
        raise SystemExit(1) from None


def _read_log_settings(configuration: Path) -> LogSettings:
    """The node's settings; the default if its file cannot be read, which `run_node` will report."""
    try:
        return read_node(configuration).log
    except CfelError:
        return LogSettings()
