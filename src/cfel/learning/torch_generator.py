"""Torch's global generator, seeded for a block of code and restored after it.

Layers draw from this generator when they are built, and some (dropout) when they train. It is one for the
whole process, so a block has it to itself: other threads wait. Everything else in cfel draws from keyed
streams (`seeding`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

_LOCK = RLock()


@contextmanager
def seed_generator(key: int, device: torch.device | None = None) -> Iterator[None]:
    """Seeds torch's generators of the CPU and of `device` for the block, and restores them after it.

    Args:
        key: of a stream, from `make_key`.
        device: where the block computes; None for the CPU.
    """
    # Not `fork_rng` and `manual_seed`: they visit every kind of device, which takes longer than a small step.
    generators = [torch.default_generator]
    if device is not None and device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    with _LOCK:
        states = [generator.get_state() for generator in generators]
        try:
            for generator in generators:
                generator.manual_seed(key % 2**63)
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
