"""The experiment file's `[simulation]`, what "auto" stands for, and who can aggregate the first updates."""

import sys
from dataclasses import dataclass

from cfel import validation
from cfel.control.scheme import SchemeParameters
from cfel.errors import InputError, unknown_name
from cfel.learning.edge import AggregationParameters
from cfel.learning.local.algorithm import LocalAlgorithm
from cfel.learning.local.algorithms import find_algorithm
from cfel.learning.local.batched import find_obstacle
from cfel.world import Evaluations, World

ENGINES = ("auto", "threads", "processes", "batched", "ray")
_ALLOWED = {
    "engine": ENGINES,
    "accounting": ("expected", "realised"),
    "uploads": ("share", "wire"),
    "evaluate_on": ("edge", "mean"),
    "device_accuracy": ("never", "end", "every"),
}
_LEAST = {"workers": 0, "evaluate_every": 1, "evaluate_samples": 0, "checkpoint_every": 0}


@dataclass(frozen=True, slots=True)
class SimulationParameters:
    """The experiment file's `[simulation]`: accounts and evaluation, in deployments too; engine and workers.

    Attributes:
        engine: "threads" (one device at a time per core), "processes" (the same bits, in worker processes),
            "batched" (many devices trained as one model; equal to "threads" up to rounding), "ray" (as
            "threads", to the same bits, on a cluster), or "auto": "batched" for small models that allow it,
            "processes" for medium ones and those that draw random numbers, "threads" for large ones.
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
        for field, allowed in _ALLOWED.items():
            if getattr(self, field) not in allowed:
                raise InputError(unknown_name(f"simulation.{field}", getattr(self, field), allowed))
        for field, least in _LEAST.items():
            validation.check_whole(f"simulation.{field}", getattr(self, field), least=least)
        validation.check_text("simulation.device", self.device)

    @property
    def evaluation(self) -> Evaluations:
        """What a `World` needs to know of it; accounts belong to its `Setting`, the rest to executors."""
        return Evaluations(self.evaluate_every, self.evaluate_samples, self.evaluate_on, self.device_accuracy)


# Up to this many parameters, starting an operation costs more than carrying it out, so devices train faster
# side by side than one after the other: five times for 5,000, 1.5 times for 50,000, no gain for 130,000.
MOST_BATCHED_PARAMETERS = 60_000
# Up to this size, two threads of one process wait for each other's Python between operations (10 % of the
# time for 168,000 parameters); processes do not.
MOST_FORKED_PARAMETERS = 300_000


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine, and a sentence for the user where it is not the one that fits the model's size."""

    engine: str
    notice: str | None = None


def choose_engine(engine: str, world: World, device: str = "cpu") -> EngineChoice:
    """The engine with "auto" resolved: by the experiment alone, so that it always runs the same way.

    Only where a system cannot fork, threads replace processes, which give the same bits.
    """
    if engine != "auto":
        return EngineChoice(engine)
    size = world.start.parameters.numel()
    if size <= MOST_BATCHED_PARAMETERS:
        obstacle = find_obstacle(world.task, world.training, world.start, world.data[0])
        if obstacle is None:
            return EngineChoice("batched")
        found = _choose_workers(world, device)
        return EngineChoice(found, f"engine: {found}, as devices cannot be trained side by side: {obstacle}")
    return EngineChoice(_choose_workers(world, device))


def _choose_workers(world: World, device: str) -> str:
    """Processes where threads would wait for each other, else threads."""
    # macOS lets a process with torch in it fork, but its libraries break.
    if device != "cpu" or not sys.platform.startswith("linux"):
        return "threads"
    # A user's training loop may remember things, so it stays in one process.
    if find_algorithm(world.training).train is not None:
        return "threads"
    if world.start.parameters.numel() <= MOST_FORKED_PARAMETERS:
        return "processes"
    # A process has one generator of torch, so threads would wait for each other to draw from it.
    return "processes" if world.task.build().behaviour.is_random else "threads"


def check_buffering(
    aggregation: AggregationParameters,
    simulation: SimulationParameters,
    algorithm: LocalAlgorithm,
    scheme: SchemeParameters,
) -> None:
    """Checks that the rest of the experiment allows a buffer, if there is one.

    Raises:
        InputError: it does not; the message says what to change.
    """
    if not aggregation.buffer:
        return
    what = f"aggregation.buffer = {aggregation.buffer}"
    if simulation.accounting != "realised":
        raise InputError(
            f"{what}: who is first depends on the steps really taken; set simulation.accounting = 'realised'"
        )
    if scheme.deadline_seconds is not None:
        raise InputError(f"{what}: nobody waits for late updates anyway; leave scheme.deadline_seconds out")
    if aggregation.kind != "mean":
        raise InputError(f"{what}: late updates are discounted in a mean; set aggregation.kind = 'mean'")
    if algorithm.edge is not None:
        raise InputError(
            f"{what}: with this local.algorithm, edge servers expect updates of their newest model; choose "
            "another algorithm"
        )


def reject_buffering(aggregation: AggregationParameters, who: str) -> None:
    """Raises an `InputError` if edge servers aggregate the first updates, which `who` cannot do."""
    if aggregation.buffer:
        raise InputError(
            f"{who} cannot aggregate the first {aggregation.buffer} updates (aggregation.buffer); simulate "
            "that with `cfel run`, or set aggregation.buffer = 0"
        )
