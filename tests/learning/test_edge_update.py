"""What edge servers do with the mean of the updates: numbers by hand, and what algorithms promise."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cfel.errors import InputError
from cfel.learning.compressors import DenseUpdate, compressor
from cfel.learning.device import device_update
from cfel.learning.device_messages import DeviceReport, DeviceState
from cfel.learning.edge import (
    AggregationParameters,
    EdgeRules,
    build_optimiser,
    build_rules,
    update_edge_model,
    weighted_model,
)
from cfel.learning.edge_rule import read_memory
from cfel.learning.local.algorithm import LocalParameters, TrainingParameters
from cfel.learning.local.algorithms import build_algorithm
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.learning.task import Task, initial_model
from tests.learning.conftest import Make, Spread


def _report(device: int, update: list[float], steps: int) -> DeviceReport:
    return DeviceReport(device, DenseUpdate(torch.tensor(update)), torch.empty(0), None, steps, 0.5, 10)


def _update(rules: EdgeRules, model: FlatModel, reports: list[DeviceReport], share: float = 1.0) -> FlatModel:
    weights = dict.fromkeys((report.device for report in reports), 1.0)
    return update_edge_model(model, reports, weights, rules, share=share, rate=0.1)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        # Updates of 1, then 2. m = 1, then 0.5 + 2; half of it is added.
        ("momentum", 0.5, 1.75),
        # m = 0.5, v = 0.25; then m = 1.25, v = 0.1875 + 1: 0.5 · m / (√v + 0.5).
        ("fedadam", 0.25, 0.25 + 0.625 / (1.1875**0.5 + 0.5)),
        # v = 0.25 as v starts at zero; then 0.25 + 1.
        ("fedyogi", 0.25, 0.25 + 0.625 / (1.25**0.5 + 0.5)),
    ],
)
def test_optimisers(name: str, first: float, second: float) -> None:
    options = {"beta1": 0.5} if name == "momentum" else {"beta1": 0.5, "beta2": 0.75, "epsilon": 0.5}
    rule = build_optimiser(AggregationParameters(optimiser=name, learning_rate=0.5, options=options))
    assert rule is not None
    rules = EdgeRules((rule,))
    start = rules.add_memory(FlatModel(torch.zeros(1), torch.empty(0)))
    one = _update(rules, start, [_report(0, [1.0], 1)])
    two = _update(rules, one, [_report(0, [2.0], 1)])
    assert not start.memory.any()
    assert one.parameters.item() == pytest.approx(first)
    assert two.parameters.item() == pytest.approx(second)


def test_the_average_follows_the_model() -> None:
    """A quarter of every new model: 0, then 0 + (4 − 0)/4, then 1 + (8 − 1)/4."""
    rules = EdgeRules(aggregation=AggregationParameters(average=0.25))
    model = rules.add_memory(FlatModel(torch.zeros(1), torch.ones(1)))
    for value, average in ((4.0, 1.0), (8.0, 2.75)):
        model = rules.add_to_average(replace(model, parameters=torch.tensor([value])))
        found = rules.read_average(model)
        assert (found.parameters.item(), found.buffers.item()) == (average, 1.0)
        assert model.parameters.item() == value
    assert EdgeRules().read_average(model) is model


def test_memory_is_gossiped_with_the_model() -> None:
    one, two = (FlatModel(torch.zeros(1), torch.empty(0), torch.tensor([each])) for each in (1.0, 3.0))
    assert weighted_model({0: one, 1: two}, {0: 0.25, 1: 0.75}).memory.item() == 2.5
    assert one.sha256() != two.sha256()


def test_fednova_counts_updates_per_step() -> None:
    """Updates of 2 in one step and 4 in four steps: 2 and 1 per step, 2.5 steps on average: 2.5 · 1.5."""
    rule = build_algorithm(LocalParameters(algorithm="fednova", momentum=0.0)).edge
    assert rule is not None
    reports = [_report(0, [2.0], 1), _report(1, [4.0], 4)]
    rules = EdgeRules((rule,))
    assert _update(rules, FlatModel(torch.zeros(1), torch.empty(0)), reports).parameters.item() == 3.75


@pytest.mark.parametrize("compression", ["none", "topk"])
@pytest.mark.parametrize(("name", "own", "common"), [
    ("scaffold", "variate", "variate"),
    ("feddyn", "drift", "total_drift"),
])  # fmt: skip
def test_edge_servers_remember_the_mean_of_what_devices_remember(
    digits_task: Task, order: Make, spread: Spread, name: str, own: str, common: str, compression: str
) -> None:
    """SCAFFOLD: c is the mean of c_i. FedDyn: z is the mean of −g_i/α. Also if a device is left out."""
    local = LocalParameters(algorithm=name, momentum=0.0, learning_rate=0.1)
    algorithm = build_algorithm(local)
    assert algorithm.edge is not None
    rules, scale = EdgeRules((algorithm.edge,)), 1.0 if name == "scaffold" else -0.01
    workspace = Workspace(
        digits_task, TrainingParameters(local, 20, algorithm=algorithm), compressor(compression)
    )
    data, model = spread(digits_task, 3), rules.add_memory(initial_model(digits_task, 0))
    states = [DeviceState()] * 3
    for edge_round, present in enumerate(((0, 1, 2), (0, 2), (0, 1, 2))):
        reports = []
        for n in present:
            asked = order(model, n, theta=0.3, tau=2 + n, edge_round=edge_round)
            report, states[n] = device_update(asked, data[n], states[n], workspace)
            reports.append(report)
        model = _update(rules, model, reports, len(present) / 3)
        known = torch.stack([_read(state, own, model) for state in states]).mean(0)
        torch.testing.assert_close(read_memory(model, (common,))[common] * scale, known, atol=1e-6, rtol=1e-4)
    assert known.norm() > 0


def _read(state: DeviceState, name: str, model: FlatModel) -> Tensor:
    return state.memory.get(name, torch.zeros_like(model.parameters))


@pytest.mark.parametrize("name", ["scaffold", "fednova"])
def test_what_needs_plain_steps_says_so(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}': needs local.momentum = 0"):
        build_algorithm(LocalParameters(algorithm=name, momentum=0.9))


def test_an_algorithm_with_a_rule_needs_the_mean() -> None:
    local = LocalParameters(algorithm="scaffold", momentum=0.0)
    algorithm = build_algorithm(local)
    fedadam = AggregationParameters(optimiser="fedadam", average=0.1)
    assert build_rules(local, algorithm, fedadam).vectors == 4
    with pytest.raises(InputError, match=r"kind = 'mean', not 'median'"):
        build_rules(local, algorithm, AggregationParameters(kind="median"))


def test_shared_momentum_works_with_robust_rules() -> None:
    """The median of updates 1, 2 and 1,000 is 2; over 2 steps at a rate of 0.1 that is a momentum of −10."""
    local = LocalParameters(algorithm="shared_momentum", momentum=0.9)
    rules = build_rules(local, build_algorithm(local), AggregationParameters(kind="median"))
    start = rules.add_memory(FlatModel(torch.zeros(1), torch.empty(0)))
    made = _update(rules, start, [_report(n, [update], 2) for n, update in enumerate((1.0, 2.0, 1000.0))])
    assert made.parameters.item() == 2.0
    assert made.memory.item() == pytest.approx(-10.0)


def test_unknown_optimisers_and_options() -> None:
    with pytest.raises(InputError, match="did you mean 'fedadam'"):
        build_optimiser(AggregationParameters(optimiser="fedadm"))
    with pytest.raises(InputError, match="unknown 'beta2'"):
        build_optimiser(AggregationParameters(optimiser="momentum", options={"beta2": 0.9}))
