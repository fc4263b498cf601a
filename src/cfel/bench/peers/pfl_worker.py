"""pfl's simulation in `cfel bench peers`, in one process or in several that share the users.

Run as `python -m cfel.bench.peers.pfl_worker SOCKET WORKLOAD PROCESSES`. The first process starts the
others, with the variables that torchrun would set.
"""

import os
import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 — the name every torch reader knows

from cfel.bench.peers.workload import (
    LEARNING_RATE,
    MOMENTUM,
    SEED,
    RaceLink,
    Workload,
    build_module,
    from_argument,
    make_images,
)

# More rounds than any race has.
ENDLESS = 1_000_000


def start_others(address: str, argument: str, processes: int) -> list[subprocess.Popen[bytes]]:
    """Starts the processes beside this one, which becomes the first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    common |= {"LOCAL_WORLD_SIZE": str(processes), "TORCHELASTIC_RUN_ID": "race"}
    os.environ |= common | {"RANK": "0", "LOCAL_RANK": "0"}
    command = [sys.executable, "-m", __spec__.name, address, argument, str(processes)]
    return [
        subprocess.Popen(command, env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)})  # noqa: S603
        for rank in range(1, processes)
    ]


def run_rounds(workload: Workload, link: RaceLink | None) -> None:
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


def main(address: str, argument: str, processes: str) -> None:
    """Runs rounds until the race is over."""
    count = int(processes)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // count))
    first = "RANK" not in os.environ
    others = start_others(address, argument, count) if first and count > 1 else []
    run_rounds(from_argument(argument), RaceLink(address) if first else None)
    for other in others:
        other.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
