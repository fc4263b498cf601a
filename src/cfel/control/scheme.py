"""What a scheme is: a frozen pair (init, plan), what it observes, and what it returns.

    state = scheme.init()
    round_plan, state = scheme.plan(state, observation)

`plan` is pure: the same state and observation give the same plan, on any machine, in the simulator and in a
deployment. The state is made of plain JSON values, so that it can travel with every plan and be stored in a
checkpoint. Schemes live in `schemes/`; this module does not know them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray, IndexArray
from cfel.control.caps import Budget, Rounds, round_caps
from cfel.control.problem import UNREACHABLE, Unreachable
from cfel.control.solve import METHODS, Method
from cfel.cost import Ledger
from cfel.errors import InputError, unknown_name
from cfel.system.batch_shares import BatchShares
from cfel.system.conditions import Conditions

if TYPE_CHECKING:
    from cfel.control.clusters import Decision
    from cfel.control.exchange import Exchange

Options = TypeVar("Options")


def read_options(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """Makes a scheme's options from `[scheme.options]`; the dataclass checks their values.

    Raises:
        InputError: there is no such option; the message names the nearest one.
    """
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise InputError(unknown_name("scheme.options", name, known))
    return kind(**given)


Weights = Literal["equal", "samples"]
Reach = Literal["neighbours", "everybody"]

# A cloud server receives every model, averages them, and sends the average back.
TRIPS_TO_EVERYBODY = 2


@dataclass(frozen=True, slots=True)
class Gossip:
    """How a scheme uses the backhaul: when edge servers exchange models, how often, with what weights.

    The default is the paper's: one step with the neighbours at the end of a global round, all devices
    weighing the same. At an exchange all clusters wait for the slowest, and the exchange then takes each of
    them its own backhaul seconds. Nothing is mixed here; these are the numbers that the round loop, the
    caps and the accounts share.

    Attributes:
        every_edge_round: an exchange after every edge aggregation, instead of one per global round.
        steps: gossip steps in a row at each exchange.
        weights: all devices weigh the same ("equal"), or by their number of training samples ("samples"):
            within a cluster, and between clusters in what gossip averages towards.
        reach: models are averaged with those of the "neighbours", or at once over "everybody", as a cloud
            server does; the latter is charged two transfers of the full model.
        link_budget: share of links in use on average, in (0, 1]; below 1 each gossip step uses a random part
            of them, see `system.backhaul.SampledLinks`.
    """

    every_edge_round: bool = False
    steps: int = 1
    weights: Weights = "equal"
    reach: Reach = "neighbours"
    link_budget: float = 1.0

    def __post_init__(self) -> None:
        validation.check_whole("gossip.steps", self.steps, least=1)
        for name, allowed in (("weights", get_args(Weights)), ("reach", get_args(Reach))):
            if getattr(self, name) not in allowed:
                raise InputError(unknown_name(f"gossip.{name}", getattr(self, name), allowed))
        validation.check_number("gossip.link_budget", self.link_budget, above=0, most=1)
        if self.reach == "everybody" and self.link_budget < 1:
            raise InputError("gossip.link_budget: a cloud server reaches everybody, over no links")
        if self.reach == "everybody" and self.steps > 1:
            raise InputError(f"gossip.steps = {self.steps}: one step reaches everybody already")

    def exchange_seconds(self, backhaul_seconds: FloatArray) -> FloatArray:
        """Seconds of one exchange, given those of a full model over the slowest link; both per cluster."""
        trips = TRIPS_TO_EVERYBODY if self.reach == "everybody" else self.steps
        return np.asarray(backhaul_seconds * trips)

    def count_exchanges(self, edge_round: int, edge_rounds: int) -> int:
        """Exchanges in a global round from this edge round (counted from 0) on."""
        # The exchange that ends the global round is always one of them.
        return edge_rounds - edge_round if self.every_edge_round else 1

    def is_due_within(self, edge_round: int, edge_rounds: int) -> bool:
        """Whether an exchange follows this edge round, other than the one that ends the global round."""
        return self.every_edge_round and edge_round + 1 < edge_rounds

    def compute_contraction(self, zeta: float) -> float:
        """Share of disagreement that survives one exchange, where ζ survives one gossip step.

        Raises:
            InputError: links are sampled, so that no such number is known.
        """
        if self.link_budget < 1:
            raise InputError("Theorem 1 does not cover gossip over sampled links")
        return 0.0 if self.reach == "everybody" else float(zeta**self.steps)

    def models_sent(self, clusters: int, links: int) -> int:
        """Full models on the wire at one exchange, both directions counted."""
        if self.reach == "everybody":
            # A single edge server has nobody to exchange models with.
            return TRIPS_TO_EVERYBODY * clusters if clusters > 1 else 0
        return 2 * links * self.steps


Sparing = tuple[tuple[Gossip, float], ...]
"""Ways to use the backhaul less, each with what an edge round is worth then."""

ONCE_A_ROUND: Sparing = ((Gossip(), 0.8),)
"""One gossip step per global round, beside two after every edge round.

At full scale, on held-out samples of seed 10, it was worth 0.88 on FEMNIST and 0.70 on CIFAR-10.
"""

State = Mapping[str, Any]
Steps = Literal["local", "whole", "small_batches", "last_layers"]
GossipTime = Literal["scheme", "edge_round", "global_round"]

STEPS = ("local", "whole", "small_batches", "last_layers")
GOSSIP_TIMES = ("scheme", "edge_round", "global_round")

# With few samples the estimate of G² can be zero or negative; it is kept at this share of σ² at least.
LEAST_GRADIENT_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class SchemeParameters:
    """The experiment file's `[scheme]`.

    Attributes:
        name: a built-in scheme, an entry point's name, or "module:function".
        rho_min: lower bound of ρ, in (0, 1].
        theta_min: lower bound of θ, in (0, 1].
        solver: "joint" finds the proven optimum, "alternating" runs the paper's Algorithm 3.
        noise_weight: w of P2's first term, ≥ 0; the paper prints w = 1.
        on_unreachable: what to do about caps that cannot be met: "stretch" raises them to what can be met,
            "minimum" plans the lower bounds for the devices concerned.
        steps: "whole" plans a whole number of steps for every device, so that what is planned is what
            happens; "small_batches" has devices take all steps, each on a part of its batch that costs a
            share ρ of it; "last_layers" has them take all steps and train as many of the last layers as cost
            a share ρ of training all; "local" leaves it to `[local] steps` how devices take a share ρ.
        gossip: when edge servers exchange models, "edge_round" or "global_round"; "scheme": as the scheme
            says.
        slow_clocks: devices that would wait for others run at a slower clock, for less energy.
        deadline_seconds: an edge server waits this long for the uploads of an edge round, > 0; a device that
            cannot make it is not asked, and an upload that comes later is not used. None for no deadline.
        options: further settings of a particular scheme, as `{ literal = true }` of "mll_sgd".
    """

    name: str = "hcef_plus"
    rho_min: float = 0.1
    theta_min: float = 0.01
    solver: Method = "joint"
    noise_weight: float = 1.0
    on_unreachable: Unreachable = "stretch"
    steps: Steps = "local"
    gossip: GossipTime = "scheme"
    slow_clocks: bool = False
    deadline_seconds: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validation.check_text("scheme.name", self.name)
        if not isinstance(self.options, Mapping):
            raise InputError(f"scheme.options = {self.options!r}: must be a table")
        validation.check_number("scheme.rho_min", self.rho_min, above=0, most=1)
        validation.check_number("scheme.theta_min", self.theta_min, above=0, most=1)
        validation.check_number("scheme.noise_weight", self.noise_weight, least=0)
        if self.solver not in METHODS:
            raise InputError(unknown_name("scheme.solver", self.solver, METHODS))
        for field_name, allowed in (("steps", STEPS), ("gossip", GOSSIP_TIMES)):
            if getattr(self, field_name) not in allowed:
                raise InputError(unknown_name(f"scheme.{field_name}", getattr(self, field_name), allowed))
        validation.check_switch("scheme.slow_clocks", self.slow_clocks)
        if self.deadline_seconds is not None:
            validation.check_number("scheme.deadline_seconds", self.deadline_seconds, above=0)
        if self.on_unreachable not in UNREACHABLE:
            raise InputError(unknown_name("scheme.on_unreachable", self.on_unreachable, UNREACHABLE))

    def option(self, name: str, default: bool) -> bool:
        """Returns a switch of a particular scheme."""
        return bool(self.options.get(name, default))


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """What the coordinator knows at the start of an edge round.

    Attributes:
        global_round, edge_round: l and r, from 0.
        rounds: φ, q and τ.
        conditions: μ, α, ν, p of every device, and whether it takes part.
        cluster: cluster of every device.
        sigma2, g2: every device's newest estimates of σ² and G².
        ledger: what has been spent.
        budget: what the whole run may spend.
        gossip_seconds_left: per cluster, for all gossip still to come in this global round.
        battery: joules left in every device, or `None` for mains power.
        kept_energy: share of an update's energy in its largest entries, at the scheme's `kept_energy_at`,
            averaged over devices; `None` before the first reports.
        full_clocks: whether devices cannot change their clocks, so that the plan must not either.
        seed: the experiment's, for schemes that draw: `make_generator(seed, purpose, l, r)`.
        losses: newest mean training loss of every device, NaN before its first; `None` before any.
        samples: training samples of every device; `None` where no data has been loaded, as in a dry run.
        small_batches: what ρ is in samples, where devices take all steps on small batches, or in tenths of
            the layers, where they train the last ones; else `None`.
        deadline_seconds: how long edge servers wait for uploads; a plan that takes longer is not carried out.
        exchange_seconds, exchange_joules: what gossip takes per edge round, on average.
        rate: the share of the learning rates that schedules leave now.
    """

    global_round: int
    edge_round: int
    rounds: Rounds
    conditions: Conditions
    cluster: IndexArray
    sigma2: FloatArray
    g2: FloatArray
    ledger: Ledger
    budget: Budget
    gossip_seconds_left: FloatArray
    battery: FloatArray | None = None
    kept_energy: FloatArray | None = None
    full_clocks: bool = False
    seed: int = 0
    losses: FloatArray | None = None
    samples: FloatArray | None = None
    small_batches: BatchShares | None = None
    deadline_seconds: float = math.inf
    exchange_seconds: float = 0.0
    exchange_joules: float = 0.0
    rate: float = 1.0

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return self.ledger.clusters

    def caps(self) -> tuple[FloatArray, float]:
        """What the budgets leave this edge round: seconds per cluster, and joules of all devices together.

        The deadline of the edge round is a cap, too.
        """
        seconds, joules = round_caps(
            self.budget,
            self.ledger,
            self.rounds,
            self.global_round,
            self.edge_round,
            self.gossip_seconds_left,
        )
        return np.minimum(seconds, self.deadline_seconds), joules

    def mean_loss(self) -> float | None:
        """The mean of the devices' newest training losses; None before the first."""
        known = None if self.losses is None else self.losses[np.isfinite(self.losses)]
        return None if known is None or not known.size else float(known.mean())

    def estimates(self) -> tuple[float, float]:
        """Averages σ² and G² over the devices that take part (Algorithm 3, lines 2 and 3)."""
        present = self.conditions.available
        if not present.any():
            return 0.0, 0.0
        # Estimates of a variance are unbiased and may be negative where it is small.
        sigma2 = max(0.0, float(self.sigma2[present].mean()))
        return sigma2, max(float(self.g2[present].mean()), LEAST_GRADIENT_SHARE * sigma2)


@dataclass(frozen=True, slots=True, eq=False)
class RoundPlan:
    """What every device is to do in an edge round; ρ and θ are enough.

    Attributes:
        rho, theta: per device. Where both are 0 the device is left out of this edge round: it is not asked,
            not waited for and not charged.
        sigma2, g2: the averages the plan was made with; NaN for those of the observation.
        objective, lower_bound, gap: of the problem that was solved; NaN if none was.
        feasible, violations: whether every cap could be met, and if not, which could not.
        speed: share of its clock that every device runs at, in (0, 1]; `None` for full clocks.
        weight: how much each device's update counts within its cluster, > 0; `None` for the weights of the
            experiment. A scheme that selects devices with unequal chances corrects for them here.
        local_steps: k, the steps that every device takes in this edge round, 1 … τ; `None` for what ρ says.
            Only with small batches: each step is on a batch that costs a share ρτ/k of a full one.
    """

    rho: FloatArray
    theta: FloatArray
    sigma2: float = math.nan
    g2: float = math.nan
    objective: float = math.nan
    lower_bound: float = math.nan
    gap: float = math.nan
    feasible: bool = True
    violations: tuple[str, ...] = ()
    speed: FloatArray | None = None
    weight: FloatArray | None = None
    local_steps: int | None = None

    def leave_out(self, conditions: Conditions) -> Conditions:
        """The conditions without the devices that the plan leaves out."""
        idle = (self.rho == 0) & (self.theta == 0)
        # The usual plan asks everybody, and needs no copy.
        return conditions.without(idle) if (idle & conditions.available).any() else conditions

    def apply_speed(self, conditions: Conditions) -> Conditions:
        """The conditions at the plan's clocks."""
        return conditions if self.speed is None else conditions.at_clock(self.speed)


@dataclass(frozen=True, slots=True)
class DeviceOverrides:
    """What a scheme asks of devices beyond ρ and θ: how they step, what they keep, what they measure.

    Takes precedence over the experiment file, so that every scheme of a comparison trains the way it is meant
    to. A field left at `None` keeps the experiment's setting.

    Attributes:
        steps: "bernoulli", "systematic", "whole", "small_batches" or "last_layers"; None keeps the
            experiment's.
        error_feedback: whether devices keep what compression dropped; None keeps the experiment's.
        kept_energy_at: shares θ at which every report states how much energy the largest entries carry.
        compressor: a built-in one; None keeps the experiment's.
    """

    steps: Literal["bernoulli", "systematic", "whole", "small_batches", "last_layers"] | None = None
    error_feedback: bool | None = None
    kept_energy_at: tuple[float, ...] = ()
    compressor: str | None = None


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a fleet is controlled.

    Attributes:
        init: the state before the first round.
        plan: from state and observation to the plan and the next state.
        gossip: how the backhaul is used.
        sparing: how it may be used instead where its bits have a price (`rounds.dry_run.choose_gossip`).
        device_overrides: settings of local training that the scheme overrides.
        plans_clocks: whether its plans slow devices' clocks down.
        chooses_theta: whether its plans choose θ, so that devices need a compressor.
        deadline_seconds: how long edge servers wait for the uploads of an edge round.
        keeps_budgets: whether its plans keep to the caps; a run that ends at its budget then does not begin a
            round that the budget does not cover.
        negotiate: plans by asking clusters, for fleets whose devices nobody sees all of; None for a scheme
            that needs to see them. Gets its state and an observation without devices (`clusters`), and
            returns the decision and its next state.
    """

    init: Callable[[], State]
    plan: Callable[[State, Observation], tuple[RoundPlan, State]]
    gossip: Gossip = field(default_factory=Gossip)
    sparing: Sparing = ()
    device_overrides: DeviceOverrides = field(default_factory=DeviceOverrides)
    plans_clocks: bool = False
    chooses_theta: bool = False
    deadline_seconds: float = math.inf
    keeps_budgets: bool = False
    negotiate: "Callable[[State, Observation], Exchange[tuple[Decision, State]]] | None" = None


SchemeBuilder = Callable[[SchemeParameters], Scheme]


def stateless(
    plan: Callable[[Observation], RoundPlan], gossip: Gossip | None = None, *, chooses_theta: bool = False
) -> Scheme:
    """Makes a scheme without a state from its plan function."""
    return Scheme(
        dict,
        lambda state, observation: (plan(observation), state),
        gossip or Gossip(),
        chooses_theta=chooses_theta,
    )


def make_empty_plan(devices: int) -> RoundPlan:
    """Makes the plan of a round in which no device takes part."""
    idle = np.zeros(devices)
    return RoundPlan(idle, idle, sigma2=0.0, g2=0.0, objective=0.0, lower_bound=0.0, gap=0.0)


def complete_plan(plan: RoundPlan, observation: Observation) -> RoundPlan:
    """Adds what a scheme does not state: the estimates of σ² and G², and the weights of sampled devices."""
    if math.isnan(plan.sigma2) or math.isnan(plan.g2):
        sigma2, g2 = observation.estimates()
        plan = replace(plan, sigma2=sigma2, g2=g2)
    if plan.weight is None:
        plan = replace(plan, weight=observation.conditions.weight)
    if observation.small_batches is not None:
        # Every scheme is charged for whole samples, in both accounts.
        share = (plan.local_steps or observation.rounds.local_steps) / observation.rounds.local_steps
        whole = share * observation.small_batches.round_down(plan.rho / share)
        plan = replace(plan, rho=np.where(plan.rho > 0, whole, 0.0))
    return plan
