"""Cases in which a whole run has a known outcome."""

import numpy as np
import pytest
import torch

from cfel.learning.local.training import draw_batches
from cfel.learning.models.builders import mlp
from cfel.learning.models.files import named_tensors
from cfel.seeding import make_generator
from cfel.world import World
from tests.simulation.drive import outcomes, parameters_of, records, timeless, tiny


def fedavg(world: World, rounds: int, devices: int, steps: int) -> torch.nn.Module:
    """McMahan et al., Algorithm 1: everybody trains from the common model, which then becomes their mean."""
    common = mlp((1, 8, 8), 10)
    common.load_state_dict(named_tensors(world.start, world.task.build()))
    for number in range(rounds):
        trained = []
        for device in range(devices):
            own = mlp((1, 8, 8), 10)
            own.load_state_dict(common.state_dict())
            optimiser = torch.optim.SGD(own.parameters(), lr=0.05)
            indices = world.data[device].indices
            for rows in draw_batches(
                len(indices), 20, steps, make_generator(0, "batches", number, 0, device)
            ):
                places = torch.from_numpy(indices[rows])
                scores = own(world.task.data.train_inputs[places])
                loss = torch.nn.functional.cross_entropy(scores, world.task.data.train_targets[places])
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                optimiser.step()
            trained.append(own.state_dict())
        common.load_state_dict({k: sum(each[k] for each in trained) / devices for k in trained[0]})
    return common


@pytest.mark.parametrize("engine", ["threads", "batched"])
def test_one_cluster_with_one_edge_round_is_fedavg(engine: str) -> None:
    """ρ = θ = 1, m = 1, q = 1; everybody holds 1,250 samples, so weights by samples are equal weights."""
    experiment = tiny(
        rounds={"global": 3, "edge": 1, "local": 4},
        fleet={"devices": 4, "clusters": 1},
        data={"name": "synthetic", "partition": "iid", "batch": 20},
        local={"momentum": 0.0},
        scheme={"name": "cef"},
        simulation={"engine": engine},
    )
    world = experiment.build_world()
    assert {own.samples for own in world.data} == {1250}
    with torch.random.fork_rng(devices=[]):
        reference = fedavg(world, rounds=3, devices=4, steps=4)
    last = outcomes(experiment, world)[-1]
    found, before = (
        named_tensors(model, world.task.build()) for model in (last.state.models[0], world.start)
    )
    for name, expected in reference.state_dict().items():
        moved = float((expected - before[name]).abs().max())
        assert moved > 0.01
        np.testing.assert_allclose(found[name], expected, atol=1e-4 * moved)
    assert (last.record.rho_mean, last.record.theta_mean) == (1.0, 1.0)


def test_everything_sent_is_sent_exactly() -> None:
    """θ = 1: every compressor gives the very log of sending the vector as it is."""
    logs = {
        kind: timeless(records(tiny(scheme={"name": "cef"}, compression={"kind": kind})))
        for kind in ("none", "topk", "randomk", "jl", "quantise", "uveqfed", "atomo")
    }
    assert all(log == logs["none"] for log in logs.values())


def test_pinning_theta_makes_hcef_exact() -> None:
    """HCEF with θ ≥ 1 chooses ρ only, and top-k then drops nothing."""
    pinned = {"scheme": {"theta_min": 1.0}}
    kept, sent = (tiny(pinned, compression={"kind": kind}) for kind in ("topk", "none"))
    log = timeless(records(kept))
    assert log == timeless(records(sent))
    assert {line["theta_mean"] for line in log} == {1.0}
    assert all(line["rho_mean"] < 1 for line in log)


def test_a_complete_backhaul_makes_all_models_equal() -> None:
    """Three servers, each joined to both others: W is 1/3 everywhere, and gossip is plain averaging."""
    models = parameters_of(outcomes(tiny(topology={"kind": "complete"}))[0])
    np.testing.assert_allclose(models[1], models[0], atol=1e-7)
    np.testing.assert_allclose(models[2], models[0], atol=1e-7)
    apart = parameters_of(outcomes(tiny(topology={"kind": "line"}))[0])
    assert np.abs(apart[2] - apart[0]).max() > 1e-3


@pytest.mark.parametrize("devices", [1, 2])
def test_the_smallest_fleets(devices: int) -> None:
    """One device, and one device per cluster."""
    log = records(tiny(fleet={"devices": devices, "clusters": devices}))
    assert [line.devices_taking_part for line in log] == [devices] * 3
    assert log[-1].accuracy is not None
