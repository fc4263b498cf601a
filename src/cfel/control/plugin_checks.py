"""Checks of user-defined schemes: a mistake is reported where it happens, not rounds later.

Built-in schemes skip these checks; the test suite covers them.
"""

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cfel import plugins
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
        for field in ("rho", "theta"):
            _check_shares(f"{what}: {field}", getattr(answer[0], field), observation)
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


def _check_shares(what: str, shares: object, observation: Observation) -> None:
    """ρ may be 0; θ may not, as a device that takes part always sends something."""
    present = observation.conditions.available
    if not isinstance(shares, np.ndarray) or shares.shape != present.shape:
        found = f"of shape {shares.shape}" if isinstance(shares, np.ndarray) else type(shares).__name__
        raise InputError(f"{what} must be an array with one entry per device ({len(present)}), is {found}")
    low = shares < 0 if what.endswith("rho") else shares <= 0
    bad = np.flatnonzero(present & (low | ~(shares <= 1)))
    if bad.size:
        least = "[0" if what.endswith("rho") else "(0"
        raise InputError(f"{what}[{bad[0]}] = {shares[bad[0]]}: must lie in {least}, 1]")
