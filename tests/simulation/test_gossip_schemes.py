"""The defining property of the other systems' schemes, seen on the models of a run."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cfel.control import SchemeParameters, build_scheme
from cfel.experiment import Experiment
from cfel.learning.device import device_update
from cfel.learning.edge import edge_aggregate, gossip_mix
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import join_digests
from cfel.membership import RoundLoss
from cfel.rounds.kernel import EdgeRoundOutcome
from cfel.simulation.loop import run_edge_round, simulate
from cfel.simulation.state import RunState, initial_state
from tests.simulation.drive import Listening, outcomes, parameters_of, tiny

ONE: Mapping[str, Any] = {"rounds": {"global": 1, "edge": 1, "local": 2}}


def named(name: str, *changes: Mapping[str, Any], **options: int) -> Experiment:
    return tiny({"scheme": {"name": name, "options": options}}, *changes)


def disagreement(models: list[np.ndarray]) -> float:
    return float(max(np.abs(model - models[0]).max() for model in models))


def test_fedavg_does_not_depend_on_clusters() -> None:
    """Edge servers that sum up for a cloud make the model that one server makes; and all have it."""
    many = outcomes(named("fedavg", {"local": {"estimator": "fresh"}}))
    one = outcomes(named("fedavg", {"local": {"estimator": "fresh"}, "fleet": {"clusters": 1}}))
    models = parameters_of(many[-1])
    assert disagreement(models) == 0
    np.testing.assert_allclose(models[0], parameters_of(one[-1])[0], rtol=0, atol=2e-5)


def test_fedavg_counts_samples() -> None:
    """After one edge round the model is the start plus the mean of updates weighted by samples."""
    experiment = named("fedavg", ONE)
    world = experiment.build_world()
    with Listening(world, experiment) as executor:
        state = initial_state(world)
        after, _ = run_edge_round(world, executor, state, 0)
    mixed = gossip_mix(after.models, world.setting.backhaul.weights)[0]
    workspace = Workspace(world.task, world.training, world.compress)
    held = np.array([data.samples for data in world.data], dtype=np.float64)
    assert len(set(held.tolist())) > 1
    wanted = world.start.parameters.double()
    for order in executor.orders:
        n = order.device
        report, _ = device_update(order, world.data[n], state.devices[n], workspace)
        update = torch.zeros_like(world.start.parameters)
        report.update.add_to(update, 1.0)
        wanted = wanted + update.double() * held[n] / held.sum()
    torch.testing.assert_close(mixed.parameters.double(), wanted, rtol=0, atol=1e-6)


def test_hierarchical_fedavg_agrees_once_per_global_round() -> None:
    """All edge servers hold the sample-weighted mean after a global round, not before."""
    experiment = named("hier_fedavg", ONE)
    found = outcomes(experiment)
    assert disagreement(parameters_of(found[-1])) == 0
    world = experiment.build_world()
    assert world.setting.backhaul.zeta == pytest.approx(0, abs=1e-12)
    held = [
        sum(world.data[n].samples for n in range(6) if world.setting.fleet.cluster[n] == i) for i in range(3)
    ]
    np.testing.assert_allclose(world.setting.backhaul.weights, np.tile(np.array(held) / sum(held), (3, 1)))
    state, _ = _first_edge_round(experiment)
    assert disagreement([model.parameters.numpy() for model in state.models]) > 0


def test_p_fedavg_gossips_after_every_edge_aggregation() -> None:
    """Devices begin their second edge round with the mixed models, not with their own server's."""
    twice = {"rounds": {"global": 1, "edge": 2, "local": 3}}
    experiment = named("p_fedavg", twice, {"fleet": {"clusters": [2, 2, 1, 1]}, "topology": {"kind": "line"}})
    world = experiment.build_world()
    with Listening(world, experiment) as executor:
        list(simulate(world, executor, initial_state(world), lambda: 0.0))
    second = {order.device: order.model.parameters for order in executor.orders[6:]}
    state, _ = _first_edge_round(experiment)
    mixed = gossip_mix(state.models, world.setting.backhaul.weights)
    for device, start in second.items():
        assert torch.equal(start, mixed[world.setting.fleet.cluster[device]].parameters)
        assert not torch.equal(start, state.models[world.setting.fleet.cluster[device]].parameters)


def _first_edge_round(experiment: Experiment) -> tuple[RunState, EdgeRoundOutcome]:
    world = experiment.build_world()
    with Listening(world, experiment) as executor:
        return run_edge_round(world, executor, initial_state(world), 0)


def test_sd_feel_takes_several_gossip_steps_by_samples() -> None:
    """Within a cluster by samples, then W twice, W averaging towards the clusters' shares of samples."""
    line = {"fleet": {"clusters": [2, 2, 1, 1]}, "topology": {"kind": "line"}}
    experiment = named("sd_feel", ONE, line, steps=2)
    world = experiment.build_world()
    state, _ = _first_edge_round(experiment)
    wanted = gossip_mix(
        gossip_mix(state.models, world.setting.backhaul.weights), world.setting.backhaul.weights
    )
    for model, found in zip(wanted, parameters_of(outcomes(experiment)[-1]), strict=True):
        np.testing.assert_array_equal(model.parameters.numpy(), found)
    held = np.array([data.samples for data in world.data], dtype=np.float64)
    shares = np.bincount(world.setting.fleet.cluster, held) / held.sum()
    np.testing.assert_allclose(shares @ world.setting.backhaul.weights, shares)
    equal = _first_edge_round(named("cef", ONE, line))[0]
    assert not torch.equal(equal.models[0].parameters, state.models[0].parameters)
    assert torch.equal(equal.models[3].parameters, state.models[3].parameters)


def test_sd_feel_weighs_devices_by_samples() -> None:
    experiment = named("sd_feel", ONE)
    world = experiment.build_world()
    with Listening(world, experiment) as executor:
        before = initial_state(world)
        after, _ = run_edge_round(world, executor, before, 0)
    workspace = Workspace(world.task, world.training, world.compress)
    reports = [
        device_update(order, world.data[order.device], before.devices[order.device], workspace)[0]
        for order in executor.orders[:2]
    ]
    weights = {n: float(world.data[n].samples) for n in (0, 1)}
    assert torch.equal(after.models[0].parameters, edge_aggregate(world.start, reports, weights).parameters)


def test_steps_of_sd_feel_must_be_a_number() -> None:
    with pytest.raises(ValueError, match=r"gossip\.steps = 0"):
        build_scheme(SchemeParameters(name="sd_feel", options={"steps": 0}))


def test_bytes_of_gossip() -> None:
    """Ring of three: CEF 6 full models; P-FedAvg 6 in each of two edge rounds; a cloud 3 up and 3 down."""
    model = 4 * 4810
    sent = {
        name: outcomes(named(name))[0].record.wire_bytes - 12 * model
        for name in ("cef", "p_fedavg", "sd_feel", "hier_fedavg", "fedavg")
    }
    assert {name: value / model for name, value in sent.items()} == {
        "cef": 6,
        "p_fedavg": 12,
        "sd_feel": 12,
        "hier_fedavg": 6,
        "fedavg": 12,
    }


@pytest.mark.parametrize("missed", [(1,), (0, 1)])
def test_a_record_names_the_model_after_the_last_gossip_that_each_took_part_in(
    missed: tuple[int, ...],
) -> None:
    """Edge server 1 misses one step of the last exchange, or both; its devices have not trained before.

    So it still has the model that it had after the last step it took part in, and the record must name that.
    """
    experiment = tiny({"scheme": {"name": "hcef_plus"}, "rounds": {"global": 1, "edge": 2}})
    world = experiment.build_world()
    rows = tuple(tuple(row) for row in world.setting.backhaul.weights.tolist())
    losses = [RoundLoss(1, 1, absent=(2, 3))]
    losses += [RoundLoss(1, 2, step=step, rows=rows, mixed=(0, 2)) for step in missed]
    outcome = outcomes(experiment, replace(world, losses={each.place: each for each in losses}))[0]
    digests = [model.sha256() for model in outcome.state.models]
    assert digests[0] == digests[2] != digests[1]
    assert outcome.record.model_sha256 == join_digests(digests)
