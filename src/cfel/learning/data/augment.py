"""Random changes to a training batch: flips, and the crop and flip that is usual for CIFAR.

An augmentation is a function `(batch, generator) -> batch`. It draws random numbers only from the generator
that it is given, and works on the whole batch at once, without a loop over samples.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from cfel.errors import InputError
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, check_call, resolve

Augmentation: TypeAlias = Callable[[Tensor, np.random.Generator], Tensor]


def crop_and_flip(padding: int = 4) -> Augmentation:
    """Shifts each image by up to `padding` pixels each way, fills with zeros, and mirrors half of them.

    Args:
        padding: pixels of zeros around the image before the crop, ≥ 0.
    """
    if padding < 0:
        raise InputError(f"augmentation: padding must not be negative, got {padding}")

    def augment(batch: Tensor, draw: np.random.Generator) -> Tensor:
        count, channels, height, width = batch.shape
        shift = torch.from_numpy(draw.integers(0, 2 * padding + 1, (2, count, 1))).to(batch.device)
        mirrored = torch.from_numpy(draw.random((count, 1)) < 0.5).to(batch.device)
        rows = torch.arange(height, device=batch.device) + shift[0]
        columns = torch.arange(width, device=batch.device).expand(count, width)
        columns = torch.where(mirrored, width - 1 - columns, columns) + shift[1]
        wide = width + 2 * padding
        padded = torch.nn.functional.pad(batch, (padding,) * 4)
        place = (rows * wide)[:, :, None] + columns[:, None, :]
        place = place.view(count, 1, height * width).expand(count, channels, height * width)
        return padded.view(count, channels, -1).gather(2, place).view_as(batch)

    return augment


BUILTIN: Mapping[str, Callable[[], Augmentation | None]] = MappingProxyType(
    {"none": lambda: None, "crop_flip": crop_and_flip, "flip": lambda: crop_and_flip(padding=0)}
)


def augmentation(name: str, code: CodePolicy = BUILT_IN_ONLY) -> Augmentation | None:
    """The augmentation called `name`: built in, an entry point `cfel.augmentation`, "module:function"."""
    builder: Callable[[], Augmentation | None] = resolve("augmentation", name, BUILTIN, (), code=code)
    found = builder()
    if found is not None:
        if not callable(found):
            raise InputError(f"augmentation {name!r} returned a {type(found).__name__}, not a function")
        check_call(f"augmentation {name!r}", found, ("batch", "generator"))
    return found
