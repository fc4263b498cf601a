"""A real Flower strategy plans rounds of real ClientApps, all in this process."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from cfel.errors import InputError

pytest.importorskip("flwr", reason="flwr is not installed (pip install 'cfel[flower]')")

import torch
from flwr.app import ArrayRecord, Context, Error, Message
from flwr.clientapp import ClientApp

from cfel.flower import LocalGrid, PlannedFedAvg, describe_node, send_sparse
from cfel.flower.records import make_record
from tests.flower.apps import make_app, make_data, make_model

pytestmark = pytest.mark.long

NODES = 4
ENTRIES = sum(value.numel() for value in make_model().parameters())
FULL = {"mu": 1.0, "alpha": 2.0, "nu": 10.0, "power": 0.5}
TABLE = {str(place): {**FULL, "mu": 1.0 + place, "nu": 10.0 * (1 + place)} for place in range(NODES)}


def name_partition(context: Context) -> Mapping[str, Any]:
    return {"id": str(context.node_config["partition-id"])}


def make_strategy(**changes: Any) -> PlannedFedAvg:
    settings: dict[str, Any] = {"local_steps": 5, "nodes": TABLE, "fraction_evaluate": 0.0}
    return PlannedFedAvg(**{**settings, **changes})


def start(strategy: PlannedFedAvg, app: ClientApp, rounds: int = 4) -> Any:
    return strategy.start(LocalGrid(app, NODES), ArrayRecord(make_model().state_dict()), rounds)


def measure_accuracy(arrays: ArrayRecord) -> float:
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    inputs, labels = make_data(200, 1)
    return float((model(torch.from_numpy(inputs)).argmax(1).numpy() == labels).mean())


def test_a_federation_learns_within_its_budgets() -> None:
    seen: list[dict[str, Any]] = []
    app = make_app(seen, mods=[send_sparse()])
    describe_node(app, name_partition)
    strategy = make_strategy(time_budget=300.0, energy_budget=250.0)
    result = start(strategy, app, rounds=12)
    planner = strategy.planner
    assert planner is not None
    assert len(planner.history) == 12
    assert 0 < planner.ledger.seconds <= 300.0 * (1 + 1e-9)
    assert 0 < planner.ledger.joules <= 250.0 * (1 + 1e-9)
    # Every client got its own order.
    first = planner.history[0].orders
    assert {each["partition"] + 1: (each["steps"], each["theta"]) for each in seen[: len(first)]} == {
        node: (order.steps, order.theta) for node, order in first.items()
    }
    assert first[4].steps <= first[1].steps
    assert measure_accuracy(result.arrays) > 0.5 > measure_accuracy(ArrayRecord(make_model().state_dict()))


def test_only_the_largest_entries_are_sent() -> None:
    """As many as the plan says; these nodes are in the table by their ids, so that none is asked."""
    sizes: list[int] = []

    class Watched(LocalGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            replies = list(super().send_and_receive(messages, timeout=timeout))
            sizes.extend(len(each.content["arrays"]["cfel.values"].numpy()) for each in replies)
            return replies

    app = make_app([], mods=[send_sparse()])
    strategy = make_strategy(nodes=dict.fromkeys(range(1, NODES + 1), FULL), time_budget=12.0)
    strategy.start(Watched(app, NODES), ArrayRecord(make_model().state_dict()), 2)
    assert strategy.planner is not None
    orders = [order for each in strategy.planner.history for order in each.orders.values()]
    planned = [max(1, round(order.theta * ENTRIES)) for order in orders]
    assert sizes == planned
    assert max(sizes) < ENTRIES


def test_without_compression_it_is_fedavg() -> None:
    """CEF sends everything: the same model as with clients that do not sparsify, but for rounding."""
    models = []
    for mods in ([send_sparse()], []):
        app = make_app([], mods=mods)
        describe_node(app, FULL)
        models.append(start(make_strategy(scheme="cef"), app, rounds=2).arrays.to_numpy_ndarrays())
    for sparse, dense in zip(*models, strict=True):
        np.testing.assert_allclose(sparse, dense, atol=1e-6)


def test_measured_seconds_change_the_plans() -> None:
    app = make_app([], mods=[send_sparse(measure=True)])
    describe_node(app, FULL)
    strategy = make_strategy(nodes=None)
    start(strategy, app, rounds=1)
    assert strategy.planner is not None
    found = [strategy.planner.find_conditions(node) for node in range(1, NODES + 1)]
    assert all(0 < each.mu != 1.0 and each.alpha == 2.0 for each in found)


def test_a_federation_stops_training_when_a_budget_is_used_up() -> None:
    seen: list[dict[str, Any]] = []
    app = make_app(seen)
    describe_node(app, FULL)
    strategy = make_strategy(scheme="cef", time_budget=40.0)
    start(strategy, app, rounds=4)
    assert strategy.planner is not None
    # A round takes 5 + 10 s, so two fit.
    assert [each.seconds for each in strategy.planner.history] == [15.0, 15.0, 0.0, 0.0]
    assert len(seen) == 2 * NODES


def test_clients_that_fail_or_send_nonsense_are_left_out_but_charged() -> None:
    app = make_app([])
    describe_node(app, FULL)

    def spoil(message: Message, context: Context, call_next: Any) -> Message:
        place = context.node_config["partition-id"]
        if message.metadata.message_type == "train" and place == 0:
            return Message(Error(code=0, reason="broken"), reply_to=message)
        reply = call_next(message, context)
        if message.metadata.message_type == "train" and place == 1:
            reply.content["metrics"]["cfel-mu"] = -1.0
        return reply

    spoiled = make_app([], mods=[spoil])
    describe_node(spoiled, FULL)
    strategy = make_strategy(scheme="cef")
    result = start(strategy, spoiled, rounds=1)
    assert strategy.planner is not None
    assert strategy.planner.ledger.joules == NODES * (5 * 2.0 + 0.5 * 10.0)
    # What is left is the mean of the two others.
    assert result.arrays is not None
    whole = start(make_strategy(scheme="cef"), app, rounds=1).arrays.to_numpy_ndarrays()
    assert any((one != two).any() for one, two in zip(result.arrays.to_numpy_ndarrays(), whole, strict=True))


@pytest.mark.parametrize(
    ("what", "value"),
    [("arrays", np.nan), ("arrays", np.inf), ("cfel-kept-energy", "all"), ("num-examples", -1.0)],
)
def test_replies_with_other_than_finite_numbers_are_left_out(what: str, value: Any) -> None:
    def spoil(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == 0:
            if what == "arrays":
                arrays = [np.full_like(each, value) for each in reply.content["arrays"].to_numpy_ndarrays()]
                names = list(reply.content["arrays"])
                reply.content["arrays"] = make_record(dict(zip(names, arrays, strict=True)))
            else:
                reply.content["metrics"][what] = value
        return reply

    app = make_app([], mods=[spoil])
    describe_node(app, FULL)
    result = start(make_strategy(scheme="cef"), app, rounds=1)
    assert result.arrays is not None
    assert all(np.isfinite(each).all() for each in result.arrays.to_numpy_ndarrays())


def test_nodes_whose_conditions_are_not_known_take_no_part() -> None:
    seen: list[dict[str, Any]] = []
    app = make_app(seen)
    describe_node(app, lambda context: FULL if context.node_config["partition-id"] else {"id": "nobody"})
    start(make_strategy(), app, rounds=1)
    assert sorted(each["partition"] for each in seen) == [1, 2, 3]


def test_wrong_settings_are_reported_at_once() -> None:
    with pytest.raises(InputError, match="nonsense"):
        make_strategy(scheme="nonsense")
    with pytest.raises(InputError, match="alpha, nu, power is missing"):
        make_strategy(nodes={1: {"mu": 1.0}})
    strategy = make_strategy()
    with pytest.raises(InputError, match="call start"):
        strategy.aggregate_train(1, [])
