"""Rejects ways of taking steps that the scheme or the algorithm of an experiment would not carry out."""

from cfel.control.scheme import DeviceOverrides
from cfel.errors import InputError
from cfel.learning.local.algorithm import LocalAlgorithm
from cfel.learning.local.parameters import LocalParameters


def check_steps(
    local: LocalParameters,
    scheme: str,
    overrides: DeviceOverrides,
    algorithm: LocalAlgorithm,
    error_feedback: bool,
) -> None:
    """Checks that steps are taken as the experiment says.

    Args:
        local: the experiment's `[local]`.
        scheme: its name.
        overrides: what the scheme asks of devices.
        algorithm: what `local` names.
        error_feedback: whether the experiment asks for it; the scheme may, too.

    Raises:
        InputError: they are not.
    """
    steps = overrides.steps or local.steps
    if local.steps == "small_batches" and steps != "small_batches":
        raise InputError(
            f"local.steps = 'small_batches': scheme {scheme!r} plans in other steps; set "
            "scheme.steps = 'small_batches' instead"
        )
    if steps == "small_batches" and algorithm.train is not None:
        raise InputError(
            f"scheme.steps = 'small_batches': algorithm {local.algorithm!r} has a loop of its own, which "
            "draws its own batches"
        )
    feedback = overrides.error_feedback or error_feedback
    if local.algorithm == "shared_momentum" and feedback and local.schedule != "constant":
        raise InputError(
            f"local.schedule = {local.schedule!r}: shared momentum would take updates that error feedback "
            "sends late for momentum at the present rate; use a constant rate"
        )
