"""An experiment: from a file to an object with one attribute per section, and from that to a `World`.

Loads data and builds models and schemes, but runs nothing. Objects of Python get their names in
`python_parts`.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from cfel import validation
from cfel.arrays import IntArray
from cfel.control import Budget, Rounds, Scheme, SchemeParameters, Setting, build_scheme
from cfel.control.clusters import MOST_TOGETHER
from cfel.control.scheme import Gossip
from cfel.control.setting import choose_links, weight_backhaul
from cfel.cost import backhaul_seconds
from cfel.deployment.parameters import DeploymentParameters
from cfel.durable import read_bytes
from cfel.errors import ExperimentError, InputError, describe_error, unknown_name
from cfel.experiment.python_parts import Part, name_objects
from cfel.experiment.sections import (
    FILE_NAMES,
    MAIN_KEYS,
    PATHS,
    PRESETS,
    BudgetParameters,
    CompressionParameters,
    ModelParameters,
    Table,
    check_table,
    fleet_to_table,
    keys_of,
    merge,
    parse_assignment,
    parse_fleet,
    parse_section,
    reject_short_trace,
    reject_unknown,
    resolve_paths,
    to_table,
)
from cfel.learning.compressors import Compressor, TopKInBits, compressor, find_upload_share, none
from cfel.learning.data import BUILTIN as DATA_SETS
from cfel.learning.data import DataSet, load
from cfel.learning.data.images import augmentation
from cfel.learning.data.partition import DataParameters, find_rule, hold_out, partition
from cfel.learning.device_messages import DeviceState
from cfel.learning.differences import Differences, choose_step_size
from cfel.learning.edge import AggregationParameters, EdgeRules, build_rules
from cfel.learning.local.algorithm import LocalAlgorithm, LocalParameters, TrainingParameters
from cfel.learning.local.algorithms import build_algorithm
from cfel.learning.models.builders import BUILTIN as MODELS
from cfel.learning.models.builders import model_builder
from cfel.learning.models.files import load_model
from cfel.learning.models.flat import FlatModule, SharedPart
from cfel.learning.task import DeviceData, Task, check_batches, check_task, load_custom_task, measure_model
from cfel.membership import FleetChange, Membership
from cfel.plugins import ANY_CODE, BUILT_IN_ONLY, CodePolicy
from cfel.rounds.dry_run import choose_gossip, compute_use
from cfel.seeding import make_key
from cfel.simulation.parameters import SimulationParameters, check_buffering, choose_engine
from cfel.system.backhaul import TopologyParameters, build_backhaul
from cfel.system.batch_shares import LAYER_SHARES, BatchShares
from cfel.system.fleet import FleetParameters, build_fleet
from cfel.system.value_bits import ValueBits
from cfel.validation import parse_toml
from cfel.world import Era, World

DEFAULT_ROUNDS = 40


@dataclass(frozen=True, slots=True, eq=False)
class BuiltParts:
    """The parts of one run that names in an experiment lead to."""

    scheme: Scheme  # how much each device computes and sends
    algorithm: LocalAlgorithm  # what devices train with
    training: TrainingParameters  # how they train; what the scheme asks of them overrides the file
    edge_rules: EdgeRules  # what edge servers do with updates: the algorithm's part, then their own optimiser
    compress: Compressor  # how uploads are compressed
    differences: Differences | None  # how edge servers send differences; None for whole models
    downloads: Differences | None  # the same of what devices fetch


@dataclass(frozen=True, slots=True, init=False)
class Experiment:
    """An experiment with every default filled in; one attribute per section of the file.

    Args:
        preset: where sections and keys that are not given come from, as in a file; of several, the later
            ones take precedence.
        name: of the experiment.
        seed: a whole number.
        rounds, fleet, local, aggregation, budget, simulation, deployment: each a table with the keys of the
            file's section, or its dataclass. Relative file names start from the current folder.
        topology, compression, scheme: likewise, or only a name or a function.
        data: likewise; or a `DataSet`, a `Task`, or (train, test), each a pair of arrays (inputs, class
            labels) or a torch data set.
        model: likewise; or a torch module, or a function that returns one, called with the shape of an input
            and the number of classes, or with nothing.
        code: whether names may refer to code from outside the package; not part of the file, as a file
            cannot vouch for itself.

    Raises:
        InputError: a key or value is unknown or not allowed.
    """

    name: str
    seed: int
    rounds: Rounds
    fleet: FleetParameters
    topology: TopologyParameters
    data: DataParameters
    model: ModelParameters
    local: LocalParameters
    scheme: SchemeParameters
    compression: CompressionParameters
    aggregation: AggregationParameters
    budget: BudgetParameters
    simulation: SimulationParameters
    deployment: DeploymentParameters
    code: CodePolicy = field(compare=False, repr=False)

    def __init__(
        self,
        *,
        preset: str | Sequence[str] = "demo",
        name: str | None = None,
        seed: int | None = None,
        rounds: Rounds | Table | None = None,
        fleet: FleetParameters | Table | None = None,
        topology: TopologyParameters | Table | Part | None = None,
        data: DataParameters | Table | Part | None = None,
        model: ModelParameters | Table | Part | None = None,
        local: LocalParameters | Table | None = None,
        scheme: SchemeParameters | Table | Part | None = None,
        compression: CompressionParameters | Table | Part | None = None,
        aggregation: AggregationParameters | Table | None = None,
        budget: BudgetParameters | Table | None = None,
        simulation: SimulationParameters | Table | None = None,
        deployment: DeploymentParameters | Table | None = None,
        code: CodePolicy = ANY_CODE,
        **unknown: object,
    ) -> None:
        for key in unknown:
            raise ExperimentError(unknown_name("experiment", key, ("preset", *PARTS)))
        # The parameters are named like the attributes.
        given = {key: each for key, each in locals().items() if key in PARTS and each is not None}
        parts, objects = _fill_in(given, preset)
        for key, part in (*parts.items(), ("code", code.add_objects(objects) if objects else code)):
            object.__setattr__(self, key, part)
        self._check()

    def _check(self) -> None:
        validation.check_text("name", self.name)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"seed = {self.seed!r}: must be a whole number")
        self.data.check_target("rounds.target", self.rounds.target)
        if self.data.task is None:
            model_builder(self.model.name, self.code)
        augmentation(self.data.augment, self.code)
        find_rule(self.data.partition, self.code)
        self.build_parts()

    def build_parts(self) -> BuiltParts:
        """The scheme, the algorithm and all else that names lead to, built and checked.

        Each run gets its own: a user's algorithm may remember things, and two runs must not share them.
        """
        scheme = self._build_scheme()
        asked = scheme.device_overrides
        compress = compressor(asked.compressor or self.compression.kind, self.code)
        if self.compression.bits is not None and asked.compressor is None:
            compress = TopKInBits(ValueBits(self.compression.bits))
        # It would be charged for a share θ, but send everything.
        if compress is none and scheme.chooses_theta:
            reason = f"scheme {self.scheme.name!r} chooses how much is sent, and is charged for that"
            raise InputError(f"compression.kind = 'none': {reason}; choose a compressor")
        local = replace(
            self.local,
            steps=asked.steps or self.local.steps,
            kept_energy_at=asked.kept_energy_at or self.local.kept_energy_at,
        )
        algorithm = build_algorithm(local, self.code)
        edge_rules = build_rules(local, algorithm, self.aggregation, self.code)
        check_buffering(self.aggregation, self.simulation, algorithm, self.scheme)
        feedback = self.compression.error_feedback if asked.error_feedback is None else asked.error_feedback
        training = TrainingParameters(local, self.data.batch, feedback, algorithm)
        self._check_steps(training, algorithm)
        differences, downloads = self._build_differences(scheme.gossip), None
        if self.compression.downloads_differences:
            downloads = Differences(self.compression.download_theta, self.compression.download_bits)
        return BuiltParts(scheme, algorithm, training, edge_rules, compress, differences, downloads)

    def _build_differences(self, gossip: Gossip) -> Differences | None:
        """How edge servers send differences; None for whole models."""
        topology = self.topology
        if not topology.sends_differences:
            return None
        reaches_all = gossip.reach == "everybody"
        if reaches_all or gossip.link_budget < 1:
            how = "averages over all edge servers at once" if reaches_all else "draws links"
            raise InputError(
                f"topology.theta = {topology.theta}, topology.bits = {topology.bits}: differences go to the "
                f"same neighbours in every gossip step, but scheme {self.scheme.name!r} {how}"
            )
        chosen = topology.step_size or choose_step_size(topology.theta, topology.bits)
        return Differences(topology.theta, topology.bits, chosen)

    def _build_scheme(self) -> Scheme:
        """The scheme; in whole steps if it would choose batches, but the algorithm draws its own."""
        scheme = build_scheme(self.scheme, self.code)
        chooses = scheme.device_overrides.steps == "small_batches" and self.scheme.steps == "local"
        if chooses and build_algorithm(self.local, self.code).train is not None:
            return build_scheme(replace(self.scheme, steps="whole"), self.code)
        return scheme

    def _check_steps(self, training: TrainingParameters, algorithm: LocalAlgorithm) -> None:
        """Checks that devices can take steps as scheme and experiment say together."""
        local = training.local
        parts = ("small_batches", "last_layers")
        if self.local.steps in parts and local.steps != self.local.steps:
            raise InputError(
                f"local.steps = {self.local.steps!r}: scheme {self.scheme.name!r} plans in other steps; set "
                f"scheme.steps = {self.local.steps!r} instead"
            )
        if local.steps in parts and algorithm.train is not None:
            raise InputError(
                f"scheme.steps = {local.steps!r}: algorithm {local.algorithm!r} has its own training loop, "
                "which draws its own batches and trains all layers"
            )
        if local.steps == "last_layers" and (algorithm.step_parts is None or algorithm.change_gradient):
            raise InputError(
                f"scheme.steps = 'last_layers': algorithm {local.algorithm!r} changes all layers at once; "
                "choose 'sgd' or 'shared_momentum'"
            )
        late = training.error_feedback and local.schedule != "constant"
        if local.algorithm == "shared_momentum" and late:
            raise InputError(
                f"local.schedule = {local.schedule!r}: with shared momentum, error feedback sends parts of "
                "updates late, when the learning rate is another one; use a constant rate"
            )

    def change(self, changes: Mapping[str, Any]) -> "Experiment":
        """The experiment with values at dotted keys changed, as in {"rounds.edge": 2, "scheme": "cef"}."""
        document, objects = _change_document(to_document(self), changes)
        return Experiment(**parse_sections(document), preset="none", code=self.code.add_objects(objects))

    def build_setting(self) -> Setting:
        """What the controller alone needs in the first round; loads data only where sizes depend on it."""
        samples = None
        if self.fleet.sampling().needs_samples:
            samples = [each.samples for each in self._split(self.load_task())[1]]
        stated = self.model.parameters
        # Of a model whose size is stated, nothing else is known: it may normalise.
        shared = self._measure_model() if stated is None else SharedPart(stated, 1, 1)
        _, first = self.fleet.list_memberships()[0]
        setting = self._build_setting(self.build_parts(), shared, samples, first)
        return replace(setting, budget=self._compute_budget(setting))

    def _build_setting(
        self,
        parts: BuiltParts,
        shared: SharedPart,
        samples: Sequence[int] | None,
        membership: Membership,
        *,
        weighs: bool = False,
    ) -> Setting:
        """The setting with these members, and no budget yet; `weighs` if gossip follows the samples."""
        fleet, numbers = build_fleet(self.fleet, self.seed), None
        rounds = replace(self.rounds, global_rounds=self.rounds.global_rounds + membership.rounds)
        reject_short_trace(self.fleet, fleet, rounds)
        if self.fleet.changes:
            fleet, numbers = fleet.change(membership), membership.edges
        if samples is not None:
            fleet = replace(fleet, samples=np.asarray(samples[: fleet.devices], dtype=np.float64))
        members = fleet.list_edges()
        backhaul = build_backhaul(self.topology, fleet.sizes[members], self.seed, self.code, numbers)
        links = choose_links(parts.scheme, backhaul)
        if weighs and samples is not None:
            backhaul = weight_backhaul(parts.scheme.gossip, fleet, backhaul, samples[: fleet.devices])
        placed = backhaul.place(members, fleet.clusters)
        parameters = self.model.charged_parameters or shared.parameters
        bits, exchanged = 32.0 * parameters, 1.0 + parts.edge_rules.vectors
        sent = 1.0 if parts.differences is None else parts.differences.count_share(parameters)
        shares = {
            "small_batches": BatchShares(self.data.batch, self.local.step_overhead, shared.buffers > 0),
            "last_layers": LAYER_SHARES,
        }
        setting = Setting(
            seed=self.seed,
            rounds=rounds,
            fleet=fleet,
            backhaul=placed,
            backhaul_seconds=backhaul_seconds(placed.graph, bits * (exchanged - 1.0 + sent)),
            model_bits=bits,
            exchanged_models=exchanged,
            gossip_share=sent,
            download_share=1.0 if parts.downloads is None else parts.downloads.count_share(parameters),
            scheme=parts.scheme,
            links=None if links is None else links.place(members),
            joules_per_bit=self.topology.price_of_bit,
            work_per_step=parts.algorithm.gradients,
            small_batches=shares.get(parts.training.local.steps),
            accounting=self.simulation.accounting,
            schedule_by=self.local.schedule_by,
            find_rate=self.find_rate,
            # A share θ of a full upload may be more than all entries with the bits that devices choose.
            uploads="wire" if isinstance(parts.compress, TopKInBits) else self.simulation.uploads,
            upload_share=find_upload_share(parts.compress, parameters),
            # By the file, so that a fleet that grows is planned in one way throughout.
            is_large=self.fleet.devices > MOST_TOGETHER,
        )
        return choose_gossip(setting)

    def find_rate(self, used: float) -> float:
        """The share of the rates of devices and edge servers that is left when a share of the run is over."""
        return self.local.find_rate(used) * self.aggregation.find_rate(used)

    def _measure_model(self) -> SharedPart:
        # The shape of a built-in data set is known, so that planning works before its files are there.
        if self.data.task is None and self.data.name in DATA_SETS:
            builder = model_builder(self.model.name, self.code)
            known = DATA_SETS[self.data.name]
            return measure_model(builder, known.input_shape, known.classes, self.model.personal)
        return self._build_start(self.load_task()).shared

    def _compute_budget(self, setting: Setting) -> Budget:
        """Total budgets in seconds and joules; a given number takes precedence over a share of CEF's use."""
        # A dry run of many rounds takes long, so only if its result counts.
        share = self.budget.share_of_cef if None in (self.budget.seconds, self.budget.joules) else None
        rounds = replace(setting.rounds, global_rounds=self.budget.cef_rounds or setting.rounds.global_rounds)
        limit = Budget() if share is None else compute_use(replace(setting, rounds=rounds)).take_share(share)
        budget = Budget(self.budget.seconds or limit.seconds, self.budget.joules or limit.joules)
        if self.local.schedule_by == "budget" and np.isinf([budget.seconds, budget.joules]).all():
            raise InputError("local.schedule_by = 'budget': set a [budget], or use 'rounds'")
        return budget

    def load_task(self) -> Task:
        if self.data.task is not None:
            found = load_custom_task(self.data.task, self.data.folder(), self.code)
            return replace(found, seed=self.seed, personal=self.model.personal or found.personal)
        data = load(self.data.name, self.data.folder(), self.code)
        model = model_builder(self.model.name, self.code)
        augment, personal = augmentation(self.data.augment, self.code), self.model.personal
        task = Task(data, model, augment=augment, seed=self.seed, personal=personal)
        # All models for images go with all images.
        known = DATA_SETS.get(self.data.name) if self.model.name in MODELS else None
        if known is None or len(known.input_shape) != 3:
            check_task(f"data {self.data.name!r} with model {self.model.name!r}", task)
        return task

    def build_world(self) -> World:
        task = self.load_task()
        data, shares = self._split(task)
        whole = replace(task, data=data)
        flat = self._build_start(whole)
        check_batches(flat, self.data.batch, [each.samples for each in shares])
        return self._assemble(whole, task.data, flat, self.build_parts(), shares)

    def _assemble(
        self,
        task: Task,
        undivided: DataSet,
        flat: FlatModule,
        parts: BuiltParts,
        data: Sequence[DeviceData],
        budget: Budget | None = None,
    ) -> World:
        """The world with the members of every round, made of parts that do not change with them.

        `undivided` is the data before they were divided among devices; `data` what each device holds;
        `budget` that of the first round, if it is known: a share of CEF's costs takes long to compute.
        """
        start = parts.edge_rules.add_memory(flat.read())
        first, eras = self._build_eras(parts, flat.shared, task, [each.samples for each in data], budget)

        def change(changes: Sequence[FleetChange]) -> World:
            after = replace(self, fleet=replace(self.fleet, changes=tuple(changes)))
            grown = [*data, *after.draw_shares(undivided, len(data))]
            before, now = (
                [each for each in some if each.round == 1] for some in (self.fleet.changes, changes)
            )
            return after._assemble(task, undivided, flat, parts, grown, first if before == now else None)

        return World(
            setting=eras[0].setting,
            task=task,
            data=tuple(data),
            training=parts.training,
            compress=parts.compress,
            differences=parts.differences,
            downloads=parts.downloads,
            start=start,
            edge_rules=replace(parts.edge_rules, matrices=flat.find_hidden_matrices()),
            new_device=DeviceState(flat.read_personal()),
            evaluation=self.simulation.evaluation,
            variances=flat.find_variances(),
            model_name="" if self.data.task is not None else self.model.name,
            eras=eras,
            changes=self.fleet.changes,
            change=change,
            losses={each.place: each for each in self.fleet.losses},
        )

    def _build_eras(
        self,
        parts: BuiltParts,
        shared: SharedPart,
        task: Task,
        samples: Sequence[int],
        budget: Budget | None,
    ) -> tuple[Budget, tuple[Era, ...]]:
        """The setting of every membership; the budget is that of the first, with what was added later."""
        eras: list[Era] = []
        for first_round, membership in self.fleet.list_memberships():
            setting = self._build_setting(parts, shared, samples, membership, weighs=True)
            if budget is None:
                budget = self._compute_budget(setting)
            setting = replace(
                setting,
                budget=Budget(budget.seconds + membership.seconds, budget.joules + membership.joules),
                # Charged as for `charged_parameters`, though the model that trains may be smaller.
                charged_share=setting.model_bits / (32.0 * shared.parameters),
                upload_share=find_upload_share(parts.compress, shared.parameters),
                metrics=task.described_metrics,
            )
            eras.append(Era(first_round, setting, membership))
        return budget or Budget(), tuple(eras)

    def _split(self, task: Task) -> tuple[DataSet, list[DeviceData]]:
        """The data to train and test on, and what each device that ever takes part holds of it."""
        data, shares = partition(task.data, self.fleet.assign_clusters(), self.data, self.seed, self.code)
        if self.data.held_out:
            data, shares = hold_out(data, shares, self.data.held_out, self.seed)
        held = [DeviceData(data, indices) for indices in shares]
        return data, [*held, *self.draw_shares(task.data, len(held))]

    def draw_shares(self, undivided: DataSet, first: int) -> list[DeviceData]:
        """What devices hold that join later, from number `first` on.

        The data are divided once more by the same rule, with other draws, for each further N devices. So a
        new device holds samples like the others', some of which another one holds, too.
        """
        _, last = self.fleet.list_memberships()[-1]
        cluster = self.fleet.assign_clusters()
        drawn: dict[int, tuple[DataSet, list[IntArray]]] = {}
        found: list[DeviceData] = []
        for n in range(first, len(last.edge_of)):
            time, place = divmod(n, cluster.size)
            if self.data.held_out:
                raise InputError(f"data.held_out: not with device {n}, which joins later")
            if time not in drawn:
                seed = make_key(self.seed, "joining devices", time)
                drawn[time] = partition(undivided, cluster, self.data, seed, self.code)
            data, shares = drawn[time]
            found.append(DeviceData(data, shares[place]))
        return found

    def resolve(self, world: World) -> "Experiment":
        """The experiment with the engine chosen."""
        engine = choose_engine(self.simulation.engine, world, self.simulation.device).engine
        return replace(self, simulation=replace(self.simulation, engine=engine))

    def _build_start(self, task: Task) -> FlatModule:
        """The module with the values that every edge server starts from."""
        flat = task.build()
        if self.model.init is not None:
            load_model(Path(self.model.init), flat)
        return flat


# In the order in which `experiment_toml` writes them.
SECTIONS: Mapping[str, Any] = {
    entry.name: entry.type for entry in fields(Experiment) if entry.name not in ("name", "seed", "code")
}
PARTS = ("name", "seed", *SECTIONS)


def parse_sections(document: Table) -> dict[str, Any]:
    """Name, seed and sections of the experiment that a document describes, as far as it or its preset do."""
    given = {key: value for key, value in document.items() if key != "preset"}
    below = _load_presets(document.get("preset", "demo"))
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


def _load_presets(names: object) -> Table:
    """The tables of one preset, or of a list of them, each laid over the one before."""
    merged: Table = {}
    for name in names if isinstance(names, list | tuple) else [names]:
        if name not in PRESETS:
            raise ExperimentError(unknown_name("preset", name, PRESETS))
        if name != "none":
            text = files("cfel").joinpath(f"presets/{name}.toml").read_text(encoding="utf-8")
            merged = merge(merged, tomllib.loads(text))
    return merged


def _reject_misplaced(name: str, table: Table) -> None:
    """Raises for a key that is unlike any of this section but known in another, naming that one."""
    known = keys_of(SECTIONS[name])
    for key in table.keys() - known.keys():
        homes = [other for other, parameters in SECTIONS.items() if key in keys_of(parameters)]
        # A key that resembles one of this section is more likely misspelt than misplaced.
        if len(homes) == 1 and not get_close_matches(key, known):
            raise ExperimentError(f"{name}.{key}: belongs in [{homes[0]}]")


def to_document(experiment: Experiment) -> dict[str, Any]:
    """The document that describes an experiment, with every default; the reverse of `parse_sections`."""
    head = {"preset": "none", "name": experiment.name, "seed": experiment.seed}
    tables = {name: to_table(getattr(experiment, name)) for name in SECTIONS}
    return head | tables | {"fleet": fleet_to_table(experiment.fleet)}


def _fill_in(
    given: Mapping[str, Any], preset: str | Sequence[str]
) -> tuple[dict[str, Any], dict[str, object]]:
    """All parts of an experiment given in Python, and the objects among them by their names.

    Sections are given as dataclasses, as tables, or as the value of their main key; the rest comes from the
    preset.
    """
    ready = {key: part for key, part in given.items() if isinstance(part, SECTIONS.get(key, ()))}
    ready |= {key: given[key] for key in ("name", "seed") if key in given}
    named = {key: name_objects(key, part) for key, part in given.items() if key not in ready}
    # A preset is a file: where nothing is missing, it need not be read.
    if named or len(ready) < len(PARTS):
        tables = {key: table for key, (table, _) in named.items()}
        document = resolve_paths(tables, Path.cwd(), PATHS)
        ready = parse_sections({"preset": preset, **document}) | ready
    missing = [section for section in SECTIONS if section not in ready]
    defaults = {section: SECTIONS[section]() for section in missing if section != "rounds"}
    parts = {"name": "experiment", "seed": 0, "rounds": Rounds(DEFAULT_ROUNDS), **defaults, **ready}
    return parts, {name: each for _, found in named.values() for name, each in found.items()}


def _change_document(document: Table, changes: Mapping[str, Any]) -> tuple[Table, dict[str, object]]:
    """A document with values at dotted keys changed, and the objects among them by their names."""
    objects: dict[str, object] = {}
    for key, value in changes.items():
        first, *others = key.split(".")
        if first not in PARTS:
            raise ExperimentError(unknown_name("experiment", first, PARTS))
        change: object = value
        if first in SECTIONS:
            nested = value
            for name in reversed(others[1:]):
                nested = {name: nested}
            change, found = name_objects(first, {others[0]: nested} if others else nested)
            objects |= found
        document = merge(document, resolve_paths({first: change}, Path.cwd(), PATHS))
    return document, objects


# Experiment files: read one over its preset with every key checked, and write it with every default.


# Keys that may differ between the nodes of a federation.
NODE_KEYS = (
    *FILE_NAMES,
    *(("preset",), ("name",)),
    *(("simulation", key) for key in ("workers", "checkpoint_every", "engine", "device")),
)
_MAX_BYTES = 64 * 1024**2


def load_experiment(
    path: str | Path, changes: Sequence[str] = (), code: CodePolicy = BUILT_IN_ONLY
) -> Experiment:
    """Reads an experiment file, with changes like "rounds.global=3".

    File names in changes are relative to the current folder, those in the file to the file's folder.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read: {describe_error(error)}") from error
    return _read_experiment(content, path, changes, code)


def load_directory_experiment(
    directory: Path, changes: Sequence[str] = (), code: CodePolicy = BUILT_IN_ONLY
) -> Experiment:
    """Reads the experiment in a directory of unknown origin: the file must not be a link or a pipe.

    Otherwise like `load_experiment`; a file that cannot be read is a `StorageError`.
    """
    path = directory / "experiment.toml"
    return _read_experiment(read_bytes(path, max_bytes=_MAX_BYTES), path, changes, code)


def _read_experiment(
    content: bytes, path: str | Path, changes: Sequence[str], code: CodePolicy
) -> Experiment:
    try:
        document: Table = parse_toml(content.decode())
    except ValueError as error:
        if Path(path).suffix != ".toml":
            raise ExperimentError(f"{path}: is not an experiment file (.toml)") from error
        raise ExperimentError(f"{path}: cannot be read: {describe_error(error)}") from error
    # In this order: paths in the file are relative to the file, those in --set to the current folder.
    document = _apply_changes(resolve_paths(document, Path(path).parent, PATHS), changes)
    try:
        return parse_experiment(document, code)
    except InputError as error:
        blamed = next((change for change in changes if str(error).startswith(f"{_key(change)} ")), None)
        place = path if blamed is None else f"--set {blamed}"
        raise ExperimentError(f"{place}: {error}") from error


def _key(change: str) -> str:
    return change.partition("=")[0].strip()


def preset_experiment(name: str, changes: Sequence[str] = (), code: CodePolicy = BUILT_IN_ONLY) -> Experiment:
    return parse_experiment(_apply_changes({"preset": name}, changes), code)


def parse_experiment(document: Table, code: CodePolicy = BUILT_IN_ONLY) -> Experiment:
    return Experiment(preset="none", **parse_sections(document), code=code)


def experiment_toml(experiment: Experiment) -> str:
    """The experiment as TOML with every default; reading it gives the same experiment."""
    return tomli_w.dumps(to_document(experiment))


def digest_shared_parts(experiment: Experiment) -> dict[str, str]:
    """A digest of each section that all nodes of a federation must share, by name.

    Paths may differ from host to host, and so may the way in which a node does its work.
    """
    document = tomllib.loads(experiment_toml(experiment))
    # Deadlines and limits may differ from node to node; where conditions come from changes the plans.
    document["deployment"] = {"conditions": document["deployment"]["conditions"]}
    # Nodes of an earlier version do not know of differences; without them, all run the same experiment.
    if not experiment.topology.sends_differences:
        for key in ("theta", "bits", "step_size"):
            del document["topology"][key]
    if not experiment.compression.downloads_differences:
        for key in ("download_theta", "download_bits"):
            del document["compression"][key]
    for *path, key in NODE_KEYS:
        table = document
        for name in path:
            table = table.get(name, {})
        place = table.pop(key, None)
        # A node may hold its own samples; the content of all other files must be the same everywhere.
        if (*path, key) in FILE_NAMES and key != "path" and place is not None:
            table[key] = hashlib.sha256(Path(place).read_bytes()).hexdigest()
    return {
        name: hashlib.sha256(json.dumps(_to_floats(part), sort_keys=True).encode()).hexdigest()[:16]
        for name, part in document.items()
    }


def _to_floats(value: Any) -> Any:  # noqa: ANN401 — any value of a TOML document
    """The value with all numbers as floats: 1 and 1.0 are the same experiment."""
    if isinstance(value, dict):
        return {key: _to_floats(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_to_floats(each) for each in value]
    return float(value) if type(value) is int else value


def _apply_changes(document: Table, changes: Sequence[str]) -> Table:
    for change in changes:
        given = {
            section: {MAIN_KEYS[section]: value} if section in MAIN_KEYS and isinstance(value, str) else value
            for section, value in parse_assignment(change).items()
        }
        document = merge(document, resolve_paths(given, Path.cwd(), PATHS))
    return document
