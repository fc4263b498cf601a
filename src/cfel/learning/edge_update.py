"""The edge model after an edge round: what the edge server's rules make of the aggregated updates."""

import math
from collections.abc import Iterable, Iterator, Mapping

import torch

from cfel.learning.aggregation import AggregationParameters, aggregate
from cfel.learning.device_messages import DeviceReport
from cfel.learning.edge_rule import EdgeRound, EdgeRules, read_memory
from cfel.learning.models.flat import FlatModel


def update_edge_model(
    model: FlatModel,
    reports: Iterable[DeviceReport],
    weights: Mapping[int, float],
    aggregation: AggregationParameters,
    rules: EdgeRules,
    *,
    share: float,
    rate: float,
) -> FlatModel:
    """The new edge model; simulator and deployment both call this.

    Args:
        model: the model the devices started from; not changed.
        reports: see `aggregate`.
        weights: see `aggregate`; without any the model stays the same.
        aggregation: how updates become one.
        rules: what the edge server does with it.
        share: of the cluster's devices that took part.
        rate: the learning rate of the devices.
    """
    if not rules.rules or not weights:
        made = aggregate(model, reports, weights, aggregation)
        return made if made is model else FlatModel(made.parameters, made.buffers, model.memory)
    seen = _Seen(model, weights, per_step=any(rule.per_step for rule in rules.rules))
    made = aggregate(model, seen.watch(reports), weights, aggregation)
    update = made.parameters - model.parameters
    memory = model.memory.clone()
    kept = read_memory(FlatModel(model.parameters, model.buffers, memory), rules.names)
    for rule in rules.rules:
        found = EdgeRound(update, seen.per_step, seen.mean_steps, seen.active, share, rate)
        update = rule.change(found, {name: kept[name] for name in rule.memory})
    return FlatModel(model.parameters + update, made.buffers, memory)


class _Seen:
    """What rules need to know of the reports, noted while these pass by.

    Args:
        model: the model the devices started from.
        weights: by device.
        per_step: whether updates divided by their steps are added up.
    """

    def __init__(self, model: FlatModel, weights: Mapping[int, float], *, per_step: bool) -> None:
        self._weights, self._total, self._adds = weights, math.fsum(weights.values()), per_step
        self.per_step = torch.zeros_like(model.parameters)
        self.mean_steps = self.active = 0.0

    def watch(self, reports: Iterable[DeviceReport]) -> Iterator[DeviceReport]:
        """Passes the reports on."""
        for report in reports:
            weight = self._weights.get(report.device, 0.0) / self._total
            if report.steps:
                self.mean_steps += weight * report.steps
                self.active += weight
                if self._adds:
                    report.update.add_to(self.per_step, weight / report.steps)
            yield report
