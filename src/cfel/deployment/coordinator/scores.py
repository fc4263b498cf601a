"""From what edge servers measured after a global round to what the coordinator records of it.

Means, worst tenth and averages are computed as in the simulator (`rounds.records`). The models that devices
keep to themselves are not measured: no edge server has them.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cfel.arrays import FloatArray
from cfel.deployment.protocol.coordinator_requests import MixAnswer, ModelScores
from cfel.rounds.records import RoundScores, average_metrics, mean_metric
from cfel.world import World


def combine_scores(world: World, known: Sequence[float], answers: Mapping[int, MixAnswer]) -> RoundScores:
    """What the edge models score.

    Args:
        world: what is run.
        known: the newest metric of every edge model.
        answers: of those that were evaluated in this round, by cluster.
    """
    setting, names = world.setting, world.task.metrics
    measured = {i: each.metrics for i, each in answers.items() if each.metrics}
    return RoundScores(
        mean_metric(setting, known, answers),
        lambda: _join(each.device_metrics for each in answers.values()),
        metrics=average_metrics(setting, measured, names),
    )


def read_scores(scores: ModelScores) -> RoundScores:
    """What the mean model scores."""
    return RoundScores(scores.metric, lambda: _join([scores.device_metrics]), metrics=scores.metrics)


def _join(parts: Iterable[Sequence[float]]) -> FloatArray:
    return np.array([value for part in parts for value in part], dtype=np.float64)
