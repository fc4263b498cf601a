"""Exit codes of a node, which tell a supervisor whether to restart it; docs/guides/deploy.md lists them."""

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
"""Starting it again may help."""
INVALID = 2
REJECTED = 3
SILENT = 4
DAMAGED = 5


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
