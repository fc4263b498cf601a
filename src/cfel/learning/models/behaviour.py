"""What a module does when it is called, found by calling it: whether it draws, and what it changes.

A module's code cannot be read for this: `F.dropout` is no layer, and only some buffers are statistics. So a
module is called on two samples before anything else is done with it. Its values are the same after that.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from cfel.errors import InputError
from cfel.learning.torch_generator import seed_generator


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a module behaves.

    Attributes:
        is_random: it draws from torch's generator, in training or in evaluation.
        statistics: names of the floating buffers that training changes; None if that is not known.
        least_batch: the fewest samples it trains on; 2 with batch norm over single values.
    """

    is_random: bool = False
    statistics: frozenset[str] | None = None
    least_batch: int = 1


def observe_behaviour(module: nn.Module, inputs: Tensor) -> Behaviour:
    """Calls a module on a batch, and on its first sample, and observes what happens.

    Args:
        module: on the CPU; its buffers are restored, and it is left in training mode.
        inputs: two samples.

    Raises:
        InputError: it does something that cannot be repeated, or replaces a buffer.
    """
    before = dict(module.named_buffers())
    values = {name: buffer.clone() for name, buffer in before.items()}
    with torch.no_grad(), seed_generator(0):
        start = torch.default_generator.get_state()
        module.train()
        _reject_other_randomness(lambda: module(inputs))
        statistics = _find_statistics(module, before, values)
        least_batch = 1 if _accepts(module, inputs[:1]) else 2
        module.eval()
        module(inputs)
        is_random = not torch.equal(start, torch.default_generator.get_state())
        for name, buffer in before.items():
            buffer.copy_(values[name])
    module.train()
    return Behaviour(is_random, statistics, least_batch)


def _accepts(module: nn.Module, inputs: Tensor) -> bool:
    try:
        module(inputs)
    except (ValueError, RuntimeError):
        return False
    return True


def _find_statistics(
    module: nn.Module, before: dict[str, Tensor], values: dict[str, Tensor]
) -> frozenset[str]:
    """The floating buffers of every layer that has changed one of them."""
    after = dict(module.named_buffers())
    for name, buffer in before.items():
        if after.get(name) is not buffer:
            raise InputError(
                f"model: buffer {name!r} is replaced by the forward pass; change it in place, with copy_()"
            )
    changed = {
        name.rpartition(".")[0]
        for name, buffer in before.items()
        if buffer.is_floating_point() and not _are_equal(buffer, values[name])
    }
    # Not buffer by buffer: the mean of a layer that has seen zeros only does not change.
    return frozenset(
        name for name in before if before[name].is_floating_point() and name.rpartition(".")[0] in changed
    )


def _are_equal(one: Tensor, two: Tensor) -> bool:
    return bool(torch.equal(one.nan_to_num(), two.nan_to_num()))


def _read_numpy_state() -> object:
    state = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 — nothing is drawn
    return bytes(state["key"]), state["pos"]


def _reject_other_randomness(call: Callable[[], object]) -> None:
    """Calls the module, and rejects it if it draws from a generator that is not torch's."""
    states: dict[str, Callable[[], object]] = {
        "Python's random module": random.getstate,
        "NumPy's global generator": _read_numpy_state,
    }
    # Another thread may draw at the same moment, but hardly in each of three calls.
    suspected = set(states)
    for _ in range(3):
        before = {name: states[name]() for name in suspected}
        call()
        suspected = {name for name in suspected if states[name]() != before[name]}
        if not suspected:
            return
    raise InputError(
        f"model: it draws from {min(suspected)}, so runs could not be repeated; draw with torch, e.g. "
        "torch.rand, which is seeded for every step"
    )
