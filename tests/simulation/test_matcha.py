"""MATCHA in the simulator: each gossip step mixes over its own links, and bytes follow them."""

import numpy as np
import pytest

from cfel.errors import InputError
from tests.simulation.drive import outcomes, tiny

ONCE = {"global": 2, "edge": 2}


def test_bytes_follow_the_links_that_were_used() -> None:
    """Uploads as in P-FedAvg; of its 2 · 3 links · 2 exchanges a round, fewer models are sent."""
    sampled = tiny(rounds=ONCE, scheme={"name": "matcha"})
    setting, found = sampled.build_setting(), outcomes(sampled)
    every = outcomes(tiny(rounds=ONCE, scheme={"name": "p_fedavg"}))
    used = []
    for number, (each, whole) in enumerate(zip(found, every, strict=True)):
        links = sum(len(setting.backhaul_at(number, done, 0).edges) for done in (1, 2))
        saved = 2 * (6 - links) * setting.model_bits / 8
        assert whole.record.wire_bytes - each.record.wire_bytes == pytest.approx(saved, abs=1)
        assert each.record.seconds == whole.record.seconds
        used.append(links)
    assert 0 < sum(used) < 12


def test_a_budget_of_all_links_is_gossip_as_usual() -> None:
    every = outcomes(tiny(rounds=ONCE, scheme={"name": "p_fedavg"}))
    sampled = outcomes(tiny(rounds=ONCE, scheme={"name": "matcha", "options": {"links": 1.0}}))
    assert [each.record.model_sha256 for each in sampled] == [each.record.model_sha256 for each in every]


def test_the_mean_of_edge_models_survives_a_step() -> None:
    """Doubly stochastic weights on any part of the links: averages over clusters do not change."""
    setting = tiny(scheme={"name": "matcha"}).build_setting()
    values = np.array([1.0, 5.0, 9.0])
    for step in range(20):
        assert float((setting.backhaul_at(0, 1, step).weights @ values).mean()) == pytest.approx(5.0)


def test_what_is_not_allowed() -> None:
    with pytest.raises(InputError, match="links"):
        tiny(scheme={"name": "matcha", "options": {"links": 0.0}})
    setting = tiny(scheme={"name": "matcha"}).build_setting()
    with pytest.raises(InputError, match="sampled links"):
        setting.scheme.gossip.compute_contraction(setting.backhaul.zeta)
