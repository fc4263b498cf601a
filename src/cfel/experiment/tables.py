"""The sections of an experiment as tables: parsed over a preset into dataclasses, and written back.

It knows which section belongs to which dataclass. What the keys mean is checked in those classes, files are
read and written in `files`.
"""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.resources import files
from typing import Any

from cfel.control import Rounds, SchemeParameters
from cfel.deployment.parameters import DeploymentParameters
from cfel.errors import ExperimentError, unknown_name
from cfel.experiment.document import (
    Table,
    check_table,
    keys_of,
    merge,
    parse_section,
    reject_unknown,
    to_table,
)
from cfel.experiment.fleet_section import fleet_to_table, parse_fleet
from cfel.experiment.sections import BudgetParameters, CompressionParameters, DataParameters, ModelParameters
from cfel.learning.aggregation import AggregationParameters
from cfel.learning.local.parameters import LocalParameters
from cfel.rounds.parameters import SimulationParameters
from cfel.system import FleetParameters, TopologyParameters

PRESETS = ("demo", "paper-cifar10", "paper-femnist", "none")
# In the order in which `experiment_toml` writes them.
SECTIONS: Mapping[str, type[Any]] = {
    "rounds": Rounds,
    "fleet": FleetParameters,
    "topology": TopologyParameters,
    "data": DataParameters,
    "model": ModelParameters,
    "local": LocalParameters,
    "scheme": SchemeParameters,
    "compression": CompressionParameters,
    "aggregation": AggregationParameters,
    "budget": BudgetParameters,
    "simulation": SimulationParameters,
    "deployment": DeploymentParameters,
}
FILE_NAMES = (
    *(("topology", "file"), ("data", "path"), ("model", "init")),
    *(("fleet", "conditions", "file"), ("fleet", "availability", "file")),
)
# Those of `class_files` are read into the experiment itself, so that no later reader needs them.
PATHS = (*FILE_NAMES, ("fleet", "conditions", "class_files"))


def parse_sections(document: Table) -> dict[str, Any]:
    """Name, seed and sections of the experiment that a document describes, as far as it or its preset do.

    Raises:
        ExperimentError: a key or value is unknown.
    """
    preset = document.get("preset", "demo")
    if preset not in PRESETS:
        raise ExperimentError(unknown_name("preset", preset, PRESETS))
    given = {key: value for key, value in document.items() if key != "preset"}
    below = _load_preset(preset)
    if "preset" not in document:
        # The demo's narrow-band radios fit the demo's small model; a file that does not name it has others.
        below = {**below, "fleet": {k: v for k, v in below["fleet"].items() if k != "conditions"}}
    whole = merge(below, given)
    reject_unknown("", whole, ["name", "seed", "preset", *SECTIONS])
    parts: dict[str, Any] = {key: whole[key] for key in ("name", "seed") if key in whole}
    for name, parameters in SECTIONS.items():
        if name in whole:
            table = check_table(name, whole[name])
            _reject_misplaced(name, table)
            parts[name] = parse_fleet(table) if name == "fleet" else parse_section(parameters, name, table)
    return parts


def to_document(experiment: Any) -> dict[str, Any]:  # noqa: ANN401 — `Experiment`, which is built upon this
    """The document that describes an experiment, with every default; the reverse of `parse_sections`."""
    head = {"preset": "none", "name": experiment.name, "seed": experiment.seed}
    tables = {name: to_table(getattr(experiment, name)) for name in SECTIONS}
    return head | tables | {"fleet": fleet_to_table(experiment.fleet)}


def _reject_misplaced(name: str, table: Table) -> None:
    """Raises for a key that is unlike any of this section but known in another, naming that one."""
    known = keys_of(SECTIONS[name])
    for key in table.keys() - known.keys():
        homes = [other for other, parameters in SECTIONS.items() if key in keys_of(parameters)]
        # A key that resembles one of this section is more likely misspelt than misplaced.
        if len(homes) == 1 and not get_close_matches(key, known):
            raise ExperimentError(f"{name}.{key}: belongs in [{homes[0]}]")


def _load_preset(name: str) -> Table:
    if name == "none":
        return {}
    return tomllib.loads(files("cfel").joinpath(f"presets/{name}.toml").read_text(encoding="utf-8"))
