"""Compressed differences between edge servers: exact small steps, the mean that stays, and agreement."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from cfel.learning.compressors import SparseUpdate
from cfel.learning.differences import Differences, choose_step_size, gossip_differences
from cfel.learning.edge import gossip_mix
from cfel.learning.models.flat import FlatModel
from cfel.seeding import make_generator

RING = np.array([[2.0, 1, 0, 1], [1, 2, 1, 0], [0, 1, 2, 1], [1, 0, 1, 2]]) / 4


def flat(values: Sequence[float]) -> FlatModel:
    return FlatModel(torch.tensor(values), torch.empty(0))


def spread(edge_servers: int = 4, size: int = 400) -> list[FlatModel]:
    draw = make_generator(0, "models")
    return [flat(draw.normal(size=size).astype(np.float32).tolist()) for _ in range(edge_servers)]


def measure_disagreement(models: Sequence[FlatModel]) -> float:
    stacked = torch.stack([model.parameters.double() for model in models])
    return float((stacked - stacked.mean(0)).square().mean())


def test_the_largest_entries_are_published_and_the_rest_stays_in_the_difference() -> None:
    """Of differences (1, −3, 0.5, 2) half are sent: −3 and 2. The next time it is 1 and 0.5."""
    differences, model = Differences(0.5, 32, 1.0), flat([2.0, -2.0, 1.5, 3.0])
    published, update = differences.publish(model, flat([1.0, 1.0, 1.0, 1.0]), 0)
    assert isinstance(update, SparseUpdate)
    assert update.indices.tolist() == [1, 3]
    assert published.parameters.tolist() == [1.0, -2.0, 1.0, 3.0]
    again, _ = differences.publish(model, published, 0)
    assert again.parameters.tolist() == model.parameters.tolist()


def test_a_model_moves_by_what_gossip_does_to_public_models() -> None:
    """(1, 5) + ½ · ((2, 3) − (0, 4)) = (2, 4.5); statistics and memory are those of the mean."""
    mean = FlatModel(torch.tensor([2.0, 3.0]), torch.tensor([7.0]), torch.tensor([8.0]))
    moved = Differences(0.5, 32, 0.5).move(flat([1.0, 5.0]), flat([0.0, 4.0]), mean)
    assert [part.tolist() for part in moved.parts] == [[2.0, 4.5], [7.0], [8.0]]


def test_all_entries_with_all_bits_are_plain_gossip() -> None:
    models = spread()
    found, _ = gossip_differences(models, models[:1] * 4, RING, Differences(1.0, 32, 1.0), range(4))
    for one, other in zip(found, gossip_mix(models, RING), strict=True):
        torch.testing.assert_close(one.parameters, other.parameters, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("theta", "bits"), [(1.0, 8), (1.0, 4), (0.3, 32), (0.1, 8), (0.03, 32), (0.1, 4)])
def test_edge_servers_agree_on_their_mean(theta: float, bits: int) -> None:
    """Errors do not add up: repeated gossip ends at the mean of all, however little is sent at a time."""
    models = spread()
    mean, first = torch.stack([each.parameters for each in models]).mean(0), measure_disagreement(models)
    public, differences = models[:1] * 4, Differences(theta, bits, choose_step_size(theta, bits))
    for step in range(400):
        models, public = gossip_differences(models, public, RING, differences, range(step, step + 4), 1)
    assert measure_disagreement(models) < 1e-6 * first
    for model in models:
        torch.testing.assert_close(model.parameters, mean, rtol=0, atol=2e-3)


def test_what_a_difference_takes_is_a_share_of_all_bits() -> None:
    """Of 1,000 entries, 100 with 8 bits: 800 bits, 2 · 32 for scales, and places of 100·(3 + 1) + 124."""
    assert Differences(0.1, 8, 1.0).count_share(1000) == (800 + 64 + 524) / 32_000
