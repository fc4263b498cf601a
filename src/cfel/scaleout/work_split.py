"""Devices or whole runs: which way to share a comparison out over workers. Arithmetic only."""

import math

# What a worker achieves on devices' tasks, as a share of what it does alone: for models that take a step in
# tens of milliseconds, and for those that take one in less time than a message.
LARGE_MODEL_EFFICIENCY = 0.9
SMALL_MODEL_EFFICIENCY = 0.3


def whole_runs_are_better(runs: int, workers: int, devices: int, small_model: bool) -> bool:
    """Are whole runs, each on one worker, done sooner than one run after the other on all workers?

    In units of one run on one worker: whole runs take ⌈runs / workers⌉, devices take runs / (efficiency ·
    min(workers, devices)), as no more workers than devices can be busy.

    Args:
        runs: how many there are to do.
        workers: cores of the cluster.
        devices: of a run.
        small_model: does a local step take less time than a message?
    """
    efficiency = SMALL_MODEL_EFFICIENCY if small_model else LARGE_MODEL_EFFICIENCY
    return math.ceil(runs / workers) <= runs / (efficiency * min(workers, devices))
