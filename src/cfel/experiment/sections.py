"""The sections of an experiment file that no other package defines, and how `[fleet]` is read and written."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cfel import validation
from cfel.control import Rounds
from cfel.durable import read_bytes
from cfel.errors import ExperimentError, InputError, StorageError, unknown_name
from cfel.experiment.document import (
    Table,
    check_table,
    parse_section,
    to_table,
)
from cfel.learning.data.partition import PartitionParameters
from cfel.membership import FleetChange
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
from cfel.system.device_classes import parse_class_file
from cfel.system.value_bits import ValueBits
from cfel.validation import parse_toml

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
class DataParameters:
    """The experiment file's `[data]`.

    Attributes:
        name: a built-in data set, an entry point's name, or "module:function".
        path: the folder or file where it is; without it, "cifar10" and "femnist" are downloaded.
        partition: how samples are spread over devices: "iid" at random, "dirichlet" with different shares
            of every class, "classes" with the same number of classes each, "shards" with a few classes each,
            "sizes" unevenly, "distribution" in given mixtures of classes, "writer" by who made them, or a
            user-defined "module:function".
        beta: with "dirichlet", concentration of the distribution over devices, > 0; the smaller, the more the
            devices differ.
        cluster_beta: with "dirichlet", concentration of a distribution over clusters, > 0; `beta` is then the
            one within each cluster. By default clusters play no part.
        least: with "dirichlet" and "sizes", every device gets at least this many samples, ≥ 1.
        shards: with "shards", shards per device, ≥ 1.
        classes_per_device: with "classes", ≥ 1.
        sizes: with "sizes", samples per device: a list of numbers; or "equal", "linear", "square" or
            "exponential" in the number of the device.
        distribution: with "distribution", shares of the classes, one list per device or one per cluster.
        writers_per_device: with "writer", ≥ 1.
        batch: samples in a mini-batch, ≥ 1.
        augment: "none", "flip", "crop_flip", or a user-defined "module:function".
        held_out: share of every device's training samples to test on instead of the test set, and not to
            train on, in [0, 0.9]. For choosing a learning rate.
        task: a user-defined task ("module:function") instead of data set, model and loss.
    """

    name: str = "digits"
    path: str | None = None
    partition: str = "dirichlet"
    beta: float = 1.0
    cluster_beta: float | None = None
    least: int = 2
    shards: int = 2
    classes_per_device: int = 2
    sizes: str | tuple[int, ...] = "equal"
    distribution: tuple[tuple[float, ...], ...] = ()
    writers_per_device: int = 1
    batch: int = 50
    augment: str = "none"
    held_out: float = 0.0
    task: str | None = None

    def __post_init__(self) -> None:
        validation.check_whole("data.batch", self.batch, least=1)
        validation.check_number("data.held_out", self.held_out, least=0, most=0.9)
        for key in ("name", "augment", "path", "task"):
            value = getattr(self, key)
            if value is not None or key in ("name", "augment"):
                validation.check_text(f"data.{key}", value)
        self.partition_parameters()

    def check_target(self, field: str, target: float | None) -> None:
        """Raises an `InputError` for an accuracy above 1; a user-defined task may have any metric."""
        if target is not None and target > 1 and self.task is None:
            hint = f": {target / 100:g} is {target:g} %" if target <= 100 else ""
            raise InputError(f"{field} = {target:g}: must be at most 1, as accuracy is a share{hint}")

    def partition_parameters(self) -> PartitionParameters:
        names = [entry.name for entry in fields(PartitionParameters) if entry.name != "rule"]
        return PartitionParameters(self.partition, **{name: getattr(self, name) for name in names})

    def folder(self) -> Path | None:
        return None if self.path is None else Path(self.path)


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """The experiment file's `[model]`.

    Attributes:
        name: a built-in model, an entry point's name, or "module:function".
        init: a safetensors file to start from, instead of random values.
        parameters: how many trained parameters the model has, ≥ 1; needed only to plan without its data.
        charged_parameters: charge uploads and backhaul as for a model with this many parameters, in caps,
            budgets, accounts and bytes; by default as for the model itself.
        personal: names of parameters that stay on devices, with *, ? and [...] as in file names; neither sent
            nor aggregated nor charged.
    """

    name: str = "mlp"
    init: str | None = None
    parameters: int | None = None
    charged_parameters: int | None = None
    personal: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        validation.check_text("model.name", self.name)
        if self.init is not None:
            validation.check_text("model.init", self.init)
        for key in ("parameters", "charged_parameters"):
            if getattr(self, key) is not None:
                validation.check_whole(f"model.{key}", getattr(self, key), least=1)
        for place, pattern in enumerate(validation.check_list("model.personal", self.personal)):
            validation.check_text(f"model.personal[{place}]", pattern)


@dataclass(frozen=True, slots=True)
class CompressionParameters:
    """The experiment file's `[compression]`.

    Attributes:
        kind: a built-in compressor, an entry point's name, or "module:function".
        error_feedback: whether devices keep what compression drops and add it to their next update.
        bits: bits per value that devices choose from, some of 4, 8, 16 and 32, for `topk`; θ is then a share
            of the bits of a full upload, and realised costs count the bits that were sent. Without it, values
            have 32 bits and θ is a share of entries.
    """

    kind: str = "topk"
    error_feedback: bool = False
    bits: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        validation.check_text("compression.kind", self.kind)
        if not isinstance(self.error_feedback, bool):
            raise InputError(f"compression.error_feedback = {self.error_feedback!r}: must be true or false")
        if self.bits is not None:
            for place, each in enumerate(validation.check_list("compression.bits", self.bits)):
                validation.check_whole(f"compression.bits[{place}]", each, least=1)
            object.__setattr__(self, "bits", ValueBits(tuple(self.bits)).choices)
            if self.kind != "topk":
                raise InputError(f"compression.bits: only with kind = 'topk', not {self.kind!r}")


@dataclass(frozen=True, slots=True)
class BudgetParameters:
    """The experiment file's `[budget]`: of the whole run; None for no limit.

    Attributes:
        seconds: time, > 0.
        joules: energy of all devices together, > 0.
        share_of_cef: both as a share of what CEF would use in this experiment, > 0; a number given for one of
            them takes precedence.
        cef_rounds: global rounds of CEF that the share refers to, ≥ 1; by default as many as the run has.
            Rounds of other schemes may be shorter, and more of them fit into the same budgets.
    """

    seconds: float | None = None
    joules: float | None = None
    share_of_cef: float | None = None
    cef_rounds: int | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "joules", "share_of_cef"):
            value = getattr(self, name)
            if value is not None:
                validation.check_number(f"budget.{name}", value, above=0, finite=False)
        if self.cef_rounds is not None:
            validation.check_whole("budget.cef_rounds", self.cef_rounds, least=1)
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
    if "changes" in parts:
        rows = enumerate(validation.check_list("fleet.changes", parts["changes"]))
        places = ((f"fleet.changes[{i}]", row) for i, row in rows)
        parts["changes"] = [parse_section(FleetChange, at, check_table(at, row)) for at, row in places]
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
    nested = ("conditions", "availability", "changes")
    rest = {key: value for key, value in to_table(fleet).items() if key not in nested}
    if fleet.changes:
        rest["changes"] = [change_to_table(each) for each in fleet.changes]
    return {**rest, "conditions": {"kind": kind, **conditions}, "availability": to_table(fleet.availability)}


def change_to_table(change: FleetChange) -> dict[str, Any]:
    """A change as a TOML table, without what it does not need."""
    table = to_table(change)
    return {key: value for key, value in table.items() if value or key == "edge"}
