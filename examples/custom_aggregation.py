r"""A user-defined aggregation: entries on whose direction too few devices agree do not move.

    cfel run examples/tiny.toml --set aggregation.kind=custom_aggregation:agreed \
        --set aggregation.options.least=0.6 --set rounds.global=8

A rule is a function of the updates (devices × entries, float32, in the order of the devices' ids), the
weight of each device and the parameters of `[aggregation]`, whose `options` are for the rule. It returns one
update. Updates that are not finite never reach it. The page docs/guides/wrong-updates.md has the details.
"""

from torch import Tensor

from cfel.learning.edge import AggregationParameters


def agreed(updates: Tensor, weights: Tensor, parameters: AggregationParameters) -> Tensor:
    """The weighted mean, where the devices of one sign have at least the share `least` of the weight."""
    share = (weights / weights.sum())[:, None]
    for_and_against = (updates.sign() * share).sum(0).abs()
    mean = (updates * share).sum(0)
    return mean * (for_and_against >= 2 * parameters.options.get("least", 0.5) - 1)
