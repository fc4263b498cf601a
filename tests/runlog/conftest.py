"""A run small enough to write by hand: two clusters of two devices."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cfel.runlog import FleetDescription, RoundRecord, RunWriter, describe_environment


def _record(number: int, **changes: object) -> RoundRecord:
    values: dict[str, object] = {
        "round": number,
        "seconds": 10.0 * number,
        "joules": 3.0 * number,
        "seconds_expected": 10.0 * number,
        "joules_expected": 3.0 * number,
        "seconds_realised": 11.0 * number,
        "joules_realised": 3.5 * number,
        "accuracy": 0.1 * number,
        "loss": 1.0 / (number + 1),
        "rho_mean": 0.6,
        "theta_mean": 0.5,
        "sigma2": 2.0,
        "g2": 1.0,
        "gap": 1e-4,
        "feasible": True,
        "wire_bytes": 1234,
        "wall_seconds": 0.25,
        "model_sha256": f"{number:064x}",
    }
    return RoundRecord(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def make_record() -> Callable[..., RoundRecord]:
    """Builds the record of a round, with fields changed by name."""
    return _record


@pytest.fixture
def make_run() -> Callable[[Path], RunWriter]:
    """Starts a run in a directory."""

    def start(path: Path) -> RunWriter:
        fleet = FleetDescription(cluster=(0, 0, 1, 1), edges=((0, 1),), mixing=((0.5, 0.5), (0.5, 0.5)))
        return RunWriter.create(
            path, experiment_toml="seed = 0\n", fleet=fleet, environment=describe_environment(("cfel", "run"))
        )

    return start
