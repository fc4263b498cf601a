"""Tables of an experiment file: merged, changed from the command line, converted to dataclasses and back.

Also the sections that no other package defines, and how `[fleet]` is read and written.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np

from cfel import validation
from cfel.control import Rounds
from cfel.durable import read_bytes
from cfel.errors import ExperimentError, InputError, StorageError, unknown_name
from cfel.membership import FleetChange, RoundLoss
from cfel.system.conditions import RandomConditions
from cfel.system.device_classes import DeviceClass, HardwareConditions, parse_class_file
from cfel.system.device_tables import TraceConditions, TraceParameters, describe_short_trace
from cfel.system.fleet import Availability, Fleet, FleetParameters
from cfel.system.value_bits import FLOAT_BITS, ValueBits, check_bits
from cfel.validation import Range, check_fields, parse_toml
from cfel.wording import show

Table = Mapping[str, Any]
Parameters = TypeVar("Parameters")

MAIN_KEYS: Mapping[str, str] = {
    "data": "name",
    "model": "name",
    "scheme": "name",
    "compression": "kind",
    "topology": "kind",
}
"""The key that a section stands for where it is given as a name or an object instead of a table."""


def parse_section(parameters: type[Parameters], place: str, table: Table) -> Parameters:
    """Converts a table to its dataclass.

    A key is the name of a field, or the `key` in the field's metadata where the file uses another name.
    """
    known = keys_of(parameters)
    reject_unknown(place, table, known)
    for key, entry in known.items():
        needed = entry.default is MISSING and entry.default_factory is MISSING
        if needed and key not in table:
            raise ExperimentError(f"{place}.{key}: is missing")
    return parameters(**{known[key].name: _freeze(value) for key, value in table.items()})


def keys_of(parameters: Any) -> dict[str, Field[Any]]:  # noqa: ANN401 — a dataclass or an instance of one
    """The fields of parameters by their keys in the file."""
    return {entry.metadata.get("key", entry.name): entry for entry in fields(parameters)}


def _freeze(value: object) -> object:
    """TOML's lists as tuples, at every depth."""
    return tuple(_freeze(entry) for entry in value) if isinstance(value, list) else value


def check_table(place: str, value: object) -> Table:
    """Returns the value if it is a table, else raises."""
    if not isinstance(value, Mapping):
        key = MAIN_KEYS.get(place)
        hint = f"; write {place}.{key} = {show(value)}" if key and isinstance(value, str) else ""
        raise ExperimentError(f"{place} = {show(value)}: must be a table{hint}")
    return value


def resolve_paths(document: Table, folder: Path, places: Sequence[tuple[str, ...]]) -> Table:
    """Makes the file names at the given places absolute; relative ones start from the folder."""
    for *tables, key in places:
        inner: Any = document
        for name in tables:
            inner = inner.get(name) if isinstance(inner, Mapping) else None
        named = inner.get(key) if isinstance(inner, Mapping) else None
        if isinstance(named, str | list):
            located: Table = {key: _locate(named, folder.absolute())}
            for name in reversed(tables):
                located = {name: located}
            document = merge(document, located)
    return document


def _locate(named: Any, folder: Path) -> Any:  # noqa: ANN401 — any value of a TOML document
    """A file name, or a list of them; what is neither is left to the check of its section."""
    if isinstance(named, list):
        return [_locate(each, folder) for each in named]
    return str(folder / named) if isinstance(named, str) else named


def reject_unknown(place: str, table: Table, allowed: Sequence[str] | Mapping[str, Any]) -> None:
    """Raises for the first key that is not allowed, naming the nearest allowed one."""
    for key in table:
        if key not in allowed:
            raise ExperimentError(unknown_name(f"[{place}]" if place else "top level", key, allowed))


def merge(below: Table, above: Table) -> dict[str, Any]:
    """Lays `above` over `below`, table by table; conditions of another kind replace those below."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = dict(value) if _are_other_conditions(key, old, value) else merge(old, value)
        else:
            result[key] = value
    return result


def _are_other_conditions(key: str, old: Table, new: Table) -> bool:
    """Each kind of conditions has its own keys, so the keys of another kind must not be merged in."""
    kind = old.get("kind", "random")
    return key == "conditions" and new.get("kind", kind) != kind


def parse_assignment(change: str) -> Table:
    """Reads an assignment `a.b=value` as a table; a bare word counts as text."""
    name, sign, text = change.partition("=")
    if not sign or not name.strip():
        raise ExperimentError(f"--set {change!r}: must look like section.key=value")
    try:
        return tomllib.loads(f"{name} = {text}")
    except tomllib.TOMLDecodeError:
        # So that `--set scheme.name=cef` works without quotes that a shell would take away.
        quoted = text.strip().replace("\\", "\\\\").replace('"', '\\"')
        try:
            return tomllib.loads(f'{name} = "{quoted}"')
        except tomllib.TOMLDecodeError as error:
            raise ExperimentError(f"--set {change!r}: {error}") from error


def parse_change(change: str) -> tuple[str, Any]:
    """Reads an assignment as a dotted key and its value, which may be a table."""
    key = change.partition("=")[0].strip()
    value: Any = parse_assignment(change)
    for name in key.split("."):
        if name.strip() not in value:
            raise ExperimentError(f"{key}: must look like section.key, without quotes")
        value = value[name.strip()]
    return key, value


def to_table(parameters: object) -> dict[str, Any]:
    """Converts a dataclass to a TOML table; leaves `None` out, as TOML has no null."""
    values = {key: getattr(parameters, entry.name) for key, entry in keys_of(parameters).items()}
    return {key: _to_toml(value) for key, value in values.items() if value is not None}


def _to_toml(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_to_toml(entry) for entry in value]
    if isinstance(value, Mapping):
        return {key: _to_toml(entry) for key, entry in value.items()}
    return value.item() if isinstance(value, np.generic) else value


PRESETS = ("demo", "paper-cifar10", "paper-femnist", "best", "none")
CONDITIONS = {"random": RandomConditions, "classes": HardwareConditions, "trace": TraceParameters}
FILE_NAMES = (
    *(("topology", "file"), ("data", "path"), ("model", "init")),
    *(("fleet", "conditions", "file"), ("fleet", "availability", "file")),
)
# Those of `class_files` are read into the experiment itself, so that no later reader needs them.
PATHS = (*FILE_NAMES, ("fleet", "conditions", "class_files"))
_PLACE = "fleet.conditions"
# A class takes less than a kilobyte.
_MAX_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """The experiment file's `[model]`."""

    name: str = "mlp"  # a built-in model, an entry point's name, or "module:function"
    init: str | None = None  # a safetensors file to start from, instead of random values
    # How many trained parameters the model has, ≥ 1; needed only to plan without its data.
    parameters: Annotated[int, Range(least=1)] | None = None
    # Charge uploads and backhaul as for a model with this many parameters, in caps, budgets, accounts and
    # bytes; by default as for the model itself.
    charged_parameters: Annotated[int, Range(least=1)] | None = None
    # Names of parameters that stay on devices, with *, ? and [...] as in file names; neither sent nor
    # aggregated nor charged.
    personal: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields("model", self)


@dataclass(frozen=True, slots=True)
class CompressionParameters:
    """The experiment file's `[compression]`."""

    kind: str = "topk"  # a built-in compressor, an entry point's name, or "module:function"
    # Whether devices keep what compression drops and add it to their next update.
    error_feedback: bool = False
    # Bits per value that devices choose from, some of 4, 8, 16 and 32, for `topk`; θ is then a share of the
    # bits of a full upload, and realised costs count the bits that were sent. Without it, values have 32 bits
    # and θ is a share of entries.
    bits: tuple[Annotated[int, Range(least=1)], ...] | None = None
    # Share of a model's entries that an edge server sends its devices, as differences from what they trained
    # from before, in (0, 1]; 1 with 32 bits for whole models.
    download_theta: Annotated[float, Range(above=0, most=1)] = 1.0
    download_bits: int = FLOAT_BITS  # per value of such a difference: 4, 8, 16 or 32

    def __post_init__(self) -> None:
        check_fields("compression", self)
        check_bits("compression.download_bits", self.download_bits)
        if self.bits is not None:
            object.__setattr__(self, "bits", ValueBits(tuple(self.bits)).choices)
            if self.kind != "topk":
                raise InputError(f"compression.bits: only with kind = 'topk', not {self.kind!r}")

    @property
    def downloads_differences(self) -> bool:
        """Whether devices fetch compressed differences instead of whole models."""
        return self.download_theta < 1 or self.download_bits < FLOAT_BITS


_Budget = Annotated[float, Range(above=0, finite=False)] | None


@dataclass(frozen=True, slots=True)
class BudgetParameters:
    """The experiment file's `[budget]`: of the whole run; None for no limit."""

    seconds: _Budget = None  # time, > 0
    joules: _Budget = None  # energy of all devices together, > 0
    # Both as a share of what CEF would use in this experiment, > 0; a number given for one of them takes
    # precedence.
    share_of_cef: _Budget = None
    # Global rounds of CEF that the share refers to, ≥ 1; by default as many as the run has. Rounds of other
    # schemes may be shorter, and more of them fit into the same budgets.
    cef_rounds: Annotated[int, Range(least=1)] | None = None

    def __post_init__(self) -> None:
        check_fields("budget", self)
        if self.share_of_cef is not None and 10 < self.share_of_cef <= 100:
            raise InputError(
                f"budget.share_of_cef = {self.share_of_cef:g}: is a share, not a percentage; for "
                f"{self.share_of_cef:g} % write {self.share_of_cef / 100:g}"
            )


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
    for name, kind in (("changes", FleetChange), ("losses", RoundLoss)):
        if name in parts:
            rows = enumerate(validation.check_list(f"fleet.{name}", parts[name]))
            places = ((f"fleet.{name}[{i}]", row) for i, row in rows)
            parts[name] = [parse_section(kind, at, check_table(at, row)) for at, row in places]
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
    nested = ("conditions", "availability", "changes", "losses")
    rest = {key: value for key, value in to_table(fleet).items() if key not in nested}
    if fleet.changes:
        rest["changes"] = [change_to_table(each) for each in fleet.changes]
    if fleet.losses:
        rest["losses"] = [_to_short_table(each, "edge_round", "step") for each in fleet.losses]
    return {**rest, "conditions": {"kind": kind, **conditions}, "availability": to_table(fleet.availability)}


def change_to_table(change: FleetChange) -> dict[str, Any]:
    """A change as a TOML table, without what it does not need."""
    return _to_short_table(change, "edge")


def _to_short_table(parameters: object, *kept: str) -> dict[str, Any]:
    """The table without what is empty or 0, except for the kept keys."""
    return {key: value for key, value in to_table(parameters).items() if value or key in kept}
