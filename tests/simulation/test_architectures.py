"""User-defined models: every engine trains them as `threads` does."""

import numpy as np
import pytest

from cfel.experiment import Experiment
from tests.simulation.drive import outcomes, parameters_of, tiny


def with_model(name: str, engine: str, workers: int = 2) -> Experiment:
    return tiny(
        model={"name": f"tests.architectures:{name}"},
        rounds={"global": 3, "edge": 2, "local": 2},
        simulation={"engine": engine, "workers": workers},
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_batched_trains_in_training_mode_in_every_round(workers: int) -> None:
    """Evaluation leaves a worker's module in evaluation mode, which the next round must not train in."""
    threads = outcomes(with_model("mode_dependent", "threads"))
    batched = outcomes(with_model("mode_dependent", "batched", workers))
    for one, two in zip(threads, batched, strict=True):
        assert one.record.loss == pytest.approx(two.record.loss, rel=1e-3)
        for left, right in zip(parameters_of(one), parameters_of(two), strict=True):
            np.testing.assert_allclose(left, right, atol=2e-4)
