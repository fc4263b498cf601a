"""What `cfel bench simulation` runs: fleets, models and random data of the right shapes; no files needed.

Every setting has ρ = 1 and θ = 0.1 for all who take part, planned by the solver as in any run.
"""

from dataclasses import dataclass

import numpy as np
import torch

from cfel.control import Rounds, Setting
from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import Scheme, SchemeParameters, stateless
from cfel.cost import backhaul_seconds
from cfel.learning.compression.compressors import compressor
from cfel.learning.data.augment import augmentation
from cfel.learning.data.dataset import DataSet, Normalisation
from cfel.learning.local.sgd import LocalParameters, MomentumState
from cfel.learning.models.builders import model_builder
from cfel.learning.task import DeviceData, Task, initial_model
from cfel.rounds.parameters import SimulationParameters, choose_engine
from cfel.seeding import generator
from cfel.system import Availability, FleetParameters, TopologyParameters, build_backhaul, build_fleet
from cfel.world import World

SEED = 0
RHO, THETA = 1.0, 0.1
# The run never comes to its last round, which would be evaluated.
ENDLESS = 1_000_000
TEST_SAMPLES = 10


@dataclass(frozen=True, slots=True)
class BenchSetting:
    """One thing to measure.

    Attributes:
        name: for tables.
        model, shape, classes: what is trained.
        devices, clusters: the fleet.
        samples: that each device holds.
        batch, local_steps, edge_rounds: B, τ and q.
        target: least ratio to the plain loop.
        augment: of the images.
        present: so many devices take part in a global round, at random and on average; None for all.
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


def random_data(setting: BenchSetting) -> DataSet:
    """Bytes as images, classes as targets."""
    draw = generator(SEED, "bench data")
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


def pinned_scheme() -> Scheme:
    """P2 solved every edge round with ρ and θ pinned."""
    parameters, bounds = SchemeParameters(), Bounds((RHO, RHO), (THETA, THETA))
    return stateless(lambda observation: plan_round(observation, parameters, bounds))


def bench_world(setting: BenchSetting) -> World:
    """The setting, built."""
    data = random_data(setting)
    task = Task(data, model_builder(setting.model), augment=augmentation(setting.augment))
    away = 0.0 if setting.present is None else 1 - setting.present / setting.devices
    fleet = build_fleet(FleetParameters(setting.devices, setting.clusters, availability=Availability(away)))
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
            scheme=pinned_scheme(),
        ),
        task=task,
        data=tuple(DeviceData(data, own) for own in shares),
        local=LocalParameters(batch=setting.batch, momentum_state=setting.momentum_state, learning_rate=0.01),
        compress=compressor("topk"),
        start=start,
    )


def bench_parameters(setting: BenchSetting, world: World) -> SimulationParameters:
    """No checkpoints, no evaluation, and the engine that an experiment of this model would get."""
    buffers = world.start.buffers.numel() > 0
    engine = choose_engine(setting.engine, world.start.parameters.numel(), buffers)
    return SimulationParameters(engine=engine, evaluate_every=ENDLESS, checkpoint_every=0)
