"""Models as compressed differences: between edge servers, and from edge servers to devices.

Every edge server has a *public model*: what all its neighbours know of it. Before a gossip step it adds the
largest entries of what its model differs by, and sends only these. All then move by what gossip does to the
public models (CHOCO-SGD; Koloskova, Stich, Jaggi, ICML 2019, arXiv 1902.00340):

    x̂ᵢ ← x̂ᵢ + Q(xᵢ − x̂ᵢ)
    xᵢ ← xᵢ + γ·(Σⱼ Wᵢⱼ x̂ⱼ − x̂ᵢ)

What is not sent now stays in the difference and is sent later, so errors do not add up, and the mean of all
models stays what it is. Batch-norm statistics and what edge servers remember are sent as they are: they are
small, or must not lose their sign.

Devices get differences in the same way. What they train from is the *issued model* of their edge server, one
for all of them, which follows the edge model x:

    ẑ ← ẑ + Q(x − ẑ)
    x ← x + what the edge server makes of the devices' updates, which are differences to ẑ
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from cfel.arrays import FloatArray
from cfel.learning.compressors import Update, count_entries, keep_largest, round_values
from cfel.learning.edge import gossip_mix
from cfel.learning.models.flat import FlatModel
from cfel.learning.top_k import find_largest
from cfel.learning.torch_state import map_in_threads
from cfel.seeding import make_key
from cfel.system.value_bits import FLOAT_BITS, update_bits


class Published(NamedTuple):
    """A public model, and what it differs by from the one before."""

    model: FlatModel
    update: Update


@dataclass(frozen=True, slots=True)
class Differences:
    """How edge servers send differences.

    Attributes:
        theta: share of the entries that are sent.
        bits: per value.
        step_size: γ; devices go all the way.
    """

    theta: float
    bits: int
    step_size: float = 1.0

    def count_share(self, size: int) -> float:
        """Bits of a difference of so many entries, as a share of all of them in 32 bits."""
        return update_bits(size, count_entries(self.theta, size), self.bits) / (FLOAT_BITS * size)

    def publish(self, model: FlatModel, known: FlatModel, key: int) -> Published:
        """The next public model of an edge server, whose neighbours know `known`; `key` names a stream."""
        update = self._compress(model.parameters - known.parameters, key)
        return Published(add_difference(known, update, model), update)

    def move(self, model: FlatModel, public: FlatModel, mean: FlatModel) -> FlatModel:
        """The model after gossip; `mean` is that of the public models, by the weights of this edge server."""
        moved = torch.add(model.parameters, mean.parameters - public.parameters, alpha=self.step_size)
        return FlatModel(moved, mean.buffers, mean.memory)

    def _compress(self, vector: torch.Tensor, key: int) -> Update:
        kept = count_entries(self.theta, vector.numel())
        if self.bits == FLOAT_BITS:
            return keep_largest(vector, kept)
        return round_values(vector.numel(), self.bits, *find_largest(vector.numpy(), kept), key)


def add_difference(known: FlatModel, update: Update, rest: FlatModel) -> FlatModel:
    """The next public model: what is known and a difference, with the statistics and memory of `rest`."""
    parameters = known.parameters.clone()
    update.add_to(parameters, 1.0)
    return FlatModel(parameters, rest.buffers, rest.memory)


def choose_step_size(theta: float, bits: int) -> float:
    """γ where the experiment does not say, 2θ: less of the way, the less is sent.

    Rings and complete graphs of eight that drift apart at random disagreed at most 1.5 times as much as with
    the best γ, for θ from 0.01 to 0.3. √θ was closer to the best, but did not converge from random models at
    θ = 0.03. Values of 4 bits need less, as errors of rounding are larger.
    """
    return min(1.0, 2.0 * theta) * (0.5 if bits == 4 else 1.0)


def find_key(seed: int, position: tuple[int, int, int], edge_server: int) -> int:
    """The key of an edge server's rounding in a gossip step: global round, edge rounds done, step."""
    return make_key(seed, "gossip", *position, edge_server)


def find_issue_key(seed: int, global_round: int, edge_round: int, edge_server: int) -> int:
    """The key of an edge server's rounding of what its devices fetch in an edge round."""
    return make_key(seed, "issue", global_round, edge_round, edge_server)


def publish_models(
    models: Sequence[FlatModel],
    known: Sequence[FlatModel],
    differences: Differences,
    keys: Sequence[int],
    workers: int = 0,
) -> list[FlatModel]:
    """The next public or issued model of every edge server; `known` are those before."""
    each = list(range(len(models)))
    return map_in_threads(lambda i: differences.publish(models[i], known[i], keys[i]).model, each, workers)


def gossip_differences(
    models: Sequence[FlatModel],
    known: Sequence[FlatModel],
    mixing: FloatArray,
    differences: Differences,
    keys: Sequence[int],
    workers: int = 0,
) -> tuple[list[FlatModel], list[FlatModel]]:
    """One gossip step of all edge servers; returns their models and their public models."""
    public = publish_models(models, known, differences, keys, workers)
    means = gossip_mix(public, mixing, workers)
    parts = zip(models, public, means, strict=True)
    return [differences.move(*each) for each in parts], public
