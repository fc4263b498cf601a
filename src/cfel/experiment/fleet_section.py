"""The experiment file's `[fleet]`: conditions of several kinds, classes from files, availability.

Everything else of the file is in `files`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cfel import validation
from cfel.control import Rounds
from cfel.durable import read_bytes
from cfel.errors import ExperimentError, InputError, StorageError, unknown_name
from cfel.experiment.document import Table, check_table, parse_section, to_table
from cfel.runlog.toml_text import parse_toml
from cfel.system import (
    Availability,
    DeviceClass,
    Fleet,
    FleetParameters,
    HardwareConditions,
    RandomConditions,
    TraceConditions,
    TraceParameters,
    describe_short_trace,
)
from cfel.system.devices import parse_class_file

CONDITIONS = {"random": RandomConditions, "classes": HardwareConditions, "trace": TraceParameters}
_PLACE = "fleet.conditions"
_MAX_BYTES = 1024**2


def reject_short_trace(parameters: FleetParameters, fleet: Fleet, rounds: Rounds) -> None:
    """Raises for a trace that is shorter than the run, if it may not be."""
    given = parameters.conditions
    may_not = isinstance(given, TraceParameters) and given.after_end == "reject"
    if isinstance(fleet.model, TraceConditions) and may_not:
        short = describe_short_trace(fleet.model, rounds.global_rounds, rounds.edge_rounds)
        if short is not None:
            raise InputError(f"fleet.conditions.after_end = 'reject': {short}")


def parse_fleet(table: Table) -> FleetParameters:
    """Converts the section to its dataclass; reads the files of device classes that it names."""
    parts = dict(table)
    if "conditions" in parts:
        parts["conditions"] = _parse_conditions(check_table(_PLACE, parts["conditions"]))
    if "availability" in parts:
        availability = check_table("fleet.availability", parts["availability"])
        parts["availability"] = parse_section(Availability, "fleet.availability", availability)
    return parse_section(FleetParameters, "fleet", parts)


def _parse_conditions(table: Table) -> RandomConditions | HardwareConditions | TraceParameters:
    kind = table.get("kind", "random")
    if not isinstance(kind, str) or kind not in CONDITIONS:
        raise ExperimentError(unknown_name(f"{_PLACE}.kind", kind, CONDITIONS))
    rest = {key: value for key, value in table.items() if key != "kind"}
    if kind == "classes":
        rest = _gather_classes(rest)
    return parse_section(CONDITIONS[kind], _PLACE, rest)


def _gather_classes(table: Mapping[str, Any]) -> dict[str, Any]:
    """Puts classes of files before those of the experiment file, which take precedence."""
    rest = dict(table)
    classes: list[DeviceClass] = []
    place = f"{_PLACE}.class_files"
    for i, path in enumerate(validation.check_list(place, rest.pop("class_files", []))):
        classes += read_class_file(Path(validation.check_text(f"{place}[{i}]", path)))
    if "extra_classes" in rest:
        place = f"{_PLACE}.extra_classes"
        rows = enumerate(validation.check_list(place, rest["extra_classes"]))
        places = ((f"{place}[{i}]", row) for i, row in rows)
        classes += [parse_section(DeviceClass, at, check_table(at, row)) for at, row in places]
    return {**rest, "extra_classes": classes} if classes else rest


def read_class_file(path: Path) -> list[DeviceClass]:
    """Reads a file of device classes.

    Raises:
        InputError: it cannot be read, or a class in it cannot be used.
    """
    try:
        document = parse_toml(read_bytes(path, max_bytes=_MAX_BYTES, follow_links=True).decode())
    except StorageError as error:
        raise InputError(str(error)) from error
    except ValueError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    return [each.device for each in parse_class_file(document, str(path)).classes]


def fleet_to_table(fleet: FleetParameters) -> dict[str, Any]:
    """The section as a TOML table, with every default."""
    kind = next(name for name, parameters in CONDITIONS.items() if isinstance(fleet.conditions, parameters))
    conditions = to_table(fleet.conditions)
    if "extra_classes" in conditions:
        conditions["extra_classes"] = [to_table(row) for row in fleet.conditions.extra_classes]  # type: ignore[union-attr]
    rest = {key: value for key, value in to_table(fleet).items() if key not in ("conditions", "availability")}
    return {**rest, "conditions": {"kind": kind, **conditions}, "availability": to_table(fleet.availability)}
