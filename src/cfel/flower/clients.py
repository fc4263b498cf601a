"""Flower clients in this process: they train the devices of a cfel simulation, or a strategy on trial.

Each client has its own `Context`; there is no SuperLink and no Ray. In a simulation it gets the edge model's
parameters and the planned number of steps. cfel takes the difference, sparsifies it, charges time and energy,
aggregates and gossips as for any other algorithm.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from cfel import validation
from cfel.errors import InputError
from cfel.flower.records import (
    find_record,
    identify_process,
    make_record,
    open_context,
    read_like,
    read_metrics,
)
from cfel.learning.local.algorithm import LocalAlgorithm, LocalParameters, WholeResult, WholeRun
from cfel.learning.local.algorithms import AlgorithmBuilder
from cfel.learning.local.estimates import Estimates
from cfel.wording import show

LOSSES = ("train_loss", "train-loss", "loss")
"""Metrics in which clients report their mean training loss; the first that is there counts."""


def train_with(
    app: ClientApp,
    devices: int,
    *,
    run_config: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> AlgorithmBuilder:
    """Lets the clients of a Flower app train, for `cfel.Experiment(local={"algorithm": …})`.

    The app has a train function (`@app.train()`), or a `client_fn` that returns a `NumPyClient`. Its config
    holds `steps`, `lr`, `seed`, `server-round` and `edge-round`. It must take `steps` local steps and return
    a metric `train_loss` (or `train-loss`, or `loss`); estimates of σ² and G² are used if it returns both, as
    `sigma2` and `g2`.

    Args:
        app: the app.
        devices: how many there are; device n is partition n of as many.
        run_config: for `context.run_config`.
        config: further entries of the config of every message.
    """
    if not isinstance(app, ClientApp):
        raise InputError(f"train_with: needs a ClientApp, got a {type(app).__name__}")
    validation.check_whole("devices", devices, least=1)

    def flower_clients(local: LocalParameters) -> LocalAlgorithm:  # noqa: ARG001 — part of the interface
        identify_process()
        # Made with the run, not with the experiment: two runs must not share what clients remember.
        return LocalAlgorithm(train=_Clients(app, devices, run_config or {}, config or {}).train)

    return flower_clients


class _Clients:
    """The clients of one run, by device."""

    def __init__(
        self, app: ClientApp, devices: int, run_config: Mapping[str, Any], config: Mapping[str, Any]
    ) -> None:
        self._app, self._devices = app, devices
        self._run_config, self._config = run_config, config
        self._contexts: dict[int, Context] = {}
        self._last: dict[int, tuple[int, int]] = {}

    def train(self, run: WholeRun) -> WholeResult:
        """One device's edge round: sends its client a message and reads the reply."""
        where = f"the client of device {run.device}"
        reply = self._app(self._make_message(run), self._find_context(run))
        if reply.has_error():
            raise InputError(f"{where}: failed: {reply.error.reason}")
        metrics = read_metrics(reply.content)
        names = list(run.module.state_dict())
        arrays = read_like(find_record(reply.content, where)[1], names, where)
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise InputError(f"{where}: {name} is {array.dtype}, not numbers")
        values = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        return WholeResult(values, _find_loss(metrics, where), _find_estimates(metrics, where))

    def _find_context(self, run: WholeRun) -> Context:
        """The device's context; a new one where a run starts again."""
        if run.device >= self._devices:
            raise InputError(f"train_with: device {run.device}, but devices = {self._devices}")
        now = run.global_round, run.edge_round
        if run.device not in self._contexts or now <= self._last[run.device]:
            self._contexts[run.device] = open_context(run.device, self._devices, self._run_config)
        self._last[run.device] = now
        return self._contexts[run.device]

    def _make_message(self, run: WholeRun) -> Message:
        # Flower keeps private how an app was made, but only its own format reaches a `client_fn`.
        has_fit = getattr(self._app, "_call", None) is not None
        arrays, config = ("fitins.parameters", "fitins.config") if has_fit else ("arrays", "config")
        state = {name: value.detach().cpu().numpy() for name, value in run.module.state_dict().items()}
        orders = {
            **self._config,
            "steps": run.steps,
            "lr": run.rate,
            "seed": run.seed,
            "server-round": run.global_round + 1,
            "edge-round": run.edge_round + 1,
        }
        content = RecordDict({arrays: make_record(state), config: ConfigRecord(orders)})
        return Message(content, dst_node_id=run.device + 1, message_type=MessageType.TRAIN)


def _find_loss(metrics: Mapping[str, Any], where: str) -> float:
    for name in LOSSES:
        if name in metrics:
            return _read_number(metrics, name, where)
    raise InputError(
        f"{where}: returned no training loss: it must have a metric {LOSSES[0]!r}, it has {sorted(metrics)}"
    )


def _find_estimates(metrics: Mapping[str, Any], where: str) -> Estimates | None:
    if "sigma2" not in metrics or "g2" not in metrics:
        return None
    return Estimates(_read_number(metrics, "sigma2", where), _read_number(metrics, "g2", where))


def _read_number(metrics: Mapping[str, Any], name: str, where: str) -> float:
    """A metric that is a number; it need not be finite, as training may have diverged."""
    value = metrics[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where}: {name} = {show(value)}: must be a number")
    return float(value)


class LocalGrid(Grid):  # type: ignore[misc]
    """Nodes 1 … n of this process, called one after another; node i has partition i − 1.

    An exception in a client is raised here, with its traceback. With Flower's own grids it becomes a reply
    with an error.

    Args:
        app: what every node runs.
        nodes: how many there are.
        run_config: for their contexts.
    """

    def __init__(self, app: ClientApp, nodes: int, run_config: Mapping[str, Any] | None = None) -> None:
        identify_process()
        self._app = app
        self._contexts: dict[int, Context] = {
            place + 1: open_context(place, nodes, run_config or {}) for place in range(nodes)
        }
        self._replies: dict[str, Message] = {}
        self._sent = 0

    def set_run(self, run: Any) -> None:  # noqa: ANN401 — Flower's Run
        """There is one run only."""

    @property
    def run(self) -> Any:  # noqa: ANN401 — Flower's Run
        """There is no description of the run."""
        raise InputError("LocalGrid: a run without SuperLink has no description")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A new message, as in Flower."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Runs the clients; their replies can then be pulled."""
        names = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self._contexts:
                raise InputError(f"LocalGrid: there is no node {node}, only 1 to {len(self._contexts)}")
            self._sent += 1
            names.append(str(self._sent))
            self._replies[names[-1]] = self._app(message, self._contexts[node])
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages, each once."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,  # noqa: ARG002 — all replies are there at once
    ) -> Iterable[Message]:
        """Runs the clients and returns their replies."""
        return self.pull_messages(self.push_messages(messages))
