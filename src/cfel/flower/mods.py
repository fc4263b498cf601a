"""The client's side of a planned federation: a mod that sends sparse updates, and what a node costs.

    app = ClientApp(mods=[send_sparse()])
    describe_node(app, {"mu": 0.2, "alpha": 1.1, "nu": 6.0, "power": 0.8})

What earlier rounds left out is in `context.state`, which Flower keeps on the node. The server's side is in
`strategy`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from cfel.flower.records import find_record, make_record, read_like, read_metrics, read_record
from cfel.flower.sparse import STATISTICS, restore, sparsify

QUESTION = "cfel_conditions"
"""The action of the strategy's query."""

INDICES, VALUES = "cfel.indices", "cfel.values"
"""Names of the arrays that hold a sparse update."""

METRIC = "cfel-"
"""What the names of metrics for the strategy begin with."""

_RESIDUAL = "cfel.residual"

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
        update, residual, energy = sparsify(
            received,
            trained,
            config["theta"],
            _load_residual(context),
            whole,
            config.get("kept-energy-at", ()),
        )
        context.state[_RESIDUAL] = ArrayRecord([residual])
        # With their indices, more than half of the entries are larger than all of them.
        if 2 * update.values.size >= residual.size:
            reply.content[name] = make_record(restore(received, update, whole))
        else:
            sparse = {INDICES: update.indices, VALUES: update.values, **update.whole}
            reply.content[name] = make_record(sparse)
        _add_metrics(
            reply.content,
            {
                **({"mu": seconds / config["steps"]} if measure else {}),
                **({"kept-energy": list(energy)} if energy else {}),
            },
        )
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


def _load_residual(context: Context) -> Any:  # noqa: ANN401 — an array or None
    return context.state[_RESIDUAL].to_numpy_ndarrays()[0] if _RESIDUAL in context.state else None


def _add_metrics(content: RecordDict, metrics: Mapping[str, Any]) -> None:
    """Adds metrics for the strategy to the client's own, which take precedence."""
    if not content.metric_records:
        content["metrics"] = MetricRecord()
    record = next(iter(content.metric_records.values()))
    for name, value in metrics.items():
        record.setdefault(f"{METRIC}{name}", value)
