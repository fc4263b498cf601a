"""Checks of user-defined schemes: a mistake is reported where it happens, not rounds later.

Built-in schemes skip these checks; the test suite covers them.
"""

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cfel import plugins
from cfel.arrays import BoolArray, FloatArray
from cfel.control.scheme import Observation, RoundPlan, Scheme, State
from cfel.errors import InputError


def check_scheme(name: str, scheme: object) -> Scheme:
    """Returns the scheme with a check of every state and plan it produces.

    Args:
        name: the scheme's name in the experiment.
        scheme: what its builder returned.

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
