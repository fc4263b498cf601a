"""Which engine trains the devices: the experiment's, or with "auto" the one that suits the model."""

from dataclasses import dataclass

from cfel.learning.local.batched_trial import find_obstacle
from cfel.world import World

# Up to this many parameters, starting an operation costs more than carrying it out, so devices train faster
# side by side than one after the other: five times for 5,000, 1.5 times for 50,000, no gain for 130,000.
MOST_BATCHED_PARAMETERS = 60_000


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine, and a sentence for the user where it is not the one that fits the model's size."""

    engine: str
    notice: str | None = None


def choose_engine(engine: str, world: World) -> EngineChoice:
    """The engine with "auto" resolved: by the model alone, so that an experiment always runs the same way.

    Args:
        engine: as asked for.
        world: what is run.
    """
    if engine != "auto":
        return EngineChoice(engine)
    if world.start.parameters.numel() > MOST_BATCHED_PARAMETERS:
        return EngineChoice("threads")
    obstacle = find_obstacle(world.task, world.training, world.start, world.data[0])
    if obstacle is None:
        return EngineChoice("batched")
    return EngineChoice("threads", f"engine: threads, as devices cannot be trained side by side: {obstacle}")
