"""Runs whose edge servers send differences: what they cost, that they resume, what they do not go with."""

from pathlib import Path
from typing import Any

import pytest

from cfel.api.runs import RunOptions, run_experiment
from cfel.errors import InputError
from tests.simulation.drive import outcomes, records, timeless, tiny

TOPOLOGY = {"theta": 0.1, "bits": 8, "joules_per_bit": 1e-8}


def test_bytes_seconds_and_joules_of_the_backhaul_fall_to_the_share_that_is_sent() -> None:
    """Of 4,810 entries 481 are sent: 8·481 + 2·32 bits, and places of 481·(3 + 1) + 601 bits."""
    whole, part = (
        records(tiny(scheme={"name": "cef"}, topology={"joules_per_bit": 1e-8, **sent}))
        for sent in ({}, TOPOLOGY)
    )
    share = (8 * 481 + 64 + 481 * 4 + 601) / (32 * 4810)
    for before, after in zip(whole, part, strict=True):
        assert before.backhaul_bytes
        assert before.backhaul_joules
        assert after.backhaul_bytes == pytest.approx(share * before.backhaul_bytes, abs=1)
        assert after.backhaul_joules == pytest.approx(share * before.backhaul_joules)
        assert after.download_bytes == before.download_bytes
        assert after.seconds < before.seconds
    assert part[-1].model_sha256 != whole[-1].model_sha256


@pytest.mark.parametrize("engine", ["threads", "batched", "processes"])
def test_a_run_resumes_bit_for_bit(tmp_path: Path, engine: str) -> None:
    experiment = tiny(topology=TOPOLOGY, simulation={"engine": engine})
    asked = iter([False, True])
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "run", RunOptions(interrupted=lambda: next(asked)))
    found = run_experiment(experiment, tmp_path / "run", RunOptions(resume=True))
    assert timeless(found) == timeless(run_experiment(experiment, tmp_path / "again", RunOptions()))


def test_the_public_models_follow_the_models() -> None:
    """After three rounds with a tenth of the entries each, neighbours know most of every model."""
    state = outcomes(tiny(topology=TOPOLOGY))[-1].state
    start = tiny().build_world().start.parameters
    for model, public in zip(state.models, state.public, strict=True):
        missing = (model.parameters - public.parameters).square().sum()
        assert 0 < missing < 0.5 * (model.parameters - start).square().sum()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scheme": {"name": "fedavg"}}, r"topology\.theta = 0\.1.*'fedavg' averages over all"),
        ({"scheme": {"name": "matcha"}}, r"topology\.theta = 0\.1.*'matcha' draws links"),
        ({"topology": {"bits": 5}}, r"topology\.bits = 5: must be one of 4, 8, 16, 32"),
        ({"topology": {"theta": 0.0}}, r"topology\.theta"),
        ({"topology": {"theta": 1.0, "bits": 32, "step_size": 0.5}}, r"topology\.step_size = 0\.5: whole"),
    ],
)
def test_what_does_not_go_together_is_rejected(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tiny({"topology": TOPOLOGY}, changes).build_world()
