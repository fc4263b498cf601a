"""Clock curves: what a slower clock saves, by the paper's model and by static shares."""

import numpy as np
import pytest

from cfel.system.conditions import Conditions, RandomConditions, clock_energy
from cfel.system.device_classes import DeviceClass, HardwareConditions


@pytest.mark.parametrize(
    ("static", "exponent", "half"), [(0.0, 2.0, 0.25), (1.0, 2.0, 1.0), (0.12, 2.0, 0.34), (0.0, 1.0, 0.5)]
)
def test_energy_of_a_step_at_half_the_clock(static: float, exponent: float, half: float) -> None:
    assert clock_energy(0.5, static, exponent) == pytest.approx(half)
    assert clock_energy(1.0, static, exponent) == 1.0


def test_conditions_at_a_slower_clock() -> None:
    """At half the clock a step takes twice as long; each device saves by its own curve."""
    two = np.ones(2)
    full = Conditions(two, two, two, two, two > 0, clock_static=np.array([0.0, 0.6]))
    slow = full.at_clock(np.full(2, 0.5))
    assert slow.mu.tolist() == [2.0, 2.0]
    assert slow.alpha.tolist() == pytest.approx([0.25, 0.7])


def test_condition_models_bring_their_curve_along() -> None:
    drawn = RandomConditions(clock_static=0.2, clock_exponent=1.5).conditions(0, 0, 0, 3, 1e6)
    assert (drawn.clock_static.tolist(), drawn.clock_exponent.tolist()) == ([0.2] * 3, [1.5] * 3)
    board = DeviceClass("board", 1e9, 5.0, 1.0, 1e6, "tested", clock_static=0.5)
    found = HardwareConditions({"board": 2}, 1e6, extra_classes=(board,)).conditions(0, 0, 0, 2, 1e6)
    assert found.clock_static.tolist() == [0.5, 0.5]
