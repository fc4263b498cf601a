"""What an edge server makes of its devices' reports, as the experiment and the scheme have it."""

from collections.abc import Mapping, Sequence

from cfel.learning.exchange import DeviceReport
from cfel.learning.flat import FlatModel
from cfel.learning.robust import robust_aggregate
from cfel.world import World


def aggregated(world: World, model: FlatModel, reports: Sequence[DeviceReport]) -> FlatModel:
    """The edge model after an edge round."""
    return robust_aggregate(model, reports, _weights(world, reports), world.aggregation)


def _weights(world: World, reports: Sequence[DeviceReport]) -> Mapping[int, float] | None:
    if world.scheme.gossip.weights == "equal":
        return None
    return {report.device: float(report.samples) for report in reports}
