"""Models and algorithms have the same bits on Ray's workers as in threads; with a fake of Ray."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.algorithm_sections import SECTIONS
from tests.architectures import TWELVE
from tests.scaleout.conftest import on_ray
from tests.simulation.drive import records, timeless, tiny

pytestmark = pytest.mark.long

pytest.importorskip("ray", reason="Ray is not installed")


MODELS = [
    {"model": {"name": "tests.architectures:mode_dependent"}},
    {"compression": {"download_theta": 0.1, "download_bits": 8}},
    *TWELVE.values(),
]


@pytest.mark.usefixtures("fake_ray")
@pytest.mark.parametrize("sections", [*MODELS, *SECTIONS.values()], ids=str)
def test_workers_train_as_threads_do(sections: Mapping[str, Mapping[str, Any]]) -> None:
    experiment = tiny(**sections)
    assert on_ray(experiment) == timeless(records(experiment))
