"""Who is asked: sizes of samples, chances, weights that keep averages right, and keyed draws."""

import numpy as np
import pytest

from cfel.errors import InputError
from cfel.system.fleet import Chances, FleetParameters, Participation, Sample, build_fleet, inclusion_chances

CLUSTER = np.repeat([0, 1], [4, 6])
EVERYBODY = np.ones(10, dtype=bool)


def test_a_share_is_spread_over_clusters_by_size() -> None:
    """Half of 4, 6 and 10 devices; of 2, 2 and 16 a tenth is two devices, but every cluster has one."""
    assert Participation(0.5).count(np.array([4, 6, 10])).tolist() == [2, 3, 5]
    assert Participation(0.1).count(np.array([2, 2, 16])).tolist() == [1, 1, 1]
    assert Participation(5).count(np.array([2, 2, 16])).tolist() == [1, 1, 3]
    assert Participation(20).count(np.array([2, 2, 16])).tolist() == [2, 2, 16]


@pytest.mark.parametrize("total", range(3, 21))
def test_a_number_is_met_exactly(total: int) -> None:
    counts = Participation(total).count(np.array([1, 8, 11]))
    assert counts.sum() == total
    assert (counts >= 1).all()
    assert (counts <= [1, 8, 11]).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"participation": 0.0}, "fleet.participation = 0.0: must be"),
        ({"participation": 1.5}, "fleet.participation = 1.5: must be"),
        ({"participation": True}, "fleet.participation = True: must be a share of the devices"),
        ({"participation": "all"}, "fleet.participation = 'all': must be a share of the devices"),
        ({"participation": 1}, "from 8, one in each cluster, to 64; write 1.0 for all devices"),
        ({"participation": 65}, "fleet.participation = 65: must be a number of devices from 8"),
        ({"participation_per": "round"}, "participation_per"),
        ({"participation_by": "size"}, "participation_by"),
    ],
)
def test_what_is_not_allowed(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FleetParameters(**fields)  # type: ignore[arg-type]


def test_chances_proportional_to_size_are_at_most_one() -> None:
    """Three of sizes 8, 1, 1, 1, 1: the first is certain, two are left for four equal ones."""
    assert inclusion_chances(np.array([8.0, 1, 1, 1, 1]), 3).tolist() == [1, 0.5, 0.5, 0.5, 0.5]
    assert inclusion_chances(np.array([3.0, 1, 2]), 1).tolist() == pytest.approx([1 / 2, 1 / 6, 1 / 3])
    assert inclusion_chances(np.array([3.0, 1]), 5).tolist() == [1, 1]


def test_samples_repeat_and_change_as_often_as_asked() -> None:
    fleet = build_fleet(FleetParameters(devices=10, clusters=(4, 6), participation=0.5))
    first, again = (fleet.conditions(3, 1, 0, 1e6).available for _ in range(2))
    assert (first == again).all()
    assert np.bincount(CLUSTER, first).tolist() == [2, 3]
    drawn = {tuple(fleet.conditions(3, 1, r, 1e6).available) for r in range(10)}
    assert len(drawn) > 1
    per_global = FleetParameters(
        devices=10, clusters=(4, 6), participation=0.5, participation_per="global_round"
    )
    fleet = build_fleet(per_global)
    assert len({tuple(fleet.conditions(3, 1, r, 1e6).available) for r in range(10)}) == 1
    assert len({tuple(fleet.conditions(3, g, 0, 1e6).available) for g in range(10)}) > 1


def test_only_available_devices_are_drawn() -> None:
    """One of cluster 0 is left, so it is asked; none of cluster 1."""
    present = np.zeros(10, dtype=bool)
    present[2] = True
    for by in ("uniform", "samples"):
        sample = Participation(6, by=by).draw(
            (0, 0, 0), CLUSTER, np.array([2, 4]), present, np.arange(1.0, 11)
        )
        assert np.flatnonzero(sample.chosen).tolist() == [2]


def test_uniform_samples_estimate_the_plain_mean_without_bias() -> None:
    """2,000 keyed draws of 2 of 4: every device in half of them; weights are left to the scheme."""
    draws = [_draw("uniform", r) for r in range(2000)]
    assert all(sample.weight is None for sample in draws)
    often = np.mean([sample.chosen for sample in draws], axis=0)
    assert often == pytest.approx(np.full(10, 0.5), abs=0.04)


def test_samples_by_size_estimate_the_mean_by_samples_without_bias() -> None:
    """The weighted mean of each sample, averaged over draws, is Σ s x / Σ s; one device is certain."""
    values = np.arange(10.0) ** 2
    means = []
    for r in range(4000):
        sample = _draw("samples", r)
        assert np.bincount(CLUSTER, sample.chosen).tolist() == [2, 3]
        assert sample.weight is not None
        weight = np.where(sample.chosen, sample.weight, 0.0)
        means.append(np.bincount(CLUSTER, weight * values) / np.bincount(CLUSTER, weight))
    exact = np.bincount(CLUSTER, SAMPLES * values) / np.bincount(CLUSTER, SAMPLES)
    assert np.mean(means, axis=0) == pytest.approx(exact, rel=0.03)


def test_where_nobody_is_certain_all_weigh_the_same() -> None:
    sample = Participation(0.2, by="samples").draw(
        (0, 0, 0), np.zeros(10, dtype=np.int64), np.array([2]), EVERYBODY, np.arange(5.0, 15)
    )
    assert sample.weight == pytest.approx(np.full(10, 95 / 2))


def test_sampling_by_size_needs_sizes() -> None:
    fleet = build_fleet(FleetParameters(participation=0.5, participation_by="samples"))
    with pytest.raises(InputError, match="numbers of samples are not known"):
        fleet.conditions(0, 0, 0, 1e6)


SAMPLES = np.array([40.0, 2, 3, 5, 1, 2, 3, 4, 5, 6])


def _draw(by: Chances, edge_round: int) -> Sample:
    counts = np.array([2, 3])
    return Participation(0.5, by=by).draw((0, 0, edge_round), CLUSTER, counts, EVERYBODY, SAMPLES)
