"""The bare loop of `cfel bench peers`: users one after another, averaging, and nothing else; torch's threads.

Run as `python -m cfel.bench.peers.bare_worker SOCKET WORKLOAD THREADS`.
"""

import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 — the name every torch reader knows

from cfel.bench.peers.workload import (
    LEARNING_RATE,
    MOMENTUM,
    SEED,
    RaceLink,
    build_module,
    from_argument,
    make_images,
)

if TYPE_CHECKING:
    from torch import Tensor


def main(address: str, argument: str, threads: str) -> None:
    """Runs rounds until the race is over."""
    link, workload = RaceLink(address), from_argument(argument)
    torch.set_num_threads(int(threads))
    images, targets = make_images(workload)
    module = build_module(workload)
    module.train()
    draw = np.random.default_rng(SEED)
    weights: list[Tensor] = [each.detach().clone() for each in module.parameters()]
    more = True
    while more:
        begin = time.perf_counter()
        sums = [torch.zeros_like(each) for each in weights]
        for user in draw.choice(workload.users, workload.cohort, replace=False):
            with torch.no_grad():
                for own, common in zip(module.parameters(), weights, strict=True):
                    own.copy_(common)
            optimiser = torch.optim.SGD(module.parameters(), LEARNING_RATE, momentum=MOMENTUM)
            for places in draw.permutation(workload.samples).reshape(workload.steps, -1):
                rows = torch.from_numpy(places + int(user) * workload.samples)
                loss = F.cross_entropy(module(images[rows]), targets[rows])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            for total, own in zip(sums, module.parameters(), strict=True):
                total += own.detach()
        weights = [total / workload.cohort for total in sums]
        link.report(time.perf_counter() - begin)
        more = link.wait_for_turn()


if __name__ == "__main__":
    main(*sys.argv[1:])
