"""The numbers of a round that are worth a curve, by name; for trackers and event files."""

from cfel.runlog.record import RoundRecord

METRICS = (
    "accuracy",
    "loss",
    "seconds",
    "joules",
    "rho_mean",
    "theta_mean",
    "sigma2",
    "g2",
    "gap",
    "wire_bytes",
    "steps_planned",
    "steps_taken",
    "upload_bytes_planned",
    "upload_bytes",
    "backhaul_bytes",
    "device_accuracy_mean",
    "device_accuracy_worst",
    "device_accuracy_spread",
    "personal_accuracy_mean",
    "personal_accuracy_worst",
    "personal_accuracy_spread",
    "personal_loss",
)
"""Fields of `RoundRecord`."""


def read_metrics(record: RoundRecord) -> dict[str, float]:
    """The values that a round has, and the task's own metrics; without an evaluation there is no accuracy."""
    found = ((name, getattr(record, name)) for name in METRICS)
    own = {f"metrics/{name}": float(value) for name, value in record.metrics.items()}
    return {name: float(value) for name, value in found if value is not None} | own
