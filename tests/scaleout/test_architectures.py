"""User-defined models have the same bits on Ray's workers as in threads; with a fake of Ray."""

import pytest

from cfel.simulation import initial_state, simulate
from tests.simulation.drive import records, timeless, tiny

pytestmark = pytest.mark.long

pytest.importorskip("ray", reason="Ray is not installed")


@pytest.mark.parametrize("name", ["mode_dependent", "dropout", "batch_norm", "gru", "low_rank"])
def test_workers_train_as_threads_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cfel.scaleout import ray_executor

    from .fake_ray import install

    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    install(monkeypatch)
    experiment = tiny(model={"name": f"tests.architectures:{name}"})
    world = experiment.build_world()
    parameters = experiment.resolve(world).simulation
    with ray_executor(world, parameters) as executor:
        rounds = simulate(world, executor, parameters, initial_state(world), lambda: 0.0)
        found = timeless([each.record for each in rounds])
    assert found == timeless(records(experiment))
