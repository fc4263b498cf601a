"""The tiny experiment for deployments, and what its simulation comes to."""

from collections.abc import Mapping
from typing import Any

import pytest

from cfel.experiment import Experiment
from tests.simulation.drive import records, timeless, tiny

DEPLOYMENT: Mapping[str, Any] = {
    "round_seconds": 20.0,
    "gossip_seconds": 10.0,
    "gone_seconds": 15.0,
    "election_seconds": 0.4,
    "linger_seconds": 1.0,
    # Frozen nodes are noticed soon; no link of these tests is slow.
    "keepalive_seconds": 1.0,
    "keepalive_timeout_seconds": 1.0,
}
KEPT: Mapping[str, Any] = {
    "local": {"momentum_state": "keep"},
    "compression": {"error_feedback": True},
}
"""With everything there is to remember."""


def deployed(*changes: Mapping[str, Any], **deployment: Any) -> Experiment:
    """The tiny experiment with deadlines for tests."""
    return tiny(KEPT, *changes, deployment={**DEPLOYMENT, **deployment})


@pytest.fixture(scope="session")
def simulated() -> list[dict[str, Any]]:
    """The log of the simulation that deployments have to equal."""
    return timeless(records(deployed()))
