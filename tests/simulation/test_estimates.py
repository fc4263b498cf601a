"""Who is asked for estimates of σ² and G², when, and what a device counts as that has none of its own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cfel.control.scheme import Observation, RoundPlan, Scheme, State
from cfel.learning.device_messages import DeviceOrder, DeviceState
from cfel.learning.local.estimates import Estimates
from cfel.simulation.executors import PoolExecutor
from cfel.simulation.loop import simulate
from cfel.simulation.state import initial_state
from tests.simulation.drive import tiny


class Asking(PoolExecutor):
    """An executor that remembers who was asked for fresh estimates: (global round, edge round, devices)."""

    asked: list[tuple[int, int, list[int]]]

    def run_estimates(self, orders: Sequence[DeviceOrder]) -> Iterator[Estimates]:
        """As the executor does."""
        if orders:
            self.asked.append((orders[0].global_round, orders[0].edge_round, [o.device for o in orders]))
        return super().run_estimates(orders)


def observed(
    away: list[list[int]], **sections: Mapping[str, Any]
) -> tuple[list[Observation], list[tuple[int, int, list[int]]], list[DeviceState]]:
    """What the scheme saw, who was asked, and what devices know in the end; ρ = 1, so that all take steps."""
    experiment = tiny(sections, fleet={"availability": {"away": away}}, scheme={"name": "cef"})
    world = experiment.build_world()
    seen: list[Observation] = []
    inner = world.setting.scheme

    def plan(state: State, observation: Observation) -> tuple[RoundPlan, State]:
        seen.append(observation)
        return inner.plan(state, observation)

    world = replace(world, setting=replace(world.setting, scheme=Scheme(inner.init, plan)))
    parameters = experiment.resolve(world).simulation
    with Asking(world, parameters) as executor:
        executor.asked = []
        last = list(simulate(world, executor, initial_state(world), lambda: 0.0))[-1]
        return seen, executor.asked, list(last.state.devices)


def test_everybody_is_asked_once() -> None:
    _, asked, devices = observed([])
    assert asked == [(0, 0, [0, 1, 2, 3, 4, 5])]
    assert all(device.estimates is not None for device in devices)


def test_who_joins_later_counts_as_the_mean_of_the_others() -> None:
    """Device 5 is away in the first global round: nobody asks it; it counts like them till it trains."""
    seen, asked, _ = observed([[5, 0, 0]])
    assert asked == [(0, 0, [0, 1, 2, 3, 4])]
    for observation in seen[:3]:
        for values in (observation.sigma2, observation.g2):
            assert values[5] == pytest.approx(values[:5].mean(), rel=1e-12)
            assert np.ptp(values[:5]) > 0
    assert seen[2].conditions.available[5]
    assert seen[3].sigma2[5] != pytest.approx(seen[3].sigma2[:5].mean(), rel=1e-6)


def test_while_nobody_was_there_everybody_is_asked_again() -> None:
    """All are away in the first global round; in the second devices 0 to 2 come, and only they are asked."""
    everybody = [[n, 0, 0] for n in range(3)] + [[n, 0, 1] for n in range(3, 6)]
    seen, asked, _ = observed(everybody)
    assert asked == [(1, 0, [0, 1, 2])]
    assert not seen[0].sigma2.any()
    assert not seen[1].g2.any()
    assert seen[2].sigma2[3:] == pytest.approx(np.full(3, seen[2].sigma2[:3].mean()))


def test_fresh_asks_always() -> None:
    """Whoever is there, in every edge round."""
    _, asked, _ = observed([[5, 0, 0]], local={"estimator": "fresh"})
    present = [0, 1, 2, 3, 4]
    assert asked == [
        (0, 0, present),
        (0, 1, present),
        *((later, edge, [*present, 5]) for later in (1, 2) for edge in (0, 1)),
    ]
