"""What a run needs whose edge servers aggregate the first updates, and who cannot do that.

The mechanism is in `simulation.buffered`.
"""

from cfel.errors import InputError
from cfel.learning.aggregation import AggregationParameters
from cfel.learning.local.algorithm import LocalAlgorithm
from cfel.rounds.parameters import SimulationParameters


def check_buffering(
    aggregation: AggregationParameters, simulation: SimulationParameters, algorithm: LocalAlgorithm
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
    if aggregation.kind != "mean":
        raise InputError(f"{what}: late updates are discounted in a mean; set aggregation.kind = 'mean'")
    if algorithm.edge is not None:
        raise InputError(
            f"{what}: with this local.algorithm, edge servers expect updates of their newest model; choose "
            "another algorithm"
        )


def reject_buffering(aggregation: AggregationParameters, who: str) -> None:
    """Raises if edge servers aggregate the first updates.

    Args:
        aggregation: of the experiment.
        who: cannot do that, as the beginning of the sentence.

    Raises:
        InputError: they do.
    """
    if aggregation.buffer:
        raise InputError(
            f"{who} cannot aggregate the first {aggregation.buffer} updates (aggregation.buffer); simulate "
            "that with `cfel run`, or set aggregation.buffer = 0"
        )
