"""Who is away, and whose battery is empty."""

import numpy as np
import pytest

from cfel.errors import InputError
from cfel.system.fleet import Availability, is_exhausted


def test_no_device_is_absent_by_default() -> None:
    assert not Availability().is_absent(0, 0, 5).any()


def test_absence_includes_both_ends() -> None:
    away = Availability(away=((1, 2, 3), (0, 3, 3)))
    found = [away.is_absent(0, global_round, 3).tolist() for global_round in range(5)]
    assert found == [
        [False, False, False],
        [False, False, False],
        [False, True, False],
        [True, True, False],
        [False, False, False],
    ]


def test_share_away_and_its_key() -> None:
    """10⁵ draws at 0.3: standard deviation 0.0014."""
    away = Availability(away_probability=0.3)
    first, second = (away.is_absent(0, global_round, 100_000) for global_round in (0, 1))
    assert first.mean() == pytest.approx(0.3, abs=0.008)
    assert (first != second).any()
    assert np.array_equal(first[:50], away.is_absent(0, 0, 50))


def test_all_devices_can_be_absent() -> None:
    assert Availability(away_probability=1.0).is_absent(0, 0, 100).all()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"away_probability": 1.5}, r"availability\.away_probability = 1\.5:"),
        ({"away": ((0, 3, 2),)}, r"availability\.away\[0\] = \(0, 3, 2\):"),
        (
            {"away": ((0, 1, 2), (0, 3))},
            r"availability\.away\[1\] = \(0, 3\): must be device, first and last",
        ),
        ({"away": ((-1, 1, 2),)}, r"availability\.away\[0\] = -1"),
        ({"away": (7,)}, r"availability\.away\[0\] = 7"),
    ],
)
def test_bad_parameters_are_rejected(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Availability(**fields)  # type: ignore[arg-type]


def test_unknown_device_is_rejected() -> None:
    with pytest.raises(InputError, match=r"availability\.away\[0\]: .*device 4"):
        Availability(away=((4, 0, 0),)).is_absent(0, 9, 4)


def test_battery() -> None:
    """Of 5 J, after 2 some are left, after 5 or 6 none; mains power never ends."""
    battery, spent = [5, 5, 5, np.inf], [2, 5, 6, 1e9]
    assert is_exhausted(battery, spent).tolist() == [False, True, True, False]


def test_bad_battery_is_rejected() -> None:
    with pytest.raises(InputError, match=r"battery\[1\] = -1\.0"):
        is_exhausted([1, -1], [0, 0])
    with pytest.raises(InputError, match=r"spent joules: .* 2 .* 1"):
        is_exhausted([1, 1], [0])
