"""Clients of the real Flower train the devices of a simulation."""

from typing import Any

import numpy as np
import pytest

import cfel
from cfel.errors import InputError

pytest.importorskip("flwr", reason="flwr is not installed (pip install 'cfel[flower]')")

from flwr.app import Error, Message
from flwr.clientapp import ClientApp

from cfel.flower import train_with
from tests.flower.apps import CLASSES, DEVICES, client_fn, make_app, make_data, make_model

pytestmark = pytest.mark.long


def make_experiment(algorithm: Any, **sections: Any) -> cfel.Experiment:
    return cfel.Experiment(
        name="flower",
        model=make_model(),
        data=(make_data(80, 0), make_data(200, 1)),
        scheme="hcef_plus",
        rounds={"global": 3, "edge": 2, "local": 4},
        fleet={"devices": DEVICES, "clusters": 2},
        local={"algorithm": algorithm, "learning_rate": 0.2},
        **sections,
    )


def run(app: ClientApp, **sections: Any) -> tuple[list[cfel.RoundRecord], Any]:
    simulation = cfel.simulate(make_experiment(train_with(app, DEVICES), **sections))
    records = list(simulation)
    return records, simulation.plans


def test_clients_take_the_planned_steps_and_learn() -> None:
    seen: list[dict[str, Any]] = []
    records, plans = run(make_app(seen))
    assert len(seen) == 3 * 2 * DEVICES
    last = [each for each in seen if each["server-round"] == 3]
    planned = plans.to_pydict()
    assert sorted((each["edge-round"], each["partition"], each["steps"]) for each in last) == sorted(
        zip(
            [each + 1 for each in planned["edge_round"]],
            planned["device"],
            planned["steps"],
            strict=True,
        )
    )
    assert all(1 <= each["steps"] <= 4 and each["lr"] == 0.2 for each in seen)
    accuracies = [record.accuracy or 0.0 for record in records]
    assert accuracies[-1] > accuracies[0] > 1.2 / CLASSES
    assert records[-1].joules > 0
    # A client keeps its state from round to round, and none sees another's.
    assert sorted(each["calls"] for each in seen) == sorted([1, 2, 3, 4, 5, 6] * DEVICES)


def test_a_client_fn_gives_the_same_models_as_a_train_function() -> None:
    """To the bit, as both are seeded with what they are given; and so does a second iteration."""
    hashes = [
        [record.model_sha256 for record in run(app)[0]]
        for app in (make_app([]), ClientApp(client_fn=client_fn))
    ]
    assert hashes[0] == hashes[1]
    simulation = cfel.simulate(make_experiment(train_with(make_app([]), DEVICES)))
    assert [[record.model_sha256 for record in simulation] for _ in range(2)] == [hashes[0]] * 2


def test_a_run_has_its_directory_and_compares_schemes(tmp_path: Any) -> None:
    experiment = make_experiment(train_with(make_app([]), DEVICES))
    compared = cfel.compare(experiment, ["hcef_plus", "cef"], [0], out=tmp_path / "runs", progress=False)
    assert compared.table.num_rows == 2
    assert "flower_clients" in next((tmp_path / "runs").rglob("experiment.toml")).read_text(encoding="utf-8")


def test_estimates_of_clients_are_used() -> None:
    """Clients that return none count as σ² = G² = 1."""
    assert [(record.sigma2, record.g2) for record in run(make_app([], sigma2=9.0, g2=2.0))[0]] == [(9, 2)] * 3
    assert [(record.sigma2, record.g2) for record in run(make_app([]))[0]] == [(1, 1)] * 3


def test_a_client_without_a_loss_or_with_other_arrays_is_rejected() -> None:
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def echo(message: Message, _context: Any) -> Message:
        del message.content["config"]
        return Message(message.content, reply_to=message)

    with pytest.raises(InputError, match="device 0: returned no training loss"):
        run(app)

    with pytest.raises(InputError, match="needs a ClientApp"):
        train_with(client_fn, DEVICES)
    with pytest.raises(InputError, match="devices = 2"):
        list(cfel.simulate(make_experiment(train_with(make_app([]), 2))))
    with pytest.raises(InputError, match="own"):
        run(make_app([]), simulation={"engine": "ray"})


def test_an_error_of_a_client_ends_the_run() -> None:
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def fail(message: Message, _context: Any) -> Message:
        return Message(Error(code=0, reason="no data"), reply_to=message)

    with pytest.raises(InputError, match="device 0: failed: no data"):
        run(app)


def test_a_loss_that_is_not_finite_is_reported_as_such() -> None:
    with pytest.raises(cfel.CfelError, match="device 0"):
        run(make_app([], train_loss=float(np.nan)))
