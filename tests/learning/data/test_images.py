"""Flips: every image is itself or its mirror image."""

import numpy as np
import pytest
import torch

from cfel.learning.data.images import augmentation
from tests.simulation.drive import records, timeless, tiny


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_half_of_the_images_are_mirrored_and_none_is_moved(kind: torch.dtype) -> None:
    """Of 400 images 200 ± 50: five standard deviations."""
    batch = torch.arange(400 * 2 * 3 * 5).view(400, 2, 3, 5).to(kind)
    flip = augmentation("flip")
    assert flip is not None
    result = flip(batch, np.random.default_rng(0))
    assert result.dtype == kind
    mirrored = [torch.equal(one, two.flip(-1)) for one, two in zip(result, batch, strict=True)]
    kept = [torch.equal(one, two) for one, two in zip(result, batch, strict=True)]
    assert [one != two for one, two in zip(mirrored, kept, strict=True)] == [True] * 400
    assert 150 < sum(mirrored) < 250
    assert torch.equal(result, flip(batch, np.random.default_rng(0)))
    assert not torch.equal(result, flip(batch, np.random.default_rng(1)))


def test_by_name_in_an_experiment() -> None:
    plain, flips, again, crops = (
        timeless(records(tiny(data={"augment": name}, rounds={"global": 1})))
        for name in ("none", "flip", "flip", "crop_flip")
    )
    assert flips == again
    assert len({log[-1]["model_sha256"] for log in (plain, flips, crops)}) == 3
