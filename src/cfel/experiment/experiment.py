"""An experiment as an object: one attribute per section of the file, and how it becomes a `World`.

Loads data and builds models and schemes, but runs nothing. Files are read in `files`; objects of Python get
their names in `python_parts`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cfel import validation
from cfel.arrays import IntArray
from cfel.control import (
    Budget,
    DeviceOverrides,
    Rounds,
    SchemeParameters,
    Setting,
    build_scheme,
)
from cfel.control.setting import choose_links, weight_backhaul
from cfel.cost import backhaul_seconds
from cfel.deployment.parameters import DeploymentParameters
from cfel.errors import InputError
from cfel.experiment.document import Table
from cfel.experiment.fill_in import change_document, fill_in
from cfel.experiment.fleet_section import reject_short_trace
from cfel.experiment.python_parts import Part
from cfel.experiment.sections import BudgetParameters, CompressionParameters, DataParameters, ModelParameters
from cfel.experiment.step_rules import check_steps, find_small_batches, keeps_dropped
from cfel.experiment.tables import parse_sections, to_document
from cfel.learning.aggregation import AggregationParameters
from cfel.learning.compression.compressors import compressor
from cfel.learning.data import BUILTIN as DATA_SETS
from cfel.learning.data import SHAPES, DataSet, load
from cfel.learning.data.augment import augmentation
from cfel.learning.data.held_out import hold_out
from cfel.learning.data.partition import partition
from cfel.learning.device_messages import DeviceState
from cfel.learning.edge_optimisers import build_rules
from cfel.learning.edge_rule import EdgeRules
from cfel.learning.local.algorithms import build_algorithm
from cfel.learning.local.parameters import LocalParameters, TrainingParameters
from cfel.learning.models.builders import BUILTIN as MODELS
from cfel.learning.models.builders import model_builder
from cfel.learning.models.flat import FlatModule
from cfel.learning.models.safetensors_files import load_model
from cfel.learning.task import DeviceData, Task, check_batches, check_task, count_parameters, load_custom_task
from cfel.plugins import ANY_CODE, CodePolicy
from cfel.rounds.buffering import check_buffering
from cfel.rounds.dry_run import compute_use
from cfel.rounds.engine_choice import choose_engine
from cfel.rounds.parameters import SimulationParameters
from cfel.system import (
    FleetParameters,
    TopologyParameters,
    build_backhaul,
    build_fleet,
)
from cfel.world import World

CHOOSING_THETA = ("hcef", "hcef_plus", "cef_c", "anycost", "fedluck", "nori")


@dataclass(frozen=True, slots=True, init=False)
class Experiment:
    """An experiment with every default filled in; one attribute per section of the file.

    Args:
        preset: where sections and keys that are not given come from, as in a file.
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
        preset: str = "demo",
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
    ) -> None:
        given = {
            "name": name,
            "seed": seed,
            "rounds": rounds,
            "fleet": fleet,
            "topology": topology,
            "data": data,
            "model": model,
            "local": local,
            "scheme": scheme,
            "compression": compression,
            "aggregation": aggregation,
            "budget": budget,
            "simulation": simulation,
            "deployment": deployment,
        }
        parts, objects = fill_in({key: each for key, each in given.items() if each is not None}, preset)
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
        compressor(self.compression.kind, self.code)
        chooses = self.scheme.name in CHOOSING_THETA and self.scheme.theta_min < 1
        # It would be charged for a share θ, but send everything.
        if self.compression.kind == "none" and chooses:
            reason = f"scheme {self.scheme.name!r} chooses how much is sent, and is charged for that"
            raise InputError(f"compression.kind = 'none': {reason}; choose a compressor")
        augmentation(self.data.augment, self.code)
        self.build_edge_rules()
        algorithm, scheme = build_algorithm(self.local, self.code), build_scheme(self.scheme, self.code)
        check_buffering(self.aggregation, self.simulation, algorithm)
        check_steps(self.local, self.scheme.name, scheme.device_overrides, algorithm, self.compression)

    def change(self, changes: Mapping[str, Any]) -> "Experiment":
        """The experiment with some keys changed.

        Args:
            changes: values by dotted keys, as in {"rounds.edge": 2, "scheme": "cef", "seed": 1}.
        """
        document, objects = change_document(to_document(self), changes)
        return Experiment(**parse_sections(document), preset="none", code=self.code.add_objects(objects))

    def build_setting(self) -> Setting:
        """What the controller alone needs; loads data only if sizes cannot be known without."""
        samples = None
        if self.fleet.sampling().needs_samples:
            samples = [len(indices) for indices in self._split(self.load_task())[1]]
        return self._build_setting(self.model.charged_parameters or self.count_parameters(), samples)

    def _build_setting(self, parameters: int, samples: Sequence[int] | None) -> Setting:
        fleet = build_fleet(self.fleet, self.seed)
        reject_short_trace(self.fleet, fleet, self.rounds)
        if samples is not None:
            fleet = replace(fleet, samples=np.asarray(samples, dtype=np.float64))
        backhaul = build_backhaul(self.topology, fleet.sizes, self.seed, self.code)
        bits, exchanged = 32.0 * parameters, 1.0 + self.build_edge_rules().vectors
        scheme = build_scheme(self.scheme, self.code)
        setting = Setting(
            seed=self.seed,
            rounds=self.rounds,
            fleet=fleet,
            backhaul=backhaul,
            backhaul_seconds=backhaul_seconds(backhaul.graph, bits * exchanged),
            model_bits=bits,
            exchanged_models=exchanged,
            scheme=scheme,
            links=choose_links(scheme, backhaul),
            joules_per_bit=self.topology.joules_per_bit,
            work_per_step=build_algorithm(self.local, self.code).gradients,
            small_batches=find_small_batches(self.local, scheme.device_overrides, self.data.batch),
        )
        budget = self._compute_budget(setting)
        if self.local.schedule_by == "budget" and np.isinf([budget.seconds, budget.joules]).all():
            raise InputError("local.schedule_by = 'budget': set a [budget], or use 'rounds'")
        return replace(setting, budget=budget)

    def count_parameters(self) -> int:
        """Counts the trained parameters that devices share, unless the file states their number."""
        if self.model.parameters is not None:
            return self.model.parameters
        # The shape of a built-in data set is known, so that planning works before its files are there.
        if self.data.task is None and self.data.name in SHAPES:
            builder = model_builder(self.model.name, self.code)
            return count_parameters(builder, *SHAPES[self.data.name], self.model.personal)
        return self._build_start(self.load_task()).shared.parameters

    def _compute_budget(self, setting: Setting) -> Budget:
        """Total budgets in seconds and joules; a given number takes precedence over a share of CEF's use."""
        # A dry run of many rounds takes long, so only if its result counts.
        share = self.budget.share_of_cef if None in (self.budget.seconds, self.budget.joules) else None
        limit = Budget() if share is None else compute_use(setting).take_share(share)
        return Budget(self.budget.seconds or limit.seconds, self.budget.joules or limit.joules)

    def load_task(self) -> Task:
        """What is learned; loads the data."""
        if self.data.task is not None:
            found = load_custom_task(self.data.task, self.data.folder(), self.code)
            return replace(found, seed=self.seed, personal=self.model.personal or found.personal)
        data = load(self.data.name, self.data.folder(), self.code)
        model = model_builder(self.model.name, self.code)
        augment, personal = augmentation(self.data.augment, self.code), self.model.personal
        task = Task(data, model, augment=augment, seed=self.seed, personal=personal)
        if not (self.model.name in MODELS and self.data.name in DATA_SETS):
            check_task(f"data {self.data.name!r} with model {self.model.name!r}", task)
        return task

    def build_world(self) -> World:
        """Everything a run needs, built."""
        task = self.load_task()
        data, shares = self._split(task)
        task = replace(task, data=data)
        flat = self._build_start(task)
        samples = [len(indices) for indices in shares]
        check_batches(flat, self.data.batch, samples)
        rules = self.build_edge_rules()
        start = rules.add_memory(flat.read())
        size = start.parameters.numel()
        setting = self._build_setting(self.model.charged_parameters or size, samples)
        setting = replace(
            setting,
            backhaul=weight_backhaul(setting, samples),
            # Uploads are charged as for `charged_parameters`, though the model that trains may be smaller.
            charged_share=setting.model_bits / (32.0 * size),
        )
        return World(
            setting=setting,
            task=task,
            data=tuple(DeviceData(data, indices) for indices in shares),
            training=self._build_training(setting.scheme.device_overrides),
            compress=compressor(self.compression.kind, self.code),
            start=start,
            aggregation=self.aggregation,
            edge_rules=rules,
            new_device=DeviceState(flat.read_personal().to_memory()),
        )

    def _split(self, task: Task) -> tuple[DataSet, list[IntArray]]:
        """The data to train and test on, and the training samples of each device."""
        data, shares = partition(task.data, self.fleet.devices, self.data.partition_parameters(), self.seed)
        return hold_out(data, shares, self.data.held_out, self.seed) if self.data.held_out else (data, shares)

    def _build_training(self, overrides: DeviceOverrides) -> TrainingParameters:
        """How devices train; what the scheme asks of them overrides the file."""
        local = replace(
            self.local,
            steps=overrides.steps or self.local.steps,
            kept_energy_at=overrides.kept_energy_at or self.local.kept_energy_at,
        )
        feedback = keeps_dropped(overrides, self.compression)
        return TrainingParameters(local, self.data.batch, feedback, build_algorithm(local, self.code))

    def resolve(self, world: World) -> "Experiment":
        """The experiment with the engine chosen."""
        engine = choose_engine(self.simulation.engine, world).engine
        return replace(self, simulation=replace(self.simulation, engine=engine))

    def build_edge_rules(self) -> EdgeRules:
        """What edge servers do with updates: the local algorithm's part, then their own optimiser."""
        return build_rules(self.local, self.aggregation, self.code)

    def _build_start(self, task: Task) -> FlatModule:
        """The module with the values that every edge server starts from."""
        flat = task.build()
        if self.model.init is not None:
            load_model(Path(self.model.init), flat)
        return flat
