"""cfel's plans in a Flower federation: FedAvg with steps and sparsity per client.

    strategy = PlannedFedAvg(local_steps=10, time_budget=600, energy_budget=300)    # the server's side
    strategy.start(grid, initial_arrays, num_rounds=20)

    app = ClientApp(mods=[send_sparse()])                                           # the client's side
    describe_node(app, {"mu": 0.2, "alpha": 1.1, "nu": 6.0, "power": 0.8})

Every message of a round has `steps` and `theta` of its client in its config. Sparse replies are made whole
before FedAvg averages them; all must fit the model and be finite. What earlier rounds left out is in
`context.state`, which Flower keeps on the node. Decisions and accounts are in `planner`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median_low
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from cfel import validation
from cfel.control.scheme import SchemeParameters
from cfel.errors import InputError
from cfel.flower.planner import NodeConditions, NodeOrder, NodeReport, RoundPlanner
from cfel.flower.records import find_record, make_record, read_like, read_metrics, read_record
from cfel.flower.sparse import STATISTICS, SparseUpdate, check_arrays, restore, sparsify

QUESTION = "cfel_conditions"
"""The action of the strategy's query."""

INDICES, VALUES = "cfel.indices", "cfel.values"
"""Names of the arrays that hold a sparse update."""

METRIC = "cfel-"
"""What the names of metrics for the strategy begin with."""

_RESIDUAL = "cfel.residual"
_log = logging.getLogger("flwr")

ClientFunction = Callable[[Message, Context], Message]


def send_sparse(
    whole: Sequence[str] = STATISTICS, *, measure: bool = False
) -> Callable[[Message, Context, ClientFunction], Message]:
    """A mod: the client trains as ever, and the largest entries of its update are sent, as planned.

    Messages without `theta` in their config pass unchanged.

    Args:
        whole: ends of names of arrays that are not sparsified; give the strategy the same.
        measure: report seconds per step (the metric `cfel-mu`), as measured here, for the next plans.
    """

    def mod(message: Message, context: Context, call_next: ClientFunction) -> Message:
        config = read_metrics(message.content)
        if message.metadata.message_type != MessageType.TRAIN or "theta" not in config:
            return call_next(message, context)
        received = read_record(find_record(message.content, "the server's message")[1])
        begin = time.perf_counter()
        reply = call_next(message, context)
        seconds = time.perf_counter() - begin
        if reply.has_error():
            return reply
        name, record = find_record(reply.content, "the client's reply")
        trained = read_like(record, list(received), "the client's reply")
        before = context.state[_RESIDUAL].to_numpy_ndarrays()[0] if _RESIDUAL in context.state else None
        shares = config.get("kept-energy-at", ())
        update, residual, energy = sparsify(received, trained, config["theta"], before, whole, shares)
        context.state[_RESIDUAL] = ArrayRecord([residual])
        # With their indices, more than half of the entries are larger than all of them.
        if 2 * update.values.size >= residual.size:
            reply.content[name] = make_record(restore(received, update, whole))
        else:
            sparse = {INDICES: update.indices, VALUES: update.values, **update.whole}
            reply.content[name] = make_record(sparse)
        if measure:
            _add_metric(reply.content, "mu", seconds / config["steps"])
        if energy:
            _add_metric(reply.content, "kept-energy", list(energy))
        return reply

    return mod


def describe_node(
    app: ClientApp, conditions: Mapping[str, Any] | Callable[[Context], Mapping[str, Any]]
) -> None:
    """Lets an app answer what a step and an upload cost its node.

    Args:
        app: an app without `client_fn`.
        conditions: `mu` (seconds per step), `alpha` (joules per step), `nu` (seconds to upload the full
            model) and `power` (watts while sending); or `id`, a row of the strategy's table; or a function of
            the context that returns either.
    """

    @app.query(QUESTION)  # type: ignore[untyped-decorator]
    def answer(message: Message, context: Context) -> Message:
        found = conditions(context) if callable(conditions) else conditions
        return Message(RecordDict({"conditions": ConfigRecord(dict(found))}), reply_to=message)


def _add_metric(content: RecordDict, name: str, value: float | list[float]) -> None:
    """Adds a metric for the strategy; the client's own takes precedence."""
    if not content.metric_records:
        content["metrics"] = MetricRecord()
    next(iter(content.metric_records.values())).setdefault(f"{METRIC}{name}", value)


class PlannedFedAvg(FedAvg):  # type: ignore[misc]
    """FedAvg whose clients do as much as two budgets allow, each as much as it should.

    Args:
        local_steps: τ, most local steps of a client in a round.
        time_budget: seconds for all rounds; None for no limit.
        energy_budget: joules for all rounds and clients; None for no limit.
        scheme: how much each device computes and sends: the name of a scheme, or its parameters.
        nodes: conditions (`mu`, `alpha`, `nu`, `power`) by node id (a number), or by the `id` that a client
            answers (a text).
        whole: ends of names of arrays that clients do not sparsify.
        query_seconds: how long to wait for clients' conditions.
        **options: of FedAvg.

    Attributes:
        planner: of the run in progress, with its ledger and history; None before `start`.
    """

    def __init__(
        self,
        *,
        local_steps: int,
        time_budget: float | None = None,
        energy_budget: float | None = None,
        scheme: str | SchemeParameters = "hcef_plus",
        nodes: Mapping[int | str, Mapping[str, float]] | None = None,
        whole: Sequence[str] = STATISTICS,
        query_seconds: float = 60.0,
        **options: Any,  # noqa: ANN401 — FedAvg's own
    ) -> None:
        super().__init__(**options)
        self._settings = (local_steps, time_budget, energy_budget, scheme)
        self._nodes = {name: NodeConditions.read(row) for name, row in (nodes or {}).items()}
        self._whole = whole
        self._query_seconds = query_seconds
        self._model = ArrayRecord()
        self._orders: dict[int, NodeOrder] = {}
        self.planner: RoundPlanner | None = None
        # Wrong settings are reported here, not in the first round.
        RoundPlanner(1, *self._settings)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        *args: Any,  # noqa: ANN401 — FedAvg's own
        **options: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401 — Flower's Result
        """Runs the federation; the budgets are for these rounds. Arguments as in Flower."""
        self.planner = RoundPlanner(num_rounds, *self._settings)
        return super().start(grid, initial_arrays, num_rounds, *args, **options)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message with its order for each client of the sample that takes part."""
        planner = self._find_planner()
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._ask_conditions([message.metadata.dst_node_id for message in messages], grid)
        sampled = {message.metadata.dst_node_id: message for message in messages}
        self._model = arrays
        self._orders = planner.plan(node for node in sampled if planner.knows(node))
        if not self._orders:
            spent = f"{planner.ledger.seconds:.1f} s and {planner.ledger.joules:.1f} J"
            _log.info("configure_train: no client can take part; %s are spent", spent)
        return [self._add_order(sampled[node], order) for node, order in self._orders.items()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Charges the round, and averages what clients sent as FedAvg does."""
        usable: list[Message] = []
        reports: dict[int, NodeReport] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if not reply.has_error():
                    reports[node] = self._open(reply, node)
            except InputError as error:
                _log.warning("aggregate_train: the reply of node %d is not used: %s", node, error)
            else:
                usable.append(reply)
        self._find_planner().charge(reports)
        _cap_weights(usable, self.weighted_by_key)
        return super().aggregate_train(server_round, usable)  # type: ignore[no-any-return]

    def _find_planner(self) -> RoundPlanner:
        if self.planner is None:
            raise InputError("PlannedFedAvg: call start, which says how many rounds share the budgets")
        return self.planner

    def _ask_conditions(self, nodes: Sequence[int], grid: Grid) -> None:
        """Asks new clients what a step and an upload cost; those that do not answer are left out."""
        planner = self._find_planner()
        for node in nodes:
            if node in self._nodes and not planner.knows(node):
                planner.set_conditions(node, self._nodes[node])
        unknown = [node for node in nodes if not planner.knows(node)]
        if not unknown:
            return
        kind = f"{MessageType.QUERY}.{QUESTION}"
        questions = [Message(RecordDict(), dst_node_id=node, message_type=kind) for node in unknown]
        for reply in grid.send_and_receive(questions, timeout=self._query_seconds):
            try:
                planner.set_conditions(reply.metadata.src_node_id, self._read_conditions(reply))
            except InputError as error:
                _log.warning("node %d: %s", reply.metadata.src_node_id, error)
        silent = [node for node in unknown if not planner.knows(node)]
        if silent:
            _log.warning("configure_train: the conditions of nodes %s are not known: left out", silent)

    def _read_conditions(self, reply: Message) -> NodeConditions:
        if reply.has_error():
            raise InputError(f"conditions: {reply.error.reason}")
        answer = read_metrics(reply.content)
        if "id" not in answer:
            return NodeConditions.read(answer)
        name = str(answer["id"])
        if name not in self._nodes:
            raise InputError(f"conditions: id {name!r} is not in the strategy's table")
        return self._nodes[name]

    def _add_order(self, message: Message, order: NodeOrder) -> Message:
        config = {**message.content[self.configrecord_key], "steps": order.steps, "theta": order.theta}
        if shares := self._find_planner().kept_energy_at:
            config["kept-energy-at"] = list(shares)
        content = RecordDict({**message.content, self.configrecord_key: ConfigRecord(config)})
        asked = message.metadata
        return Message(content, dst_node_id=asked.dst_node_id, message_type=asked.message_type)

    def _open(self, reply: Message, node: int) -> NodeReport:
        """Makes a sparse reply whole, in place, and reads what the client reports."""
        if node not in self._orders:
            raise InputError("it was not asked")
        name, record = find_record(reply.content, "the reply")
        model, arrays = read_record(self._model), read_record(record)
        if INDICES in arrays and VALUES in arrays:
            update = SparseUpdate(arrays.pop(INDICES), arrays.pop(VALUES), arrays)
            reply.content[name] = make_record(restore(model, update, self._whole))
        else:
            check_arrays(model, read_like(record, list(model), "the reply"))
        metrics = read_metrics(reply.content)
        validation.check_number(self.weighted_by_key, metrics.get(self.weighted_by_key, 1), above=0)
        report = _read_report(metrics, node, self._find_planner())
        if report.steps is not None and report.steps > self._orders[node].steps:
            raise InputError(f"steps = {report.steps}: at most {self._orders[node].steps} were asked")
        return report


def _cap_weights(replies: Sequence[Message], key: str) -> None:
    """Caps the weights that clients claim, in place, at twice their median, or one would outweigh all."""
    records = [
        record for reply in replies for record in reply.content.metric_records.values() if key in record
    ]
    most = 2 * median_low(record[key] for record in records) if records else 0
    for record in records:
        record[key] = min(record[key], most)


def _read_report(metrics: Mapping[str, Any], node: int, planner: RoundPlanner) -> NodeReport:
    """What a client says about its round, in metrics of which it may leave out any."""
    said = {name.removeprefix(METRIC): value for name, value in metrics.items() if name.startswith(METRIC)}
    kept = tuple(
        validation.check_floats("kept-energy", said.get("kept-energy", ()), least=0, most=1).tolist()
    )
    limits: dict[str, validation.Limits] = {"sigma2": {"least": 0}, "g2": {}}
    estimates = {
        name: validation.check_number(name, metrics[name], **limit)
        for name, limit in limits.items()
        if name in metrics
    }
    return NodeReport(
        steps=validation.check_whole("steps", said["steps"], least=0) if "steps" in said else None,
        conditions=NodeConditions.read(said, planner.find_conditions(node)),
        kept_energy=kept if len(kept) == len(planner.kept_energy_at) else (),
        **estimates,
    )
