"""Runs with other algorithms are resumed to the same bits, and are charged for what edge servers exchange."""

from pathlib import Path

import numpy as np
import pytest

from cfel.api.models import export_model
from cfel.api.runs import RunOptions, run_experiment
from cfel.runlog import RoundRecord
from tests.algorithm_sections import SECTIONS
from tests.simulation.drive import timeless, tiny


class PowerCutError(Exception):
    """The run ends here."""


def _cut(_name: str, _record: RoundRecord) -> None:
    raise PowerCutError


@pytest.mark.long
@pytest.mark.parametrize("name", ["adam", "edge_servers", "scaffold", "personal", "ditto"])
def test_memory_survives_a_resume(tmp_path: Path, name: str) -> None:
    experiment = tiny(**SECTIONS[name])
    expected = timeless(run_experiment(experiment, tmp_path / "whole", RunOptions()))
    with pytest.raises(PowerCutError):
        run_experiment(experiment, tmp_path / "cut", RunOptions(on_round=_cut))
    assert timeless(run_experiment(experiment, tmp_path / "cut", RunOptions(resume=True))) == expected
    assert export_model(tmp_path / "cut", tmp_path / "model.safetensors").round == 3


def test_the_backhaul_is_charged_for_what_edge_servers_remember() -> None:
    """FedDyn's drift, FedAdam's two moments and the average: five vectors instead of one."""
    plain, remembering = tiny().build_setting(), tiny(**SECTIONS["edge_servers"]).build_setting()
    np.testing.assert_allclose(remembering.exchange_seconds, 5 * plain.exchange_seconds)
    assert remembering.count_backhaul_bits(0) == 5 * plain.count_backhaul_bits(0)
    assert remembering.model_bits == plain.model_bits
