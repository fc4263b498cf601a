"""What all systems of `cfel bench peers` compute."""

import torch

from cfel.bench.peers.cfel_worker import describe_setting
from cfel.bench.peers.workload import LEAF, SMALL, build_module, from_argument, make_images, to_argument


def test_a_workload_survives_its_way_to_a_worker() -> None:
    assert from_argument(to_argument(SMALL)) == SMALL


def test_every_system_gets_the_same_model_and_data() -> None:
    few = from_argument(to_argument(SMALL).replace("1000", "3"))
    for one, other in zip(build_module(few).parameters(), build_module(few).parameters(), strict=True):
        assert torch.equal(one, other)
    images, targets = make_images(few)
    assert images.shape == (3 * 50, 3, 32, 32)
    assert torch.equal(images, make_images(few)[0])
    assert targets.max() < few.classes


def test_cfel_runs_the_same_steps_as_its_peers() -> None:
    """One pass over the samples; a cohort on average, or everybody."""
    small, leaf = describe_setting(SMALL), describe_setting(LEAF)
    assert (small.local_steps, small.edge_rounds, small.present, small.devices) == (5, 1, 50, 1000)
    assert (leaf.local_steps, leaf.edge_rounds, leaf.present, leaf.devices) == (5, 1, None, 64)
