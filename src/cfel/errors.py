"""Everything cfel raises on purpose, and nothing else.

    CfelError
    ├── InputError          a value handed in is not allowed (also a ValueError)
    │   ├── FleetFileError      a device table, a trace or an edge list cannot be used
    │   └── ExperimentError     an experiment file cannot be used
    ├── RunDirectoryError   a run directory cannot be written, read or gone on with
    ├── DeploymentError     a federation cannot be started or gone on with
    │   ├── UnreachableError    another member did not answer (in time)
    │   └── RefusedError        a message was refused; says why
    ├── DashboardError      the dashboard cannot be served
    └── ...                 later layers hang their own branches here

A caller who catches `CfelError` has caught every foreseen failure; anything else is a defect of cfel.
Messages name the field, where it is, the value and what is allowed.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class CfelError(Exception):
    """Root of the tree."""


class InputError(CfelError, ValueError):
    """A value is not allowed; the message names field, place and value."""


class FleetFileError(InputError):
    """A file with devices, traces or edges cannot be used."""


class ExperimentError(InputError):
    """An experiment file cannot be used."""


class RunDirectoryError(CfelError):
    """A run directory cannot be written, read or gone on with; what was written before stays."""


class DeploymentError(CfelError):
    """A federation cannot be started or gone on with."""


class UnreachableError(DeploymentError):
    """Another member did not answer, or not in time; asking again may help."""


class RefusedError(DeploymentError):
    """A message, a certificate or an upload was refused; the message says why."""


class DashboardError(CfelError):
    """The dashboard cannot be served: its address is taken, or not this machine's."""


def unknown_name(what: str, name: object, allowed: Iterable[str]) -> str:
    """Says that `name` is not one of `allowed`, and which of them comes nearest.

    Args:
        what: what is being named, as the user knows it ("topology.kind", "scheme").
        name: what was given.
        allowed: what could have been given.
    """
    choices = sorted(allowed)
    near = get_close_matches(str(name), choices, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{what}: unknown {name!r}{hint} (allowed: {', '.join(choices)})"
