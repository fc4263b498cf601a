"""The same plan for every device in every round: the simplest rival of a scheme that plans.

Everything but the plan is HCEF+'s: error feedback, gossip after every edge round in two steps unless the
price of the backhaul's bits is too high for it, slow clocks.
What a scheme brings beyond training options is what it gains over the best static plan. Budgets are ignored;
a run ends when they are used up (`rounds.stop = "budget"`).
"""

from dataclasses import dataclass

import numpy as np

from cfel import validation
from cfel.control.list_solver import PairTable, Weighing, solve_on_list
from cfel.control.planning import Bounds, build_problem, make_plan
from cfel.control.scheme import (
    ONCE_A_ROUND,
    DeviceOverrides,
    Gossip,
    Observation,
    RoundPlan,
    Scheme,
    SchemeParameters,
    make_empty_plan,
    read_options,
)
from cfel.errors import InputError


@dataclass(frozen=True, slots=True)
class Options:
    """`[scheme.options]` of a static plan.

    Attributes:
        samples: of every batch, ≥ 2; needs `scheme.steps = "small_batches"`. None for whole batches.
        theta: share of the update that is sent, in (0, 1].
        time_weight: how much time counts beside energy in the choice of clocks, in (0, 1), as in HCEF+.
        least_speed: smallest share of its clock a device may run at, in (0, 1], as in HCEF+.
        gossip_steps: gossip steps after every edge round, ≥ 1, as in HCEF+.
    """

    samples: int | None = None
    theta: float = 0.1
    time_weight: float = 0.8
    least_speed: float = 0.5
    gossip_steps: int = 2

    def __post_init__(self) -> None:
        if self.samples is not None:
            validation.check_whole("scheme.options.samples", self.samples, least=2)
        validation.check_number("scheme.options.theta", self.theta, above=0, most=1)
        validation.check_number("scheme.options.time_weight", self.time_weight, above=0, below=1)
        validation.check_number("scheme.options.least_speed", self.least_speed, above=0, most=1)
        validation.check_whole("scheme.options.gossip_steps", self.gossip_steps, least=1)


def static(parameters: SchemeParameters) -> Scheme:
    """The same samples of every batch and the same θ for all devices, with HCEF+'s training options."""
    options = read_options(Options, parameters.options)

    def plan(observation: Observation) -> RoundPlan:
        present = observation.conditions.available
        if not present.any():
            return make_empty_plan(len(present))
        rho = _find_share(options.samples, observation)
        bounds = Bounds(rho=(rho, rho), theta=(options.theta, options.theta))
        problem = build_problem(observation, parameters, bounds, within_budget=False)
        steps = np.array([rho * observation.rounds.local_steps])
        least_clock = 1.0 if observation.full_clocks else options.least_speed
        table = PairTable(steps, np.array([options.theta]), np.array([-1.0]), least_clock)
        return make_plan(problem, solve_on_list(problem, table, Weighing(options.time_weight)), present)

    return Scheme(
        init=dict,
        plan=lambda state, observation: (plan(observation), state),
        gossip=Gossip(every_edge_round=True, steps=options.gossip_steps),
        sparing=ONCE_A_ROUND,
        device_overrides=DeviceOverrides(steps="whole", error_feedback=True),
        plans_clocks=True,
        chooses_theta=options.theta < 1,
    )


def _find_share(samples: int | None, observation: Observation) -> float:
    """The share ρ of its steps that every device is charged for."""
    if samples is None:
        return 1.0
    shares = observation.small_batches
    if shares is None:
        raise InputError(f"scheme.options.samples = {samples}: needs scheme.steps = 'small_batches'")
    if samples > shares.batch:
        raise InputError(f"scheme.options.samples = {samples}: a batch has {shares.batch}")
    return shares.price_samples(samples)
