"""The schemes that come with cfel, checks of user-defined ones, and variants of both."""

import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from cfel import plugins
from cfel.arrays import BoolArray, FloatArray
from cfel.control.scheme import Observation, RoundPlan, Scheme, SchemeBuilder, SchemeParameters, State
from cfel.control.schemes.adaptive import adaptive_k, adaptive_tau
from cfel.control.schemes.anycost import anycost
from cfel.control.schemes.bounded import BOUNDED_SCHEMES
from cfel.control.schemes.fedluck import fedlamp, fedluck
from cfel.control.schemes.hcef_plus import hcef_plus
from cfel.control.schemes.nori import nori
from cfel.control.schemes.oort import oort
from cfel.control.schemes.participation import cost_effective, fedpaq, sd_feel_hetero
from cfel.control.schemes.static import static
from cfel.control.schemes.talk_or_work import talk_or_work
from cfel.cost import cluster_seconds, device_seconds
from cfel.errors import InputError
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, resolve
from cfel.system.batch_shares import LAYER_SHARES

SCHEMES: Mapping[str, SchemeBuilder] = MappingProxyType(
    {
        # The order of the reference: the project's own schemes first.
        "hcef": BOUNDED_SCHEMES["hcef"],
        "hcef_plus": hcef_plus,
        **BOUNDED_SCHEMES,
        "oort": oort,
        "anycost": anycost,
        "fedluck": fedluck,
        "nori": nori,
        "fedlamp": fedlamp,
        "fedpaq": fedpaq,
        "adaptive_k": adaptive_k,
        "adaptive_tau": adaptive_tau,
        "cost_effective": cost_effective,
        "talk_or_work": talk_or_work,
        "sd_feel_hetero": sd_feel_hetero,
        "static": static,
    }
)


def build_scheme(parameters: SchemeParameters, code: CodePolicy = BUILT_IN_ONLY) -> Scheme:
    """Builds the scheme that the parameters name: built in, an entry point, or "module:function"."""
    builder: SchemeBuilder = resolve("scheme", parameters.name, SCHEMES, ("parameters",), code=code)
    if parameters.steps == "last_layers":
        # Even the least of training needs the forward pass.
        parameters = replace(parameters, rho_min=max(parameters.rho_min, LAYER_SHARES.least))
    scheme = builder(parameters)
    # Built-in schemes are covered by tests, and a check of every plan takes time.
    if parameters.name not in SCHEMES:
        scheme = check_scheme(parameters.name, scheme)
    return apply_variants(scheme, parameters)


# Checks of user-defined schemes: a mistake is reported where it happens, not rounds later.


def check_scheme(name: str, scheme: object) -> Scheme:
    """Returns the scheme with a check of every state and plan it produces.

    Raises:
        InputError: it is not a scheme, or cannot be called as one; later, a state or plan is invalid.
    """
    what = f"scheme {name!r}"
    plugins.check_result(what, scheme, Scheme)
    assert isinstance(scheme, Scheme)  # noqa: S101 — just checked
    plugins.check_call(f"{what}: init", scheme.init, ())
    plugins.check_call(f"{what}: plan", scheme.plan, ("state", "observation"))

    def init() -> State:
        state = scheme.init()
        _check_state(f"{what}: init", state)
        return state

    def plan(state: State, observation: Observation) -> tuple[RoundPlan, State]:
        answer = scheme.plan(state, observation)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise InputError(f"{what}: plan returned a {type(answer).__name__}, not a pair (plan, state)")
        plugins.check_result(f"{what}: plan, of the pair (plan, state),", answer[0], RoundPlan)
        _check_state(f"{what}: plan", answer[1])
        for field in ("rho", "theta", "speed", "weight"):
            _check_length(f"{what}: {field}", getattr(answer[0], field), observation)
        _check_values(what, answer[0], observation)
        return answer

    return replace(scheme, init=init, plan=plan)


def _check_state(what: str, state: object) -> None:
    if not isinstance(state, Mapping):
        raise InputError(f"{what} returned a {type(state).__name__} as its state, not a mapping")
    try:
        # A state that cannot be stored would be noticed only at the first checkpoint, or by a successor.
        json.dumps(dict(state))
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} returned a state that is not made of plain JSON values: {error}") from error


def _check_length(what: str, values: object, observation: Observation) -> None:
    # Clocks and weights may be missing.
    if values is None and what.endswith(("speed", "weight")):
        return
    devices = len(observation.conditions.available)
    if not isinstance(values, np.ndarray) or values.shape != (devices,):
        found = f"of shape {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
        raise InputError(f"{what} must be an array with one entry per device ({devices}), is {found}")


def _check_values(what: str, plan: RoundPlan, observation: Observation) -> None:
    """ρ may be 0; θ may be 0 only with it, as a device that takes part always sends something."""
    present = observation.conditions.available
    asked = present & ~((plan.rho == 0) & (plan.theta == 0))
    _check_range(f"{what}: rho", plan.rho, present & ~((plan.rho >= 0) & (plan.rho <= 1)), "[0, 1]")
    of_theta = "(0, 1], or be 0 like rho to leave the device out"
    _check_range(f"{what}: theta", plan.theta, asked & ~((plan.theta > 0) & (plan.theta <= 1)), of_theta)
    if plan.speed is not None:
        _check_range(f"{what}: speed", plan.speed, asked & ~((plan.speed > 0) & (plan.speed <= 1)), "(0, 1]")
    if plan.weight is not None:
        wrong = ~((plan.weight > 0) & np.isfinite(plan.weight))
        _check_range(f"{what}: weight", plan.weight, wrong, "(0, ∞)")


def _check_range(what: str, values: FloatArray, wrong: BoolArray, allowed: str) -> None:
    if wrong.any():
        first = int(np.argmax(wrong))
        raise InputError(f"{what}[{first}] = {values[first]}: must lie in {allowed}")


# Variants of any scheme, built in or user-defined: `[scheme]` has a key for each, `cfel.plugins` their names.
# They separate what a scheme brings from what these ingredients bring by themselves: CEF with slow clocks, or
# HCEF with gossip after every edge round. HCEF+ has its own switches.


LEAST_CLOCK = 0.5
"""Smallest share of its clock that a device runs at with `slow_clocks`; the default of HCEF+, too."""

# How much a plan may exceed a deadline by rounding.
_ROUNDING = 1e-9


def apply_variants(scheme: Scheme, parameters: SchemeParameters) -> Scheme:
    """The scheme with the variants that `[scheme]` asks for; the same scheme if it asks for none."""
    if parameters.gossip != "scheme":
        gossip = replace(scheme.gossip, every_edge_round=parameters.gossip == "edge_round")
        scheme = replace(scheme, gossip=gossip, sparing=())
    if parameters.steps != "local":
        scheme = replace(scheme, device_overrides=replace(scheme.device_overrides, steps=parameters.steps))
    if parameters.deadline_seconds is not None:
        scheme = _keep_deadline(scheme, parameters.deadline_seconds)
    # Clocks last: nobody waits for a device that a deadline leaves out.
    if parameters.slow_clocks:
        scheme = _slow_clocks(scheme)
    return scheme


def _keep_deadline(scheme: Scheme, seconds: float) -> Scheme:
    def plan(state: State, observation: Observation) -> tuple[RoundPlan, State]:
        made, state = scheme.plan(state, replace(observation, deadline_seconds=seconds))
        # A scheme that plans by the caps keeps to the deadline already; others ask devices to be late.
        return _leave_out_late(made, observation, seconds), state

    return replace(scheme, plan=plan, deadline_seconds=seconds)


def _leave_out_late(plan: RoundPlan, observation: Observation, deadline: float) -> RoundPlan:
    """The plan without the devices that it would keep beyond the deadline."""
    now = plan.apply_speed(observation.conditions)
    seconds = device_seconds(plan.rho, plan.theta, observation.rounds.local_steps, now.mu, now.nu)
    late = seconds > deadline * (1 + _ROUNDING)
    if not late.any():
        return plan
    return replace(plan, rho=np.where(late, 0.0, plan.rho), theta=np.where(late, 0.0, plan.theta))


def _slow_clocks(scheme: Scheme) -> Scheme:
    def plan(state: State, observation: Observation) -> tuple[RoundPlan, State]:
        full, state = scheme.plan(state, observation)
        # The scheme chose clocks itself, or nothing sets clocks on these devices.
        if observation.full_clocks or full.speed is not None:
            return full, state
        return replace(full, speed=_match_slowest(observation, full, scheme.gossip.every_edge_round)), state

    return replace(scheme, plan=plan, plans_clocks=True)


def _match_slowest(observation: Observation, plan: RoundPlan, all_clusters_wait: bool) -> FloatArray:
    """The slowest clocks at which nobody waits longer: every device ends with the last one of its group.

    A group is a cluster, or all clusters where they exchange after every edge round.
    """
    conditions, tau = observation.conditions, observation.rounds.local_steps
    seconds = device_seconds(plan.rho, plan.theta, tau, conditions.mu, conditions.nu)
    last = cluster_seconds(
        np.where(conditions.available, seconds, 0.0), observation.cluster, observation.clusters
    )
    until = np.full(seconds.shape, last.max()) if all_clusters_wait else last[observation.cluster]
    computing = plan.rho * tau * conditions.mu
    left = until - plan.theta * conditions.nu
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(left > 0, computing / left, 1.0)
    return np.where(conditions.available, np.clip(needed, LEAST_CLOCK, 1.0), 1.0)
