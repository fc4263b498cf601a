"""Devices or whole runs: how to distribute a comparison over workers. Arithmetic only."""

import math

# Speed of a worker when runs are split by device, relative to a worker that has a whole run to itself: for
# models whose steps take tens of milliseconds, and for models whose steps take less time than a message.
LARGE_MODEL_EFFICIENCY = 0.9
SMALL_MODEL_EFFICIENCY = 0.3


def whole_runs_are_better(runs: int, workers: int, devices: int, small_model: bool) -> bool:
    """Whether running whole runs side by side, each on one worker, is faster than one run at a time on all.

    In units of one run on one worker, whole runs take ⌈runs / workers⌉. Runs split by device take
    runs / (efficiency · min(workers, devices)), as at most one worker per device is busy.

    Args:
        runs: how many there are.
        workers: cores of the cluster.
        devices: in each run.
        small_model: whether a local step takes less time than a message.
    """
    efficiency = SMALL_MODEL_EFFICIENCY if small_model else LARGE_MODEL_EFFICIENCY
    return math.ceil(runs / workers) <= runs / (efficiency * min(workers, devices))
