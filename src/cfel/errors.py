"""Every error cfel raises on purpose, and nothing else.

    CfelError
    ├── InputError          a value is not allowed (also a ValueError)
    │   ├── FleetFileError      a device table, a trace or an edge list cannot be used
    │   └── ExperimentError     an experiment file cannot be used
    ├── StorageError        a file cannot be written or read, or its content is damaged
    │   ├── DamagedError        a file is not what was written, or is missing; there is nothing to retry
    │   ├── DiskError           the operating system did not read or write; a retry may help
    │   └── RunDirectoryError   a run directory cannot be used or resumed
    │       └── RunBusyError        another process is writing it
    ├── DivergedError       training produced a number that is not finite
    ├── DeploymentError     a federation cannot be started or resumed
    │   ├── CredentialsError    a certificate, key or authority is missing or wrong; names the file
    │   ├── UnreachableError    another node did not answer (in time)
    │   ├── SilentEdgeServerError   a device's edge server has been silent for too long
    │   ├── AllDivergedError    the training of all devices diverged
    │   └── RejectedError       a request was rejected; says why
    │       ├── InvalidAnswerError  another node's answer is not valid
    │       ├── StaleTermError      its term is over: another coordinator has been elected
    │       └── NotAdmittedError    the caller may not call at all, whatever it sends
    │           └── VersionError        it speaks no version of the protocol that the other side knows
    ├── DashboardError      the dashboard cannot be served
    ├── ScaleoutError       a Ray cluster cannot be reached, or lost more than can be recovered
    ├── WorkerError         a worker process failed or ended
    └── ...                 some packages add their own branch

Beside the tree, `BudgetWarning` is what Python users get where a run broke a budget or a plan its limits.

A caller who catches `CfelError` catches every expected failure; any other exception is a defect of cfel.
Messages name the field, where it is, its value and what is allowed.
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial
from typing import Any

from cfel.wording import show

_MAX_COMPARED = 100


class CfelError(Exception):
    """Root of the tree."""


class BudgetWarning(UserWarning):
    """A run broke a budget, or a plan its limits."""


def describe_error(error: Exception) -> str:
    """An exception's message, without the number and the path that an `OSError` adds."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def find_expected_error(group: BaseExceptionGroup[BaseException]) -> CfelError | None:
    """Returns the first error of a group of tasks if all of them are a `CfelError`; None otherwise."""
    _, others = group.split(CfelError)
    if others is not None:
        return None
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first if isinstance(first, CfelError) else None


class InputError(CfelError, ValueError):
    """A value is not allowed; the message names the field, where it is and the value."""


class FleetFileError(InputError):
    """A file with devices, traces or edges cannot be used."""


class ExperimentError(InputError):
    """An experiment file cannot be used."""


class StorageError(CfelError):
    """A file cannot be written or read, or its content is damaged; earlier content is kept."""


class DamagedError(StorageError):
    """The content of a file is not what was written to it, or the file is missing."""


class DiskError(StorageError):
    """The operating system did not read or write a file, as on a full disk; a retry may help."""


class RunDirectoryError(StorageError):
    """A run directory cannot be used or resumed; the files in it are left as they are."""


class RunBusyError(RunDirectoryError):
    """Another process is writing the run."""


class DeploymentError(CfelError):
    """A federation cannot be started or resumed."""


class CredentialsError(DeploymentError):
    """A certificate, key or authority is missing or not what it should be; the message names the file."""


class UnreachableError(DeploymentError):
    """Another node did not answer, or not in time; a retry may help."""


class SilentEdgeServerError(DeploymentError):
    """A device's edge server has been silent for so long that the experiment is probably over."""


class AllDivergedError(DeploymentError):
    """The training of all devices of a federation diverged, so that nothing is left to learn from."""


class RejectedError(DeploymentError):
    """A request, a certificate or an upload was rejected; the message says why."""


class InvalidAnswerError(RejectedError):
    """Another node's answer is not valid; that node rejected nothing."""


class StaleTermError(RejectedError):
    """A command of an earlier term: another coordinator has been elected since."""


class NotAdmittedError(RejectedError):
    """The caller may not call: its certificate, its cluster or its experiment is the wrong one."""


class VersionError(NotAdmittedError):
    """The two sides have no version of the protocol in common."""


class DashboardError(CfelError):
    """The dashboard cannot be served: its address is in use, or is not one of this machine."""


class DivergedError(CfelError):
    """A device's training produced a number that is not finite.

    Args:
        what: what is not finite, as "the loss of local step 2 is nan".
        device: its number.
        global_round: from 0.
        edge_round: from 0.
        learning_rate: the likely cause.
        cluster: the device's cluster, where it is known.
        advice: what to do about it, where that is known.
    """

    def __init__(
        self,
        what: str,
        *,
        device: int,
        global_round: int,
        edge_round: int,
        learning_rate: float,
        cluster: int | None = None,
        advice: str = "",
    ) -> None:
        self.what, self.device, self.cluster = what, device, cluster
        self.global_round, self.edge_round = global_round, edge_round
        self.learning_rate, self.advice = learning_rate, advice
        of_cluster = "" if cluster is None else f" of cluster {cluster}"
        super().__init__(
            f"training diverged at device {device}{of_cluster} in global round {global_round + 1}, edge "
            f"round {edge_round} (numbered as in rounds.jsonl and plans/): {what}; most likely "
            f"local.learning_rate = {learning_rate:g} is too large{advice}"
        )

    def add_details(self, *, cluster: int | None = None, advice: str = "") -> "DivergedError":
        """Returns the same error with its cluster or advice filled in."""
        added = {"cluster": self.cluster if cluster is None else cluster, "advice": advice or self.advice}
        return DivergedError(self.what, **self._list_details() | added)

    def __reduce__(self) -> tuple[Callable[[], "DivergedError"], tuple[()]]:
        """Lets the error cross a process boundary: pickle's default would pass the message as `what`."""
        return partial(DivergedError, self.what, **self._list_details()), ()

    def _list_details(self) -> dict[str, Any]:
        names = ("device", "global_round", "edge_round", "learning_rate", "cluster", "advice")
        return {name: getattr(self, name) for name in names}


class WorkerError(CfelError):
    """A worker process failed unexpectedly, or ended."""


class ScaleoutError(CfelError):
    """A Ray cluster cannot be reached or used, or lost too much to recover; checkpoints stay usable."""


def unknown_name(what: str, name: object, allowed: Iterable[str]) -> str:
    """Says that the `name` of something ("topology.kind") is not allowed, and which one is closest."""
    choices = sorted(allowed)
    # Only short names can be misspelt ones, and comparing long ones takes long.
    given = show(name)
    by_spelling = {_spell(choice): choice for choice in choices}
    near = get_close_matches(_spell(str(name)), by_spelling, n=1) if len(given) <= _MAX_COMPARED else []
    hint = f"; did you mean {by_spelling[near[0]]!r}?" if near else ""
    return f"{what}: unknown {given}{hint} (allowed: {', '.join(choices) or 'none'})"


def _spell(name: str) -> str:
    """A name as the code would spell it: HCEF+ and CEF-C in texts are `hcef_plus` and `cef_c`."""
    return name.casefold().replace("+", "_plus").replace("-", "_").replace(" ", "_")
