"""What plans and costs of a run depend on: who, how long, under which scheme and budgets.

Numbers only, no model and no data: a dry run needs nothing else. A `World` adds what is learned.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from cfel.arrays import FloatArray
from cfel.control.caps import Budget, Rounds
from cfel.control.scheme import Gossip, RoundPlan, Scheme
from cfel.metric import ACCURACY, Metric
from cfel.system.backhaul import Backhaul, SampledLinks, retarget_backhaul, sample_links, use_links
from cfel.system.batch_shares import BatchShares
from cfel.system.conditions import Conditions
from cfel.system.fleet import Fleet

MOST_STEPS = 16
"""So many differences in a row are kept for devices that were absent; others fetch a whole model."""


def keep_rate(_used: float) -> float:
    """A learning rate that stays the same throughout the run."""
    return 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """The controlled system.

    Attributes:
        seed: of every random stream.
        rounds: φ, q, τ, and when to stop.
        fleet: devices, clusters and their conditions.
        backhaul: graph and mixing weights between edge servers.
        backhaul_seconds: of one gossip step, per cluster.
        model_bits: size of a model with values of 32 bits, as it is charged.
        scheme: how much each device computes and sends.
        budget: what may be spent in all.
        charged_share: bits charged for every bit that a device sends.
        upload_share: a full upload, as a share of `model_bits`; less than 1 where values have few bits.
        links: how often links are in use, where the scheme samples them.
        joules_per_bit: energy of a bit between edge servers, charged with each global round.
        exchanged_models: what edge servers exchange, in models: with their memory it is more than one.
        gossip_share: a model between edge servers, as a share of a whole one; less than 1 for differences.
        download_share: the same of a model that a device fetches, if it has the one before.
        work_per_step: time and energy of a local step, in steps of plain SGD: 2 for two gradients.
        small_batches: what ρ is in samples, where devices take all steps on small batches, or in tenths of
            the layers, where they train the last ones; None where they leave steps out instead.
        accounting: the costs that the budget counts: "expected" by the plans, or "realised".
        uploads: realised uploads count by the "share" θ that was planned, or by the bits on the "wire".
        schedule_by: whether schedules of learning rates count "rounds", or what is used of the "budget".
        find_rate: the share of the learning rates that is left when a share of the run is over.
        metrics: what the task measures, first the metric that a target is about.
        is_large: whether there are so many devices that nobody should have to see all of them.
    """

    seed: int
    rounds: Rounds
    fleet: Fleet
    backhaul: Backhaul
    backhaul_seconds: FloatArray
    model_bits: float
    scheme: Scheme
    budget: Budget = field(default_factory=Budget)
    charged_share: float = 1.0
    upload_share: float = 1.0
    links: SampledLinks | None = None
    joules_per_bit: float = 0.0
    exchanged_models: float = 1.0
    gossip_share: float = 1.0
    download_share: float = 1.0
    work_per_step: float = 1.0
    small_batches: BatchShares | None = None
    accounting: str = "expected"
    uploads: str = "share"
    schedule_by: str = "rounds"
    find_rate: Callable[[float], float] = keep_rate
    metrics: tuple[Metric, ...] = (ACCURACY,)
    is_large: bool = False

    @property
    def by_clusters(self) -> bool:
        """Whether rounds are planned and counted cluster by cluster (`control.clusters`)."""
        return self.is_large and self.scheme.negotiate is not None

    @property
    def upload_bits(self) -> float:
        """Bits of a full upload, as they are charged."""
        return self.upload_share * self.model_bits

    @property
    def exchange_seconds(self) -> FloatArray:
        """Seconds of one exchange between edge servers, per cluster, as the scheme uses the backhaul."""
        return self.scheme.gossip.exchange_seconds(self.backhaul_seconds)

    @property
    def exchanges_per_edge_round(self) -> float:
        """Exchanges between edge servers, on average."""
        edge_rounds = self.rounds.edge_rounds
        return self.scheme.gossip.count_exchanges(0, edge_rounds) / edge_rounds

    def charge_steps(self, steps: ArrayLike, rho: ArrayLike, local_steps: int | None = None) -> FloatArray:
        """What steps cost, in steps on full batches, of devices that were asked for a share ρ.

        `local_steps` is k of the plan.
        """
        taken = np.asarray(steps, dtype=np.float64)
        if self.small_batches is None:
            return taken
        return taken * self.small_batches.round_down(self.share_step(rho, local_steps))

    def share_step(self, rho: ArrayLike, local_steps: int | None) -> FloatArray:
        """The share of a full step that each of k steps may cost, where a share ρ of τ steps may be used."""
        if local_steps is None:
            return np.asarray(rho, dtype=np.float64)
        return np.minimum(np.multiply(rho, self.rounds.local_steps / local_steps), 1.0)

    def share_steps(self, plan: RoundPlan) -> FloatArray:
        """The share of its τ steps that every device takes by a plan."""
        if self.small_batches is None:
            return plan.rho
        share = 1.0 if plan.local_steps is None else plan.local_steps / self.rounds.local_steps
        return np.where(plan.rho > 0, share, 0.0)

    def backhaul_at(self, global_round: int, edge_rounds_done: int, step: int) -> Backhaul:
        """The backhaul of a gossip step since the last edge round: all links, or those drawn for it."""
        # A scheme in another's place, as in a dry run for budgets, may not sample links.
        if self.links is None or self.scheme.gossip.link_budget == 1:
            return self.backhaul
        return use_links(self.backhaul, self.links.draw(self.seed, global_round, edge_rounds_done, step))

    def count_models_sent(self, global_round: int) -> int:
        """Full models between edge servers in a global round (from 0)."""
        gossip, edge_rounds = self.scheme.gossip, self.rounds.edge_rounds
        exchanges = gossip.count_exchanges(0, edge_rounds)
        if gossip.link_budget == 1:
            return exchanges * gossip.models_sent(len(self.backhaul.members), len(self.backhaul.edges))
        # Sampled links differ from step to step.
        done = range(edge_rounds - exchanges + 1, edge_rounds + 1)
        steps = ((each, step) for each in done for step in range(gossip.steps))
        return sum(2 * len(self.backhaul_at(global_round, *step).edges) for step in steps)

    def count_backhaul_bits(self, global_round: int) -> float:
        """Bits between edge servers in a global round (from 0), of models and what edge servers remember."""
        return self.count_models_sent(global_round) * self.gossip_bits

    @property
    def gossip_bits(self) -> float:
        """Bits of what an edge server sends a neighbour in a gossip step."""
        return (self.exchanged_models - 1.0 + self.gossip_share) * self.model_bits

    @property
    def full_model_bits(self) -> float:
        """Bits of an edge model with its memory: what devices fetch."""
        return self.exchanged_models * self.model_bits

    @property
    def downloads_differences(self) -> bool:
        """Whether devices fetch differences instead of whole models."""
        return self.download_share < 1

    def count_downloads(self, missed: FloatArray) -> FloatArray:
        """What devices fetch, in whole models, that lack so many differences to the model they need."""
        step = (self.exchanged_models - 1.0 + self.download_share) / self.exchanged_models
        return np.where(missed <= MOST_STEPS, np.minimum(1.0, missed * step), 1.0)

    def compute_backhaul_joules(self, global_round: int) -> float:
        """Energy of the backhaul in a global round (from 0)."""
        # Without a price nothing is counted: sampled links would be drawn for nothing.
        if not self.joules_per_bit:
            return 0.0
        return self.joules_per_bit * self.count_backhaul_bits(global_round)

    def reserve_backhaul(self, rounds_done: int) -> Budget:
        """The budget without the energy that the backhaul will take in the rounds that are left.

        Devices share the rest. Sampled links are taken to be those of the next round.
        """
        joules = self.compute_backhaul_joules(rounds_done)
        if not joules:
            return self.budget
        # A run that ends at its budget or target has fewer rounds than its limit; nobody knows yet how many.
        rounds_left = self.rounds.global_rounds - rounds_done if self.rounds.stop == "rounds" else 1
        left = self.budget.joules - joules * rounds_left
        # A budget must be positive; with nothing left for them, all devices get their lower bounds.
        return replace(self.budget, joules=max(left, 1e-9 * self.budget.joules))

    def conditions(
        self, global_round: int, edge_round: int, spent_joules: FloatArray | None = None
    ) -> Conditions:
        """The devices' conditions in an edge round (both rounds from 0), by the fleet's model.

        A device that has spent its battery takes no part; without `spent_joules` batteries are ignored.
        """
        now = self.fleet.conditions(self.seed, global_round, edge_round, self.model_bits, spent_joules)
        if self.upload_share != 1:
            now = replace(now, nu=self.upload_share * now.nu)
        work = self.work_per_step
        return now if work == 1 else replace(now, mu=work * now.mu, alpha=work * now.alpha)


def weight_backhaul(gossip: Gossip, fleet: Fleet, backhaul: Backhaul, samples: Sequence[int]) -> Backhaul:
    """The backhaul between the fleet's edge servers with the weights that a scheme mixes with.

    `samples` are those of each device.
    """
    if gossip == Gossip(gossip.every_edge_round, gossip.steps, link_budget=gossip.link_budget):
        return backhaul
    counts = np.array(samples, dtype=np.float64) if gossip.weights == "samples" else np.ones(fleet.devices)
    if fleet.members is not None:
        counts = np.where(fleet.members, counts, 0.0)
    held = np.bincount(fleet.cluster, counts, minlength=fleet.clusters)[fleet.list_edges()]
    # One that has just joined has no devices yet, but must hear of the others' models.
    held = np.maximum(held, 1.0)
    return retarget_backhaul(backhaul, held / held.sum(), at_once=gossip.reach == "everybody")


def choose_links(scheme: Scheme, backhaul: Backhaul) -> SampledLinks | None:
    """How often each link is in use; None where the scheme uses all of them."""
    budget = scheme.gossip.link_budget
    return sample_links(backhaul, budget) if budget < 1 else None
