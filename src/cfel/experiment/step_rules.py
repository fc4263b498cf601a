"""How devices take their steps: what scheme and experiment say together, and what they must not say."""

from cfel.control.scheme import DeviceOverrides
from cfel.errors import InputError
from cfel.experiment.sections import CompressionParameters
from cfel.learning.local.algorithm import LocalAlgorithm
from cfel.learning.local.parameters import LocalParameters
from cfel.system.batch_shares import BatchShares


def find_small_batches(local: LocalParameters, overrides: DeviceOverrides, batch: int) -> BatchShares | None:
    """What ρ is in samples, where devices take all steps on small batches; else None."""
    steps = overrides.steps or local.steps
    return BatchShares(batch, local.step_overhead) if steps == "small_batches" else None


def keeps_dropped(overrides: DeviceOverrides, compression: CompressionParameters) -> bool:
    """Whether devices keep what compression drops: the scheme's word, if it has one, or the experiment's."""
    asked = overrides.error_feedback
    return compression.error_feedback if asked is None else asked


def check_steps(
    local: LocalParameters,
    scheme: str,
    overrides: DeviceOverrides,
    algorithm: LocalAlgorithm,
    compression: CompressionParameters,
) -> None:
    """Checks that steps are taken as the experiment says.

    Args:
        local: the experiment's `[local]`.
        scheme: its name.
        overrides: what the scheme asks of devices.
        algorithm: what `local` names.
        compression: the experiment's `[compression]`.

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
    feedback = keeps_dropped(overrides, compression)
    if local.algorithm == "shared_momentum" and feedback and local.schedule != "constant":
        raise InputError(
            f"local.schedule = {local.schedule!r}: shared momentum would take updates that error feedback "
            "sends late for momentum at the present rate; use a constant rate"
        )
