"""What a run directory begins with, and whether a run in one may be gone on with."""

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from cfel.durable import read_bytes
from cfel.errors import RunDirectoryError
from cfel.runlog import FleetDescription
from cfel.world import World

MAY_DIFFER = (
    "name",
    "simulation.workers",
    "simulation.checkpoint_every",
    "rounds.stop",
    "rounds.target",
)
"""Keys that change no round, only how a run is carried out and when it ends: it may go on with other values.

`rounds.global` is not among them: plans share what is left of the budgets among the rounds that are left.
"""

SAME_BITS = {"ray": "threads"}
"""Engines that compute what another one does: a run may move from one machine to a cluster, and back."""


def refuse_other_experiment(path: Path, experiment_toml: str, may_differ: Collection[str] = ()) -> None:
    """Raises unless the run in `path` is of this experiment, up to the keys in `MAY_DIFFER`.

    Args:
        path: the run directory.
        experiment_toml: what is to be run there.
        may_differ: further keys that may have another value.

    Raises:
        RunDirectoryError: naming the first key that differs, and both values.
    """
    try:
        then = _flat(tomllib.loads(read_bytes(path / "experiment.toml").decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunDirectoryError(f"{path / 'experiment.toml'} is damaged: {error}") from error
    now = _flat(tomllib.loads(experiment_toml))
    for key in sorted(then.keys() | now.keys()):
        before, asked = then.get(key), now.get(key)
        ignored = key in MAY_DIFFER or key in may_differ or key.startswith("deployment.")
        if not ignored and _meaning(key, before) != _meaning(key, asked):
            raise RunDirectoryError(
                f"{path} holds a run with {key} = {before!r}, not {asked!r}: "
                "resume it as it was, or choose another directory"
            )


def _meaning(key: str, value: Any) -> Any:  # noqa: ANN401 — any value of a TOML document
    return SAME_BITS.get(value, value) if key == "simulation.engine" else value


def _flat(table: dict[str, Any], place: str = "") -> dict[str, Any]:
    """A document's values by their dotted keys."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= _flat(value, f"{place}{key}.") if isinstance(value, dict) else {f"{place}{key}": value}
    return values


def fleet_description(world: World) -> FleetDescription:
    """Clusters, backhaul and budgets, as a report needs them."""
    return FleetDescription(
        cluster=tuple(world.fleet.cluster.tolist()),
        edges=tuple(world.backhaul.edges),
        mixing=tuple(tuple(row) for row in world.backhaul.weights.tolist()),
        seconds_budget=world.budget.seconds,
        joules_budget=world.budget.joules,
    )
