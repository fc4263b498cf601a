"""The learning rate over the course of a run: values derived by hand, and the same rate in every order."""

import pytest

from cfel.errors import InputError
from cfel.learning.local.algorithm import LocalParameters


@pytest.mark.parametrize(
    ("local", "used", "rate"),
    [
        ({}, 0.9, 1.0),
        ({"schedule": "linear"}, 0.25, 0.75),
        ({"schedule": "linear", "final_rate": 0.2}, 0.5, 0.6),
        ({"schedule": "cosine"}, 0.5, 0.5),
        ({"schedule": "cosine", "final_rate": 0.1}, 1.0, 0.1),
        ({"schedule": "step"}, 0.49, 1.0),
        ({"schedule": "step"}, 0.5, 0.1),
        ({"schedule": "step", "decay_at": (0.2, 0.4, 0.9), "decay_factor": 0.5}, 0.5, 0.25),
        ({"warmup": 0.2}, 0.0, 0.1),
        ({"warmup": 0.2}, 0.1, 0.55),
        ({"warmup": 0.2}, 0.2, 1.0),
        ({"warmup": 0.5, "schedule": "linear"}, 0.25, 0.75 * 0.55),
    ],
)
def test_rates(local: dict[str, object], used: float, rate: float) -> None:
    assert LocalParameters(**local).find_rate(used) == pytest.approx(rate)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schedule", "cosin"),
        ("schedule_by", "time"),
        ("warmup", 1.0),
        ("decay_at", (1.5,)),
        ("final_rate", 2.0),
    ],
)
def test_what_is_not_allowed(key: str, value: object) -> None:
    with pytest.raises(InputError, match=f"local.{key}"):
        LocalParameters(**{key: value})  # type: ignore[arg-type]
