"""Every kind of local algorithm gives in a deployment what it gives in the simulator, bit for bit."""

from pathlib import Path
from typing import Any

import pytest

from tests.algorithm_sections import SECTIONS
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import play_to_the_end
from tests.simulation.drive import records, timeless

pytestmark = pytest.mark.long


def _without_devices(line: dict[str, Any], name: str) -> dict[str, Any]:
    """A line of the log without what only devices can measure, where a model or a part of it is theirs."""
    own = {key: None for key in line if key.startswith("personal_")}
    return {**line, **own, **({"accuracy": None} if name == "personal" else {})}


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_equals_the_simulation(tmp_path: Path, name: str) -> None:
    experiment = deployed({**SECTIONS[name], "rounds": {"global": 2}})
    expected = [_without_devices(line, name) for line in timeless(records(experiment))]
    assert timeless(play_to_the_end(experiment, tmp_path)) == expected
    plain = timeless(records(deployed({"rounds": {"global": 2}})))
    assert expected[-1]["model_sha256"] != plain[-1]["model_sha256"]
