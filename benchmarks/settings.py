"""Fleets, models and random data of the right shapes to measure; no files.

Every setting has ρ = 1 and θ = 0.1 for all participating devices, planned by the solver as in any run.
"""

from dataclasses import dataclass

import numpy as np
import torch

from cfel.control import Rounds, Setting
from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Scheme, SchemeParameters, stateless
from cfel.cost import backhaul_seconds
from cfel.learning.compressors import compressor
from cfel.learning.data.dataset import DataSet, Normalisation
from cfel.learning.data.images import augmentation
from cfel.learning.local.parameters import LocalParameters, MomentumState, TrainingParameters
from cfel.learning.models.builders import model_builder
from cfel.learning.task import DeviceData, Task, initial_model
from cfel.seeding import make_generator
from cfel.simulation.parameters import SimulationParameters, choose_engine
from cfel.system.backhaul import TopologyParameters, build_backhaul
from cfel.system.fleet import Availability, FleetParameters, build_fleet
from cfel.world import Evaluations, World

SEED = 0
RHO, THETA = 1.0, 0.1
# So many rounds that the last one, which would be evaluated, is never reached.
ENDLESS = 100_000
TEST_SAMPLES = 10


@dataclass(frozen=True, slots=True)
class BenchSetting:
    """A fleet, a model and data to measure.

    Attributes:
        name: display name.
        model, shape, classes: the model, its inputs and outputs.
        devices, clusters: the fleet.
        samples: samples per device.
        batch, local_steps, edge_rounds: B, τ and q.
        target: minimum speed relative to the bare loop.
        augment: augmentation of the images.
        present: mean number of devices in a global round, chosen at random; None for all.
        momentum_state: "keep" needs memory for every device.
        engine: as in an experiment file.
    """

    name: str
    model: str
    shape: tuple[int, ...]
    classes: int
    devices: int = 64
    clusters: int = 8
    samples: int = 250
    batch: int = 50
    local_steps: int = 5
    edge_rounds: int = 5
    target: float = 1.0
    augment: str = "none"
    present: int | None = None
    momentum_state: MomentumState = "keep"
    engine: str = "auto"


RESNET = BenchSetting("ResNet-20", "resnet20", (3, 32, 32), 10, target=0.95, augment="crop_flip")
LEAF = BenchSetting("LEAF CNN", "leaf_cnn", (1, 28, 28), 62, target=0.95)
PERCEPTRON = BenchSetting("MLP on digits", "mlp", (1, 8, 8), 10, samples=28, batch=10, target=3.0)
SMALL = BenchSetting(
    "small CNN, 50 of 1,000",
    "small_cnn",
    (3, 32, 32),
    10,
    devices=1000,
    samples=50,
    batch=10,
    edge_rounds=1,
    present=50,
    momentum_state="reset",
)


def make_random_data(setting: BenchSetting) -> DataSet:
    """Random images and random targets."""
    draw = make_generator(SEED, "bench data")
    count = setting.devices * setting.samples
    channels = setting.shape[0]
    tests = TEST_SAMPLES

    def images(size: int) -> torch.Tensor:
        return torch.from_numpy(draw.integers(0, 256, (size, *setting.shape), dtype=np.uint8))

    def targets(size: int) -> torch.Tensor:
        return torch.from_numpy(draw.integers(0, setting.classes, size))

    return DataSet(
        "random",
        images(count),
        targets(count),
        images(tests),
        targets(tests),
        setting.classes,
        Normalisation((0.5,) * channels, (0.25,) * channels),
    )


def build_pinned_scheme() -> Scheme:
    """A scheme that solves P2 in every edge round with ρ and θ pinned."""
    parameters, bounds = SchemeParameters(), Bounds((RHO, RHO), (THETA, THETA))
    return stateless(lambda observation: plan_round(observation, parameters, bounds))


def build_bench_world(setting: BenchSetting) -> World:
    """Builds the world of a setting."""
    data = make_random_data(setting)
    task = Task(data, model_builder(setting.model), augment=augmentation(setting.augment))
    absent = 0.0 if setting.present is None else 1 - setting.present / setting.devices
    fleet = build_fleet(FleetParameters(setting.devices, setting.clusters, availability=Availability(absent)))
    backhaul = build_backhaul(TopologyParameters(), fleet.sizes, SEED)
    start = initial_model(task, SEED)
    bits = 32.0 * start.parameters.numel()
    shares = np.arange(setting.devices * setting.samples).reshape(setting.devices, setting.samples)
    return World(
        setting=Setting(
            seed=SEED,
            rounds=Rounds(ENDLESS, setting.edge_rounds, setting.local_steps),
            fleet=fleet,
            backhaul=backhaul,
            backhaul_seconds=backhaul_seconds(backhaul.graph, bits),
            model_bits=bits,
            scheme=build_pinned_scheme(),
        ),
        task=task,
        data=tuple(DeviceData(data, own) for own in shares),
        training=TrainingParameters(
            LocalParameters(momentum_state=setting.momentum_state, learning_rate=0.01), setting.batch
        ),
        compress=compressor("topk"),
        start=start,
        evaluation=Evaluations(every=ENDLESS),
    )


def build_bench_parameters(setting: BenchSetting, world: World) -> SimulationParameters:
    """The engine that this model gets by default."""
    engine = choose_engine(setting.engine, world).engine
    return SimulationParameters(engine=engine)
