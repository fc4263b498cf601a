"""The experiment file's `[simulation]`.

The section also has what deployments share with simulations: which account counts, and when to evaluate.
"""

from dataclasses import dataclass

from cfel import validation
from cfel.errors import InputError, unknown_name

ENGINES = ("auto", "threads", "batched", "ray")
ACCOUNTS = ("expected", "realised")
UPLOADS = ("share", "wire")
PROBES = ("edge", "mean")
DEVICE_ACCURACY = ("never", "end", "every")


@dataclass(frozen=True, slots=True)
class SimulationParameters:
    """The experiment file's `[simulation]`: accounts and evaluation, in deployments too; engine and workers.

    Attributes:
        engine: "threads" (one device at a time per core), "batched" (many devices trained as one model; equal
            to "threads" up to rounding), "ray" (as "threads", to the same bits, on a cluster), or "auto":
            "batched" for small models that allow it, "threads" for others.
        workers: threads or processes; 0 for one per core. The results do not depend on it.
        accounting: which costs the budget counts: "expected" (the paper) or "realised".
        uploads: how realised uploads are counted: by the "share" θ of a full model (the paper), or by the
            bits on the "wire", indices included.
        evaluate_every: global rounds between evaluations; the last round is always evaluated.
        evaluate_samples: test samples to use; 0 for all.
        evaluate_on: every "edge" model, weighted by its devices (the paper), or the "mean" model only.
        device_accuracy: when to evaluate per device, too, on test samples like the device's own: "never", at
            the "end" of the run, or "every" time that a round is evaluated.
        checkpoint_every: global rounds between checkpoints; 0 for none but the last.
        device: torch device: "cpu", "cuda", or "auto" for a GPU where there is one.
    """

    engine: str = "auto"
    workers: int = 0
    accounting: str = "expected"
    uploads: str = "share"
    evaluate_every: int = 1
    evaluate_samples: int = 0
    evaluate_on: str = "edge"
    device_accuracy: str = "never"
    checkpoint_every: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for field, allowed in (
            ("engine", ENGINES),
            ("accounting", ACCOUNTS),
            ("uploads", UPLOADS),
            ("evaluate_on", PROBES),
            ("device_accuracy", DEVICE_ACCURACY),
        ):
            if getattr(self, field) not in allowed:
                raise InputError(unknown_name(f"simulation.{field}", getattr(self, field), allowed))
        for field, least in (
            ("workers", 0),
            ("evaluate_every", 1),
            ("evaluate_samples", 0),
            ("checkpoint_every", 0),
        ):
            validation.check_whole(f"simulation.{field}", getattr(self, field), least=least)
        validation.check_text("simulation.device", self.device)
