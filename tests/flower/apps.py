"""Flower apps that the tests run: the same training as a train function and as a NumPyClient.

Needs flwr; import it after `pytest.importorskip`.
"""

from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from torch import nn

FEATURES, CLASSES, DEVICES = 6, 3, 4


def make_data(samples: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Samples of a problem that a linear model solves."""
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(samples, FEATURES)).astype(np.float32)
    return inputs, inputs[:, :CLASSES].argmax(axis=1)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def take_steps(model: nn.Module, partition: int, steps: int, rate: float, seed: int) -> float:
    """Local SGD on the data of one partition; returns the mean loss."""
    inputs, labels = map(torch.from_numpy, make_data(40, 100 + partition))
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    draw = np.random.default_rng(seed)
    losses = []
    for _ in range(steps):
        batch = torch.from_numpy(draw.choice(len(labels), 10, replace=False))
        loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
    return sum(losses) / len(losses)


def make_app(seen: list[dict[str, Any]], mods: list[Any] | None = None, **metrics: float) -> ClientApp:
    """An app with a train function; it notes what it was asked and how often it was called."""
    app = ClientApp(mods=mods)

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        config: dict[str, Any] = dict(message.content["config"])
        calls = 1 + (context.state["calls"]["calls"] if "calls" in context.state else 0)
        context.state["calls"] = MetricRecord({"calls": calls})
        partition = context.node_config["partition-id"]
        seen.append({**config, "partition": partition, "calls": calls})
        model = make_model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        seed = config["seed"] if "seed" in config else config["server-round"]
        loss = take_steps(model, partition, config["steps"], config.get("lr", 0.1), seed)
        values = {"num-examples": 40, "train_loss": loss, **metrics}
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(values)}
        return Message(RecordDict(content), reply_to=message)

    return app


class Client(NumPyClient):  # type: ignore[misc]
    """The same training, as a NumPyClient."""

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, float]]:
        """Trains."""
        model = make_model()
        names = list(model.state_dict())
        model.load_state_dict(dict(zip(names, map(torch.from_numpy, parameters), strict=True)))
        loss = take_steps(model, self._partition, config["steps"], config["lr"], config["seed"])
        return [value.numpy() for value in model.state_dict().values()], 40, {"train_loss": loss}


def client_fn(context: Context) -> Any:
    """What existing apps call `client_fn`."""
    return Client(int(context.node_config["partition-id"])).to_client()
