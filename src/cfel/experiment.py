"""An experiment file: one TOML document that says everything about a run.

The parameters themselves are defined beside the code they configure; this module only finds their tables,
fills in the preset, and complains about what it does not know. `Experiment` is what a file means, `Setting`
what is built from it for the controller.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from cfel.control import Budget, Rounds, SchemeParameters, Setting, expected_use
from cfel.cost import backhaul_seconds
from cfel.errors import ExperimentError, InputError, unknown_name
from cfel.system import (
    Availability,
    Backhaul,
    DeviceClass,
    FleetParameters,
    HardwareConditions,
    RandomConditions,
    TopologyParameters,
    TraceParameters,
    build_backhaul,
    build_fleet,
    checked,
)

Table = Mapping[str, Any]
Parameters = TypeVar("Parameters")

PRESETS = ("demo", "paper-cifar10", "paper-femnist")
CONDITIONS = {"random": RandomConditions, "classes": HardwareConditions, "trace": TraceParameters}
MODEL_SIZES = {"resnet20": 269_722, "leaf_cnn": 6_603_710}
ROUND_KEYS = {"global": "global_rounds", "edge": "edge_rounds", "local": "local_steps"}


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """The experiment file's `[model]`.

    Attributes:
        name: of the model.
        parameters: how many numbers it has; known for the built-in models.
    """

    name: str = "resnet20"
    parameters: int | None = None

    def __post_init__(self) -> None:
        checked.text("model.name", self.name)
        if self.parameters is not None:
            checked.whole("model.parameters", self.parameters, least=1)
        elif self.name not in MODEL_SIZES:
            known = unknown_name("model.name", self.name, MODEL_SIZES)
            raise InputError(f"{known}; a model of your own needs model.parameters, its size")

    @property
    def bits(self) -> float:
        """Size of a full upload: 32 bits a parameter."""
        return 32.0 * (self.parameters or MODEL_SIZES[self.name])


@dataclass(frozen=True, slots=True)
class LocalParameters:
    """The experiment file's `[local]`: η and the momentum of local SGD."""

    learning_rate: float = 0.05
    momentum: float = 0.9

    def __post_init__(self) -> None:
        checked.number("local.learning_rate", self.learning_rate, above=0)
        checked.number("local.momentum", self.momentum, least=0, most=1)


@dataclass(frozen=True, slots=True)
class BudgetParameters:
    """The experiment file's `[budget]`: numbers, or a share of what CEF would use; nothing means no limit."""

    seconds: float | None = None
    joules: float | None = None
    share_of_cef: float | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "joules", "share_of_cef"):
            value = getattr(self, name)
            if value is not None:
                checked.number(f"budget.{name}", value, above=0, finite=False)


@dataclass(frozen=True, slots=True)
class Experiment:
    """What an experiment file means, every default filled in."""

    name: str = "experiment"
    seed: int = 0
    rounds: Rounds = field(default_factory=lambda: Rounds(40))
    fleet: FleetParameters = field(default_factory=FleetParameters)
    topology: TopologyParameters = field(default_factory=TopologyParameters)
    model: ModelParameters = field(default_factory=ModelParameters)
    local: LocalParameters = field(default_factory=LocalParameters)
    scheme: SchemeParameters = field(default_factory=SchemeParameters)
    budget: BudgetParameters = field(default_factory=BudgetParameters)

    def __post_init__(self) -> None:
        checked.text("name", self.name)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"seed = {self.seed!r}: must be a whole number")

    def setting(self, sigma2: float = 1.0, g2: float = 1.0) -> tuple[Setting, Backhaul]:
        """The fleet and the backhaul, built, with σ² and G² assumed as given."""
        fleet = build_fleet(self.fleet)
        backhaul = build_backhaul(self.topology, fleet.sizes, self.seed)
        gossip = backhaul_seconds(backhaul.graph, self.model.bits)
        setting = Setting(fleet, gossip, self.rounds, self.seed, self.model.bits, sigma2, g2)
        return setting, backhaul

    def budgets(self, setting: Setting) -> Budget:
        """Total budgets in seconds and joules; a number given outright goes before a share of CEF's use."""
        share = self.budget.share_of_cef
        limit = Budget() if share is None else expected_use(setting).shared(share)
        return Budget(self.budget.seconds or limit.seconds, self.budget.joules or limit.joules)


def load_experiment(path: str | Path, changes: Sequence[str] = ()) -> Experiment:
    """Reads an experiment file.

    Args:
        path: the TOML file.
        changes: assignments like "rounds.global=3" that go before the file.

    Raises:
        ExperimentError: the file cannot be read, or something in it is not known or not allowed.
    """
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ExperimentError(f"{path}: cannot be read: {error}") from error
    for change in changes:
        document = _merged(document, _assignment(change))
    try:
        return parse_experiment(_beside(document, Path(path).parent))
    except InputError as error:
        raise ExperimentError(f"{path}: {error}") from error


def preset_experiment(name: str) -> Experiment:
    """The experiment of a preset as it comes."""
    return parse_experiment({"preset": name})


def parse_experiment(document: Table) -> Experiment:
    """The experiment that a TOML document describes."""
    preset = document.get("preset", "demo")
    if preset not in PRESETS:
        raise ExperimentError(unknown_name("preset", preset, PRESETS))
    given = {key: value for key, value in document.items() if key != "preset"}
    whole = _merged(_preset_table(preset), given)
    _refuse_unknown("", whole, [entry.name for entry in fields(Experiment)])
    sections: dict[str, Any] = {key: whole[key] for key in ("name", "seed") if key in whole}
    parsers = {"rounds": _rounds, "fleet": _fleet, "scheme": _scheme}
    plain = {
        "topology": TopologyParameters,
        "model": ModelParameters,
        "local": LocalParameters,
        "budget": BudgetParameters,
    }
    for name in whole.keys() - sections.keys():
        table = _table(name, whole[name])
        sections[name] = parsers[name](table) if name in parsers else _plain(plain[name], name, table)
    return Experiment(**sections)


def _preset_table(name: str) -> Table:
    return tomllib.loads(files("cfel").joinpath(f"presets/{name}.toml").read_text(encoding="utf-8"))


def _rounds(table: Table) -> Rounds:
    _refuse_unknown("rounds", table, ROUND_KEYS)
    return Rounds(**{ROUND_KEYS[key]: value for key, value in table.items()})


def _fleet(table: Table) -> FleetParameters:
    parts = dict(table)
    if "conditions" in parts:
        parts["conditions"] = _conditions(_table("fleet.conditions", parts["conditions"]))
    if "availability" in parts:
        away = _table("fleet.availability", parts["availability"])
        parts["availability"] = _plain(Availability, "fleet.availability", away)
    return _plain(FleetParameters, "fleet", parts)


def _conditions(table: Table) -> RandomConditions | HardwareConditions | TraceParameters:
    kind = table.get("kind", "random")
    if not isinstance(kind, str) or kind not in CONDITIONS:
        raise ExperimentError(unknown_name("fleet.conditions.kind", kind, CONDITIONS))
    rest = {key: value for key, value in table.items() if key != "kind"}
    if "extra_classes" in rest:
        place = "fleet.conditions.extra_classes"
        rows = enumerate(checked.entries(place, rest["extra_classes"]))
        places = ((f"{place}[{i}]", row) for i, row in rows)
        rest["extra_classes"] = [_plain(DeviceClass, at, _table(at, row)) for at, row in places]
    return _plain(CONDITIONS[kind], "fleet.conditions", rest)


def _scheme(table: Table) -> SchemeParameters:
    return _plain(SchemeParameters, "scheme", table)


def _plain(parameters: type[Parameters], place: str, table: Table) -> Parameters:
    """A section whose keys are the fields of its parameters."""
    known = fields(parameters)  # type: ignore[arg-type]
    _refuse_unknown(place, table, [entry.name for entry in known])
    for entry in known:
        needed = entry.default is MISSING and entry.default_factory is MISSING
        if needed and entry.name not in table:
            raise ExperimentError(f"{place}.{entry.name}: is missing")
    return parameters(**{key: _frozen(value) for key, value in table.items()})


def _frozen(value: object) -> object:
    """TOML's lists as tuples, at every depth."""
    return tuple(_frozen(entry) for entry in value) if isinstance(value, list) else value


def _table(place: str, value: object) -> Table:
    if not isinstance(value, Mapping):
        raise ExperimentError(f"{place} = {value!r}: must be a table")
    return value


def _beside(document: Table, folder: Path) -> Table:
    """The document with relative file names taken from the experiment file's own folder."""
    placed = dict(document)
    for section, *inner in (("topology",), ("fleet", "conditions")):
        table = document.get(section)
        for name in inner:
            table = table.get(name) if isinstance(table, Mapping) else None
        if isinstance(table, Mapping) and isinstance(table.get("file"), str):
            located: Table = {"file": str(folder / table["file"])}
            for name in reversed(inner):
                located = {name: located}
            placed = _merged(placed, {section: located})
    return placed


def _refuse_unknown(place: str, table: Table, allowed: Sequence[str] | Mapping[str, Any]) -> None:
    for key in table:
        if key not in allowed:
            raise ExperimentError(unknown_name(f"[{place}]" if place else "top level", key, allowed))


def _merged(below: Table, above: Table) -> dict[str, Any]:
    """`above` laid over `below`, table by table; conditions of another kind replace those below."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = dict(value) if _are_other_conditions(key, old, value) else _merged(old, value)
        else:
            result[key] = value
    return result


def _are_other_conditions(key: str, old: Table, new: Table) -> bool:
    """Each kind of conditions has keys of its own, so those of another kind mean nothing to it."""
    kind = old.get("kind", "random")
    return key == "conditions" and new.get("kind", kind) != kind


def _assignment(change: str) -> Table:
    """An assignment `a.b=value` as a table; a bare word is taken as text."""
    name, sign, text = change.partition("=")
    if not sign or not name.strip():
        raise ExperimentError(f"--set {change!r}: must look like section.key=value")
    try:
        return tomllib.loads(f"{name} = {text}")
    except tomllib.TOMLDecodeError:
        quoted = text.strip().replace("\\", "\\\\").replace('"', '\\"')
        try:
            return tomllib.loads(f'{name} = "{quoted}"')
        except tomllib.TOMLDecodeError as error:
            raise ExperimentError(f"--set {change!r}: {error}") from error
