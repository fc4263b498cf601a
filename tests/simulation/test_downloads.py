"""Runs whose devices fetch differences: what they train from, what is counted, that they resume."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cfel.api.runs import RunOptions, run_experiment
from cfel.errors import InputError
from cfel.learning.compressors import RoundedUpdate, decode
from cfel.learning.device_messages import DeviceReport
from cfel.learning.differences import find_issue_key
from cfel.simulation.executors import Job, JobResult
from cfel.simulation.loop import run_edge_round
from cfel.simulation.state import initial_state
from tests.simulation.drive import Listening, outcomes, records, timeless, tiny

DOWNLOADS = {"compression": {"download_theta": 0.1, "download_bits": 8}}


class Recording(Listening):
    """Remembers what devices sent as well."""

    reports: Sequence[DeviceReport] = ()

    def run_updates(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """As the executor does."""
        for report, state in super().run_updates(jobs):
            self.reports = (*self.reports, report)
            yield report, state


def test_devices_train_from_the_issued_model_and_the_edge_model_moves() -> None:
    """ẑ ← ẑ + Q(x − ẑ), and x ← x + the mean of updates that are differences to ẑ."""
    experiment = tiny(DOWNLOADS, scheme={"name": "cef"})
    world = experiment.build_world()
    assert world.downloads is not None
    with Recording(world, experiment) as executor:
        first, _ = run_edge_round(world, executor, initial_state(world), 0)
        executor.orders, executor.reports = [], list[DeviceReport]()
        second, _ = run_edge_round(world, executor, first, 1)
    sent = {report.device: decode(report.update) for report in executor.reports}
    for i, (model, known) in enumerate(zip(first.models, first.issued, strict=True)):
        assert torch.equal(known.parameters, world.start.parameters)  # at first there is no difference
        issued, update = world.downloads.publish(model, known, find_issue_key(experiment.seed, 0, 1, i))
        assert isinstance(update, RoundedUpdate)
        assert update.values.numel() == 481
        assert torch.equal(second.issued[i].parameters, issued.parameters)
        own = [order for order in executor.orders if order.device in (2 * i, 2 * i + 1)]
        assert all(torch.equal(order.model.parameters, issued.parameters) for order in own)
        moved = model.parameters + (sent[2 * i] + sent[2 * i + 1]) / 2
        torch.testing.assert_close(second.models[i].parameters, moved)


def test_the_log_says_what_was_fetched() -> None:
    """Of 4,810 entries 481 are sent: 8·481 + 2·32 bits, and places of 481·(3 + 1) + 601 bits."""
    step, whole = 8 * 481 + 64 + 481 * 4 + 601, 32 * 4810
    found = [each.download_bytes or 0 for each in records(tiny(DOWNLOADS, scheme={"name": "cef"}))]
    assert found == [math.ceil(6 * (whole + step) / 8), *[math.ceil(12 * step / 8)] * 2]


def test_momentum_that_all_share_is_fetched_whole() -> None:
    """So a model with it takes a half of the bytes, and more."""
    shared = {"local": {"algorithm": "shared_momentum", "momentum": 0.9}}
    before, after = (records(tiny(shared, each))[-1].download_bytes or 0 for each in ({}, DOWNLOADS))
    assert 0.5 < after / before < 0.55


@pytest.mark.parametrize("engine", ["threads", "batched", "processes"])
def test_a_run_resumes_bit_for_bit(tmp_path: Path, engine: str) -> None:
    experiment = tiny(DOWNLOADS, {"fleet": {"participation": 4}}, simulation={"engine": engine})
    asked = iter([False, True])
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "run", RunOptions(interrupted=lambda: next(asked)))
    found = run_experiment(experiment, tmp_path / "run", RunOptions(resume=True))
    assert timeless(found) == timeless(run_experiment(experiment, tmp_path / "again", RunOptions()))


def test_worker_processes_give_the_same_bits() -> None:
    threads, processes = (
        records(tiny(DOWNLOADS, simulation={"engine": engine})) for engine in ("threads", "processes")
    )
    assert timeless(threads) == timeless(processes)


def test_a_buffer_for_all_updates_changes_nothing() -> None:
    """Semi-asynchronous rounds issue models as others do."""
    asked = {**DOWNLOADS, "simulation": {"accounting": "realised"}}
    all_of_them, two = (records(tiny(asked, aggregation={"buffer": size})) for size in (0, 2))
    names = ("model_sha256", "download_bytes")
    assert [[getattr(each, name) for name in names] for each in all_of_them] == [
        [getattr(each, name) for name in names] for each in two
    ]
    (*_, last) = records(tiny(asked, aggregation={"buffer": 1}))
    assert last.model_sha256 != two[-1].model_sha256


def test_the_issued_models_follow_the_models() -> None:
    """After three rounds with a tenth of the entries each, devices know most of every model."""
    state = outcomes(tiny(DOWNLOADS))[-1].state
    start = tiny().build_world().start.parameters
    for model, issued in zip(state.models, state.issued, strict=True):
        missing = (model.parameters - issued.parameters).square().sum()
        assert 0 < missing < 0.5 * (model.parameters - start).square().sum()


@pytest.mark.parametrize(
    ("compression", "words"),
    [
        ({"download_bits": 5}, r"compression\.download_bits = 5: must be one of 4, 8, 16, 32"),
        ({"download_bits": True}, r"compression\.download_bits = True"),
        ({"download_bits": 8.0}, r"compression\.download_bits = 8\.0"),
        ({"download_theta": 0.0}, r"compression\.download_theta"),
        ({"download_theta": 1.5}, r"compression\.download_theta"),
    ],
)
def test_what_cannot_be_is_rejected(compression: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tiny(compression=compression)
