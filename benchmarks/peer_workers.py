"""What every system computes in `python -m benchmarks peers`, and the workers that compute it.

    python -m benchmarks.peer_workers SYSTEM SOCKET WORKLOAD PARALLEL

A worker runs one round as a warm-up, reports it, and then runs one more each time it is asked. This module
needs torch, NumPy and cfel's models only, as it also runs where cfel's other dependencies are missing.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 — the name every torch reader knows
from torch import Tensor, nn

from cfel.learning.models.builders import model_builder

if TYPE_CHECKING:
    from benchmarks.settings import BenchSetting

SEED = 0
LEARNING_RATE, MOMENTUM = 0.01, 0.9
# More rounds than any race has.
ENDLESS = 1_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """A round: `cohort` of `users` take `steps` steps of plain SGD with momentum on their own samples.

    Attributes:
        name: display name.
        model, shape, classes: the model, its inputs and outputs.
        users, cohort: all users, and those of a round.
        samples, batch: of one user; a user passes over its samples once.
    """

    name: str
    model: str
    shape: tuple[int, ...]
    classes: int
    users: int
    cohort: int
    samples: int
    batch: int

    @property
    def steps(self) -> int:
        """Local steps of a user in a round."""
        return self.samples // self.batch


SMALL = Workload("small CNN, 50 of 1,000 users", "small_cnn", (3, 32, 32), 10, 1000, 50, 50, 10)
LEAF = Workload("LEAF CNN, 64 devices", "leaf_cnn", (1, 28, 28), 62, 64, 64, 250, 50)
WORKLOADS = {"small_cnn": SMALL, "leaf_cnn": LEAF}


def build_module(workload: Workload) -> nn.Module:
    """The model, with the same weights in every system."""
    torch.manual_seed(SEED)
    return model_builder(workload.model)(workload.shape, workload.classes)


def make_images(workload: Workload) -> tuple[Tensor, Tensor]:
    """Random images and targets of all users, in the order of the users."""
    draw = np.random.default_rng(SEED)
    count = workload.users * workload.samples
    images = draw.standard_normal((count, *workload.shape), dtype=np.float32)
    return torch.from_numpy(images), torch.from_numpy(draw.integers(0, workload.classes, count))


class RaceLink:
    """A worker's end of the connection to the race, over a Unix socket."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def report(self, seconds: float) -> None:
        """Says how long the round took."""
        self._socket.sendall(f"{seconds}\n".encode())

    def wait_for_turn(self) -> bool:
        """Waits until another round is wanted; False when the race is over."""
        return bool(self._lines.readline())


def to_argument(workload: Workload) -> str:
    """The workload as one argument of a command."""
    return json.dumps(asdict(workload))


def from_argument(argument: str) -> Workload:
    """The reverse of `to_argument`."""
    values = json.loads(argument)
    return Workload(**values | {"shape": tuple(values["shape"])})


def run_bare(address: str, workload: Workload, threads: int) -> None:
    """Runs a bare loop: users one after another, averaging, and nothing else; torch's threads."""
    link = RaceLink(address)
    torch.set_num_threads(threads)
    images, targets = make_images(workload)
    module = build_module(workload)
    module.train()
    draw = np.random.default_rng(SEED)
    weights: list[Tensor] = [each.detach().clone() for each in module.parameters()]
    more = True
    while more:
        begin = time.perf_counter()
        sums = [torch.zeros_like(each) for each in weights]
        for user in draw.choice(workload.users, workload.cohort, replace=False):
            with torch.no_grad():
                for own, common in zip(module.parameters(), weights, strict=True):
                    own.copy_(common)
            optimiser = torch.optim.SGD(module.parameters(), LEARNING_RATE, momentum=MOMENTUM)
            for places in draw.permutation(workload.samples).reshape(workload.steps, -1):
                rows = torch.from_numpy(places + int(user) * workload.samples)
                loss = F.cross_entropy(module(images[rows]), targets[rows])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            for total, own in zip(sums, module.parameters(), strict=True):
                total += own.detach()
        weights = [total / workload.cohort for total in sums]
        link.report(time.perf_counter() - begin)
        more = link.wait_for_turn()


def describe_setting(workload: Workload) -> "BenchSetting":
    """The workload as a setting of cfel; a round is one edge round of eight clusters."""
    from benchmarks.settings import BenchSetting

    return BenchSetting(
        name=workload.name,
        model=workload.model,
        shape=workload.shape,
        classes=workload.classes,
        devices=workload.users,
        samples=workload.samples,
        batch=workload.batch,
        local_steps=workload.steps,
        edge_rounds=1,
        present=None if workload.cohort == workload.users else workload.cohort,
        momentum_state="reset",
    )


def run_cfel(address: str, workload: Workload, workers: int) -> None:
    """Runs cfel itself: rounds with plans, estimates, top-k, gossip and the log on disk."""
    from benchmarks.settings import build_bench_parameters, build_bench_world
    from benchmarks.simulation import open_timed_rounds

    link, setting = RaceLink(address), describe_setting(workload)
    world = build_bench_world(setting)
    parameters = replace(build_bench_parameters(setting, world), workers=workers)
    with open_timed_rounds(world, parameters) as rounds:
        for done in rounds:
            # Who takes part is drawn at random: the time of a round of exactly the cohort's steps counts.
            share = workload.cohort * workload.steps / max(1, done.steps)
            link.report(done.seconds * share)
            if not link.wait_for_turn():
                return


def run_pfl(address: str, workload: Workload, processes: int) -> None:
    """Runs pfl's simulation, in one process or in several that share the users."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    first = "RANK" not in os.environ
    others = _start_other_processes(processes) if first and processes > 1 else []
    _run_pfl_rounds(workload, RaceLink(address) if first else None)
    for other in others:
        other.wait()


def _start_other_processes(processes: int) -> list[subprocess.Popen[bytes]]:
    """Starts this worker again, with torchrun's variables; this process becomes the first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    common |= {"LOCAL_WORLD_SIZE": str(processes), "TORCHELASTIC_RUN_ID": "race"}
    os.environ |= common | {"RANK": "0", "LOCAL_RANK": "0"}
    command = [sys.executable, "-m", "benchmarks.peer_workers", *sys.argv[1:]]
    return [
        subprocess.Popen(command, env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(1, processes)
    ]


def _run_pfl_rounds(workload: Workload, link: RaceLink | None) -> None:
    """Trains until the race is over; only the first process has a link."""
    # pfl joins its processes when it is imported.
    from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
    from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]
    from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found]
    from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found]
    from pfl.data.dataset import Dataset  # type: ignore[import-not-found]
    from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
    from pfl.data.sampling import get_user_sampler  # type: ignore[import-not-found]
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams  # type: ignore[import-not-found]
    from pfl.metrics import Metrics  # type: ignore[import-not-found]
    from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]

    class Turns(TrainingProcessCallback):  # type: ignore[misc]
        """Reports each round, and waits for the next turn; its answer ends training in every process."""

        begin = time.perf_counter()

        def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, object]:
            if link is not None:
                link.report(time.perf_counter() - self.begin)
            ends = torch.tensor([link is not None and not link.wait_for_turn()], dtype=torch.float32)
            if torch.distributed.is_initialized():
                torch.distributed.all_reduce(ends)
            self.begin = time.perf_counter()
            return bool(ends.item()), Metrics()

    images, targets = make_images(workload)

    def make_dataset(user: int) -> object:
        rows = torch.randperm(workload.samples) + user * workload.samples
        return Dataset(raw_data=[images[rows], targets[rows]])

    np.random.seed(SEED)  # noqa: NPY002 — pfl draws from the global generator
    users = FederatedDataset(make_dataset, get_user_sampler("random", list(range(workload.users))))
    module: Any = build_module(workload)
    module.loss = lambda x, y: F.cross_entropy(module(x), y)
    module.metrics = lambda *_: {}
    model = PyTorchModel(
        model=module,
        local_optimizer_create=lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=MOMENTUM),
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ENDLESS,
            evaluation_frequency=ENDLESS,
            train_cohort_size=workload.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=workload.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=workload.batch),
        callbacks=[Turns()],
    )


WORKLOAD_VARIABLE = "CFEL_PEERS_WORKLOAD"


@cache
def load_in_actor() -> tuple[Workload, Tensor, Tensor, nn.Module]:
    """Data and model, once per actor: a client app that loads them anew for each message would be slower."""
    torch.set_num_threads(1)
    workload = from_argument(os.environ[WORKLOAD_VARIABLE])
    return workload, *make_images(workload), build_module(workload)


def _build_client_app() -> object:
    """A client app as Flower's PyTorch example has it."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        workload, images, targets, module = load_in_actor()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        module.train()
        optimiser = torch.optim.SGD(module.parameters(), LEARNING_RATE, momentum=MOMENTUM)
        first = int(context.node_config["partition-id"]) * workload.samples
        for places in torch.randperm(workload.samples).reshape(workload.steps, -1):
            rows = places + first
            loss = F.cross_entropy(module(images[rows]), targets[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        content = {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": workload.samples}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


def _build_server_app(workload: Workload, link: RaceLink) -> object:
    """FedAvg over the cohort without evaluation; it stops when the race is over."""
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    class RaceOverError(Exception):
        """Ends the strategy's loop."""

    class Turns(FedAvg):  # type: ignore[misc]
        """FedAvg that reports each round and waits for the next turn."""

        begin = time.perf_counter()

        def aggregate_train(self, server_round: int, replies: Iterable[object]) -> object:
            result = super().aggregate_train(server_round, replies)
            link.report(time.perf_counter() - self.begin)
            if not link.wait_for_turn():
                raise RaceOverError
            self.begin = time.perf_counter()
            return result

    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, _: Context) -> None:
        strategy = Turns(
            fraction_train=workload.cohort / workload.users,
            fraction_evaluate=0.0,
            min_available_nodes=workload.users,
        )
        try:
            strategy.start(grid, ArrayRecord(build_module(workload).state_dict()), num_rounds=ENDLESS)
        except RaceOverError:
            return

    return app


def run_flower(address: str, workload: Workload, actors: int) -> None:
    """Runs Flower's simulation engine: FedAvg on Ray, one actor per core."""
    from flwr.simulation import run_simulation

    os.environ[WORKLOAD_VARIABLE] = to_argument(workload)
    run_simulation(
        server_app=_build_server_app(workload, RaceLink(address)),
        client_app=_build_client_app(),
        num_supernodes=workload.users,
        backend_config={
            "client_resources": {"num_cpus": (os.cpu_count() or 1) / actors, "num_gpus": 0.0},
            "init_args": {"include_dashboard": False, "address": "local", "_node_ip_address": "127.0.0.1"},
        },
    )


def run_fluke(address: str, workload: Workload, threads: int) -> None:
    """Runs fluke's FedAvg: one client after another in one process, with torch's threads."""
    from fluke import FlukeENV  # type: ignore[import-not-found]
    from fluke.algorithms import CentralizedFL  # type: ignore[import-not-found]
    from fluke.client import Client  # type: ignore[import-not-found]
    from fluke.config import OptimizerConfigurator  # type: ignore[import-not-found]
    from fluke.data import FastDataLoader  # type: ignore[import-not-found]
    from fluke.server import EarlyStopping, Server  # type: ignore[import-not-found]

    link = RaceLink(address)
    torch.set_num_threads(threads)
    np.random.seed(SEED)  # noqa: NPY002 — fluke draws from the global generator
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    images, targets = make_images(workload)
    optimiser = OptimizerConfigurator({"name": "SGD", "lr": LEARNING_RATE, "momentum": MOMENTUM})

    def make_client(user: int) -> object:
        own = slice(user * workload.samples, (user + 1) * workload.samples)
        data = FastDataLoader(
            images[own], targets[own], num_labels=workload.classes, batch_size=workload.batch, shuffle=True
        )
        # Without persistency a client begins every round with a new optimiser, as in the other systems.
        return Client(user, data, None, optimiser, nn.CrossEntropyLoss(), local_epochs=1, persistency=False)

    class Turns(Server):  # type: ignore[misc]
        """Reports each round, and waits for the next turn."""

        begin = time.perf_counter()

        def aggregate(self, *arguments: object, **options: object) -> None:
            super().aggregate(*arguments, **options)
            link.report(time.perf_counter() - self.begin)
            if not link.wait_for_turn():
                raise EarlyStopping(0)
            self.begin = time.perf_counter()

    clients = [make_client(user) for user in range(workload.users)]
    server = Turns(build_module(workload), None, clients)
    race = CentralizedFL(workload.users, None, {}, clients, server)
    race.run(ENDLESS, workload.cohort / workload.users)


WORKERS = {"cfel": run_cfel, "bare": run_bare, "pfl": run_pfl, "flower": run_flower, "fluke": run_fluke}


if __name__ == "__main__":
    # Imported, as Flower's actors look for functions in their module, not in `__main__`.
    from benchmarks import peer_workers

    _system, _address, _argument, _parallel = sys.argv[1:]
    peer_workers.WORKERS[_system](_address, peer_workers.from_argument(_argument), int(_parallel))
