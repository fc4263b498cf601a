"""Equal seeds, other workers, other engines, other schemes: what must be equal, and what must not."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from cfel.arrays import FloatArray
from cfel.experiment import Experiment
from cfel.learning.edge import gossip_mix
from cfel.learning.models.flat import FlatModel
from cfel.runlog import PlanTable
from cfel.simulation import loop
from tests.simulation.drive import column, outcomes, parameters_of, records, timeless, tiny

SCHEMES = ("hcef", "cef", "cef_c", "cef_f", "mll_sgd")


@pytest.mark.parametrize("engine", ["threads", "batched"])
def test_equal_seeds_give_equal_logs(engine: str) -> None:
    experiment = tiny(simulation={"engine": engine})
    first, again = (timeless(records(experiment)) for _ in range(2))
    assert first == again
    other = timeless(records(replace(experiment, seed=1)))
    for key in ("model_sha256", "seconds", "joules", "loss", "sigma2"):
        assert all(one[key] != two[key] for one, two in zip(first, other, strict=True)), key


@pytest.mark.parametrize("engine", ["threads", "batched"])
def test_workers_change_no_bit(engine: str) -> None:
    """Not even with seventy devices, more than fit into one batched group."""
    fleet = {"devices": 70, "clusters": 3}
    rounds = {"global": 2, "edge": 2, "local": 2}
    logs = [
        timeless(records(tiny(fleet=fleet, rounds=rounds, simulation={"engine": engine, "workers": n})))
        for n in (1, 2, 5)
    ]
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.parametrize(
    "local",
    [
        {"momentum": 0.9},
        {"momentum": 0.0, "steps": "systematic"},
        {"momentum_state": "reset", "estimator": "fresh", "weight_decay": 0.01},
    ],
    ids=str,
)
def test_both_engines_agree(local: dict[str, object]) -> None:
    """Up to the order of additions, which small differences in plans then carry on; devices may be small."""
    threads, batched = (
        outcomes(tiny(local=local, data={"beta": 0.3, "batch": 40}, simulation={"engine": engine}))
        for engine in ("threads", "batched")
    )
    for one, two in zip(threads, batched, strict=True):
        for left, right in zip(parameters_of(one), parameters_of(two), strict=True):
            np.testing.assert_allclose(left, right, atol=2e-4)
        assert one.record.accuracy == pytest.approx(two.record.accuracy, abs=0.01)
        assert one.record.loss == pytest.approx(two.record.loss, rel=1e-3)
        assert one.record.sigma2 == pytest.approx(two.record.sigma2, rel=1e-3)
        assert one.record.seconds == pytest.approx(two.record.seconds, rel=1e-3)
        np.testing.assert_array_equal(one.plans.steps, two.plans.steps)


def rows(tables: Sequence[PlanTable], part: str) -> dict[tuple[float, ...], float]:
    """A column by round, edge round and device: a scheme may leave devices out."""
    number = np.repeat([table.round for table in tables], [len(table.device) for table in tables])
    keys = zip(number, column(tables, "edge_round"), column(tables, "device"), strict=True)
    return dict(zip(keys, column(tables, part).tolist(), strict=True))


def test_every_scheme_meets_the_same_conditions() -> None:
    """Round by round and device by device, to the last bit."""
    tables = {
        name: [each.plans for each in outcomes(tiny(scheme={"name": name}, local={"momentum": 0.0}))]
        for name in SCHEMES
    }
    for name in SCHEMES:
        for part in ("cluster", "mu", "alpha", "nu", "power"):
            mine, everybody = rows(tables[name], part), rows(tables["cef"], part)
            assert len(mine) > 30
            assert mine.items() <= everybody.items()
    np.testing.assert_array_equal(column(tables["cef"], "steps"), 3)
    assert (column(tables["hcef"], "steps") < 3).any()


def test_every_scheme_meets_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """An augmentation is handed each batch and a stream of its own: where both step, the same batch."""
    seen: dict[int, Tensor] = {}

    def recorder() -> object:
        def augment(batch: Tensor, draw: np.random.Generator) -> Tensor:
            key = draw.bit_generator.state["state"]["key"]
            seen[int(key[0]) + (int(key[1]) << 64)] = batch.clone()
            return batch

        return augment

    module = ModuleType("recorder")
    monkeypatch.setattr(module, "recorder", recorder, raising=False)
    monkeypatch.setitem(sys.modules, "recorder", module)

    def batches(experiment: Experiment) -> dict[int, Tensor]:
        seen.clear()
        outcomes(experiment)
        return dict(seen)

    data = {"augment": "recorder:recorder"}
    here = {"workers": 1}  # more of them would be processes, and the recorder would not see theirs
    every, some = (
        batches(tiny(data=data, scheme={"name": name}, simulation=here)) for name in ("cef", "hcef")
    )
    steps = {key for key in every if key in some}
    assert 0 < len(steps) < len(every)
    assert all(torch.equal(every[key], some[key]) for key in steps)
    assert len(every) >= 3 * 2 * 6 * 3


def test_common_random_steps() -> None:
    """An iteration that is taken with a small ρ is taken with a larger one: steps rise with ρ."""
    few, many = ([each.plans for each in outcomes(tiny(scheme={"name": name}))] for name in ("hcef", "cef_f"))
    rho, steps = ((rows(few, part), rows(many, part)) for part in ("rho", "steps"))
    larger = [key for key in rho[0] if rho[1].get(key, 0) >= rho[0][key]]
    assert larger
    assert all(steps[1][key] >= steps[0][key] for key in larger)


def test_gossip_uses_as_many_threads_as_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def mix(models: Sequence[FlatModel], mixing: FloatArray, workers: int) -> list[FlatModel]:
        asked.append(workers)
        return gossip_mix(models, mixing, workers)

    monkeypatch.setattr(loop, "gossip_mix", mix)
    records(tiny(simulation={"workers": 1}))
    assert asked == [1, 1, 1]
