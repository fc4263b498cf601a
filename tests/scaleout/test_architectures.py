"""Models and algorithms have the same bits on Ray's workers as in threads; with a fake of Ray."""

from collections.abc import Mapping
from typing import Any

import pytest

from cfel.simulation import initial_state, simulate
from tests.algorithm_sections import SECTIONS
from tests.architectures import TWELVE
from tests.simulation.drive import records, timeless, tiny

pytestmark = pytest.mark.long

pytest.importorskip("ray", reason="Ray is not installed")


MODELS = [{"model": {"name": "tests.architectures:mode_dependent"}}, *TWELVE.values()]


@pytest.mark.parametrize("sections", [*MODELS, *SECTIONS.values()], ids=str)
def test_workers_train_as_threads_do(
    sections: Mapping[str, Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cfel.scaleout import ray_executor

    from .fake_ray import install

    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    install(monkeypatch)
    experiment = tiny(**sections)
    world = experiment.build_world()
    parameters = experiment.resolve(world).simulation
    with ray_executor(world, parameters) as executor:
        rounds = simulate(world, executor, initial_state(world), lambda: 0.0)
        found = timeless([each.record for each in rounds])
    assert found == timeless(records(experiment))
