"""Exit codes of a node, which tell a supervisor whether to restart it."""

from cfel.errors import (
    CfelError,
    CredentialsError,
    DiskError,
    InputError,
    NotAdmittedError,
    RunBusyError,
    SilentEdgeServerError,
    StorageError,
)

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

STOPPED = 130
"""Asked to stop."""


def choose_exit_code(error: CfelError) -> int:
    """The exit code of a node that ends with an error."""
    match error:
        case InputError():
            return INVALID
        case NotAdmittedError() | CredentialsError():
            return REJECTED
        case SilentEdgeServerError():
            return SILENT
        # A full disk, or a process that still runs, may not be there the next time.
        case DiskError() | RunBusyError():
            return FAILED
        case StorageError():
            return DAMAGED
        case _:
            return FAILED
