"""Sampled links: matchings, chances within their budget, and steps that keep the target."""

import numpy as np
import pytest

from cfel.system.backhaul import (
    TopologyParameters,
    build_backhaul,
    check_gossip_step,
    sample_links,
    use_links,
)


@pytest.mark.parametrize("kind", ["ring", "star", "complete", "line"])
def test_matchings_share_no_edge_server_and_hold_every_link(kind: str) -> None:
    backhaul = build_backhaul(TopologyParameters(kind=kind), [2, 3, 4, 5, 6], 0)
    found = sample_links(backhaul, 0.5)
    assert sorted(link for matching in found.matchings for link in matching) == list(backhaul.edges)
    for matching in found.matchings:
        ends = [end for link in matching for end in link]
        assert len(ends) == len(set(ends))
    assert found.chances.sum() == pytest.approx(0.5 * len(found.matchings), abs=1e-4)
    assert ((found.chances >= 0) & (found.chances <= 1)).all()


def test_a_bridge_is_used_more_often_than_other_links() -> None:
    """Two triangles joined by one link: without the bridge nothing passes from one to the other."""
    links = ((0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5), (3, 5))
    backhaul = build_backhaul(TopologyParameters(kind="edges", edges=links), [1] * 6, 0)
    found = sample_links(backhaul, 0.5)
    chance = {
        link: p for matching, p in zip(found.matchings, found.chances, strict=True) for link in matching
    }
    assert chance[2, 3] == max(chance.values())
    assert chance[2, 3] > 0.5


def test_draws_repeat_differ_and_have_their_chances() -> None:
    backhaul = build_backhaul(TopologyParameters(), [1] * 6, 0)
    found = sample_links(backhaul, 0.5)
    assert found.draw(1, 2, 3, 0) == found.draw(1, 2, 3, 0)
    drawn = [found.draw(0, number, 0, 0) for number in range(1000)]
    assert len(set(drawn)) == 2 ** len(found.matchings)
    for matching, chance in zip(found.matchings, found.chances, strict=True):
        assert np.mean([matching[0] in links for links in drawn]) == pytest.approx(chance, abs=0.06)


def test_every_step_keeps_the_target_and_their_mean_connects_all() -> None:
    """πW = π and rows sum to 1 for each draw; averaged over draws, W has only one eigenvalue 1."""
    backhaul = build_backhaul(TopologyParameters(weights="size"), [1, 2, 3, 4], 0)
    found = sample_links(backhaul, 0.5)
    weights = []
    for number in range(200):
        step = use_links(backhaul, found.draw(0, number, 0, 0))
        check_gossip_step(step.weights, backhaul.target, backhaul.graph)
        assert set(step.edges) <= set(backhaul.edges)
        weights.append(step.weights)
    values = np.sort(np.abs(np.linalg.eigvals(np.mean(weights, axis=0))))
    assert values[-1] == pytest.approx(1.0)
    assert values[-2] < 0.95


def test_a_backhaul_without_links_has_nothing_to_sample() -> None:
    backhaul = build_backhaul(TopologyParameters(), [3], 0)
    assert sample_links(backhaul, 0.5).draw(0, 0, 0, 0) == ()
