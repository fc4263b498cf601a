"""Which trackers there are, and the error if the package of one is missing, before a run starts."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType

from cfel.errors import InputError, unknown_name
from cfel.extras import MissingExtraError, install_command
from cfel.tracking.sink import Tracker

TRACKERS: Mapping[str, str] = MappingProxyType(
    {
        "tensorboard": "",
        "mlflow": "mlflow",
        "wandb": "wandb",
        "trackio": "trackio",
    }
)
"""Every tracker, with the package it needs. TensorBoard's files are written without TensorBoard."""


def choose_trackers(wanted: Sequence[str | Tracker]) -> dict[str, Tracker]:
    """The trackers with some names; functions are kept as they are, under their own names.

    Raises:
        InputError: there is no tracker of that name, or it is neither a name nor a function.
        MissingExtraError: its package is not installed.
    """
    return dict(_choose(each) for each in wanted)


def _choose(wanted: str | Tracker) -> tuple[str, Tracker]:
    if not isinstance(wanted, str):
        if not callable(wanted):
            raise InputError(f"track: {wanted!r} is neither the name of a tracker nor a function")
        return getattr(wanted, "__qualname__", type(wanted).__qualname__), wanted
    if wanted not in TRACKERS:
        raise InputError(unknown_name("track", wanted, TRACKERS))
    package = TRACKERS[wanted]
    if package and find_spec(package) is None:
        raise MissingExtraError(
            f"track {wanted!r}: {package} is not installed; install it with {install_command(package)}"
        )

    def open_sink(run: object) -> object:
        # On first use, in the thread of the trackers: some packages take seconds to import.
        return import_module(f"cfel.tracking.{wanted}_sink").open_sink(run)

    return wanted, open_sink  # type: ignore[return-value]
