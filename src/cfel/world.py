"""The built parts of an experiment that the simulator and a deployment both run.

Small on purpose: a World is handed around whole, does nothing by itself and is never changed. What changes in
the course of a run belongs to whoever drives it.
"""

from dataclasses import dataclass, field

from cfel.arrays import FloatArray
from cfel.control import Budget, Rounds, Scheme
from cfel.learning.aggregation import AggregationParameters
from cfel.learning.compression.compressors import Compressor
from cfel.learning.local.sgd import LocalParameters
from cfel.learning.models.flat import FlatModel
from cfel.learning.task import DeviceData, Task
from cfel.system import Backhaul, Fleet


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Everything a run needs.

    Attributes:
        seed: of every random stream.
        rounds: φ, q, τ.
        fleet: devices, clusters and their conditions.
        backhaul: graph and mixing weights between edge servers.
        backhaul_seconds: of one gossip step, per cluster.
        task: what is learned.
        data: what each device holds, by device id.
        local: how devices train.
        compress: how uploads are compressed.
        scheme: who does how much.
        budget: what may be spent in all.
        start: the model every edge server begins with.
        charged_parameters: size of the model that uploads and backhaul are charged for; None for its own.
        aggregation: how an edge server makes one update of many.
    """

    seed: int
    rounds: Rounds
    fleet: Fleet
    backhaul: Backhaul
    backhaul_seconds: FloatArray
    task: Task
    data: tuple[DeviceData, ...]
    local: LocalParameters
    compress: Compressor
    scheme: Scheme
    budget: Budget
    start: FlatModel
    charged_parameters: int | None = None
    aggregation: AggregationParameters = field(default_factory=AggregationParameters)

    @property
    def exchange_seconds(self) -> FloatArray:
        """Seconds of one exchange between edge servers, per cluster, as the scheme uses the backhaul."""
        return self.scheme.gossip.exchange_seconds(self.backhaul_seconds)

    @property
    def model_bits(self) -> float:
        """Size of a full upload, as it is charged."""
        return 32.0 * (self.charged_parameters or self.start.parameters.numel())

    @property
    def charged_share(self) -> float:
        """Bits charged for every bit that a device of this run really sends."""
        return self.model_bits / (32.0 * self.start.parameters.numel())
