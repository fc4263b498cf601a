"""Devices that train only the last layers, or only some samples of a batch: FedEL- and FedBalancer-like."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cfel.control import SchemeParameters, build_scheme
from cfel.errors import InputError
from cfel.learning.device import device_update
from cfel.learning.device_messages import DeviceState
from cfel.learning.local.algorithm import LocalParameters
from cfel.learning.local.algorithms import build_algorithm
from cfel.learning.local.training import find_trained
from cfel.learning.models.flat import FlatModule
from cfel.learning.task import Task, initial_model
from cfel.system.batch_shares import LAYER_SHARES
from tests.learning.conftest import Build, Make, Spread, dense
from tests.simulation.drive import outcomes, tiny

LAST = LocalParameters(steps="last_layers")


def test_what_a_share_of_the_layers_costs() -> None:
    """The forward pass is a third: half of the layers cost ⅓ + ⅔ · ½ = ⅔, two tenths 7/15."""
    assert LAYER_SHARES.price_samples(5) == pytest.approx(2 / 3)
    assert LAYER_SHARES.least == pytest.approx(7 / 15)
    assert float(LAYER_SHARES.find_part(0.7)) == 0.5
    for name in ("anycost", "hcef", "talk_or_work"):
        plain = build_scheme(SchemeParameters(name=name, steps="last_layers"))
        assert plain.device_overrides.steps == "last_layers"


@pytest.mark.parametrize(("rho", "first"), [(1.0, "0"), (2 / 3, "2"), (0.5, "4"), (7 / 15, "4")])
def test_layers_are_matrices_with_the_vectors_behind_them(rho: float, first: str) -> None:
    """Half of three layers are two, a fifth is one; a norm belongs to the layer before it."""
    with torch.random.fork_rng():
        layers = (
            nn.Conv2d(1, 2, 3),
            nn.GroupNorm(1, 2),
            nn.Linear(2, 4),
            nn.GroupNorm(1, 4),
            nn.Linear(4, 3),
        )
    module = nn.Sequential(*layers)
    flat = FlatModule(module)
    names = {flat.parameter_slots[place].name for place in find_trained(LAST, rho, flat)}
    assert names == {name for name, _ in module.named_parameters() if name >= first}
    assert len(find_trained(LocalParameters(), rho, flat)) == 10


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_only_the_last_layers_change(
    digits_task: Task, workspace: Build, order: Make, spread: Spread, momentum: float
) -> None:
    """The head steps as if all were trained, as long as the layers before it are the same: for one step."""
    start, own = initial_model(digits_task, 0), spread(digits_task, 4)[0]
    results = {}
    for steps in ("whole", "last_layers"):
        place = workspace(digits_task, "none", steps=steps, momentum=momentum)
        rho = 1.0 if steps == "whole" else LAYER_SHARES.least
        report, after = device_update(order(start, rho=rho, tau=1), own, DeviceState(), place)
        assert report.steps == 1
        results[steps] = {slot.name: slot.view(dense(report)) for slot in place.flat.parameter_slots}
        if momentum and steps == "last_layers":
            moved = [s.name for s in place.flat.parameter_slots if s.view(after.memory["momentum"]).any()]
            assert sorted(moved) == ["dense2.bias", "dense2.weight"]
    for name, change in results["last_layers"].items():
        whole = results["whole"][name]
        assert whole.any()
        assert torch.equal(change, whole if name.startswith("dense2") else torch.zeros_like(whole))


def test_a_whole_share_trains_everything(
    digits_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    start, own = initial_model(digits_task, 0), spread(digits_task, 4)[0]
    found = [
        dense(device_update(order(start), own, DeviceState(), workspace(digits_task, "none", steps=steps))[0])
        for steps in ("whole", "last_layers")
    ]
    assert torch.equal(*found)


def test_a_run_is_charged_for_the_layers_that_it_trains() -> None:
    """All three steps count, each at the planned share; slow devices train less than the fastest."""
    (first, *_) = outcomes(
        tiny(
            rounds={"global": 1},
            scheme={"name": "mll_sgd", "steps": "last_layers"},
            simulation={"accounting": "realised"},
        )
    )
    plans, record = first.plans, first.record
    assert set(plans.steps.tolist()) == {3}
    assert plans.rho.max() == 1.0
    tenths = (plans.rho - 1 / 3) * 15
    assert tenths == pytest.approx(np.rint(tenths))
    assert record.joules_expected == pytest.approx(record.joules_realised)


@pytest.mark.parametrize("algorithm", ["adam", "fedprox", "ditto"])
def test_algorithms_that_need_all_layers_are_rejected(algorithm: str) -> None:
    with pytest.raises(InputError, match=r"last_layers.*all layers at once"):
        tiny(local={"algorithm": algorithm, "momentum": 0.0}, scheme={"name": "cef", "steps": "last_layers"})
    with pytest.raises(InputError, match=r"local\.steps = 'last_layers': scheme 'anycost'"):
        tiny(local={"steps": "last_layers"}, scheme={"name": "anycost"})


# FedBalancer


def choose(losses: list[float], **options: Any) -> list[int]:
    algorithm = build_algorithm(LocalParameters(algorithm="fedbalancer", options=options))
    assert algorithm.choose is not None

    class Run:
        @staticmethod
        def draw(_: str) -> np.random.Generator:
            return np.random.default_rng(0)

    found: list[int] = algorithm.choose(Run, torch.tensor(losses)).tolist()  # type: ignore[arg-type]
    return found


def test_hard_samples_are_chosen_and_some_others() -> None:
    """Half of eight are four: the three with the largest losses, and one of the other five."""
    losses = [0.1, 5.0, 0.2, 4.0, 0.3, 3.0, 0.4, 0.5]
    found = choose(losses)
    assert len(set(found)) == 4
    assert {1, 3, 5} < set(found)
    assert sorted(choose(losses, hard=1.0)) == [1, 3, 5, 7]
    assert sorted(choose(losses, share=1.0)) == list(range(8))
    assert len(choose(losses, share=0.01)) == 2
    assert choose([1.0]) == [0]


def test_a_step_costs_a_forward_pass_and_its_part() -> None:
    """⅓ + ½ of a step; μ and α are charged so."""
    setting = tiny(local={"algorithm": "fedbalancer"}).build_setting()
    plain = tiny().build_setting()
    assert setting.work_per_step == pytest.approx(5 / 6)
    assert setting.conditions(0, 0).mu == pytest.approx(plain.conditions(0, 0).mu * 5 / 6)


def test_statistics_and_steps_see_the_chosen_samples_only(
    norm_task: Task, workspace: Build, order: Make, spread: Spread
) -> None:
    """With all samples chosen, batch norm's statistics are those of one forward pass, not of two."""
    start, own = initial_model(norm_task, 0), spread(norm_task, 4)[0]
    found = []
    for algorithm, options in (("sgd", {}), ("fedbalancer", {"share": 1.0, "hard": 1.0})):
        place = workspace(
            norm_task, "none", batch=10, algorithm=algorithm, options=options, estimator="fresh"
        )
        report, _ = device_update(order(start, tau=1), own, DeviceState(), place)
        found.append(report)
    torch.testing.assert_close(found[0].buffers, found[1].buffers)
    # The same samples in another order: equal up to rounding.
    torch.testing.assert_close(dense(found[0]), dense(found[1]), rtol=1e-3, atol=1e-5)


def test_options_of_fedbalancer_are_checked() -> None:
    for options in ({"share": 0.0}, {"share": 1.5}, {"hard": -0.1}, {"shared": 1}):
        (name,) = options
        with pytest.raises(InputError, match=rf"local\.options\.{name}"):
            build_algorithm(LocalParameters(algorithm="fedbalancer", options=options))
