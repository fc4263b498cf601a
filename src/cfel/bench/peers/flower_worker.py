"""Flower's simulation engine in `cfel bench peers`: FedAvg on Ray, one actor per core.

Run as `python -m cfel.bench.peers.flower_worker SOCKET WORKLOAD ACTORS`.
"""

import os
import sys
import time
from collections.abc import Iterable
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812 — the name every torch reader knows
from torch import Tensor, nn

from cfel.bench.peers.workload import (
    LEARNING_RATE,
    MOMENTUM,
    RaceLink,
    Workload,
    build_module,
    from_argument,
    make_images,
    to_argument,
)

WORKLOAD_VARIABLE = "CFEL_PEERS_WORKLOAD"
ENDLESS = 1_000_000


@cache
def load_in_actor() -> tuple[Workload, Tensor, Tensor, nn.Module]:
    """Data and model, once per actor: a client app that loads them anew for each message would be slower."""
    torch.set_num_threads(1)
    workload = from_argument(os.environ[WORKLOAD_VARIABLE])
    return workload, *make_images(workload), build_module(workload)


def build_client_app() -> object:
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


def build_server_app(workload: Workload, link: RaceLink) -> object:
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


def main(address: str, argument: str, actors: str) -> None:
    """Runs rounds until the race is over."""
    from flwr.simulation import run_simulation

    workload = from_argument(argument)
    os.environ[WORKLOAD_VARIABLE] = to_argument(workload)
    run_simulation(
        server_app=build_server_app(workload, RaceLink(address)),
        client_app=build_client_app(),
        num_supernodes=workload.users,
        backend_config={
            "client_resources": {"num_cpus": (os.cpu_count() or 1) / int(actors), "num_gpus": 0.0},
            "init_args": {"include_dashboard": False, "address": "local", "_node_ip_address": "127.0.0.1"},
        },
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
