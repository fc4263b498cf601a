"""Flower's records as plain arrays and numbers, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, RecordDict
from numpy.typing import NDArray

from cfel.errors import InputError
from cfel.flower.sparse import Arrays


def identify_process() -> None:
    """Lets a process that Flower has not started make messages: newer versions ask who it is."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ModuleNotFoundError:
        return
    if TaskIdentity._run_id is None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def open_context(place: int, nodes: int, run_config: Mapping[str, Any]) -> Context:
    """A client's context before its first message, as Flower's own simulation makes it.

    Node `place + 1` has part `place` of the data, from 0.
    """
    return Context(
        run_id=1,
        node_id=place + 1,
        node_config={"partition-id": place, "num-partitions": nodes},
        state=RecordDict(),
        run_config=dict(run_config),
    )


def make_record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})


def read_record(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    return {name: array.numpy() for name, array in record.items()}


def find_record(content: RecordDict, where: str) -> tuple[str, ArrayRecord]:
    """The one record of arrays in a message, with its name."""
    found = list(content.array_records.items())
    if len(found) != 1:
        raise InputError(f"{where}: must hold one ArrayRecord, has {len(found)}")
    return str(found[0][0]), found[0][1]


def read_like(record: ArrayRecord, names: Sequence[str], where: str) -> dict[str, NDArray[Any]]:
    """The arrays of a record under the names of a model; a list of arrays is taken to be in its order."""
    arrays = read_record(record)
    if arrays.keys() == set(names):
        return {name: arrays[name] for name in names}
    if len(arrays) != len(names) or list(arrays) != [str(place) for place in range(len(names))]:
        raise InputError(f"{where}: has the arrays {list(arrays)}, the model has {list(names)}")
    return dict(zip(names, arrays.values(), strict=True))


def read_metrics(content: RecordDict) -> dict[str, Any]:
    """All metrics of a reply; clients with `fit` put theirs into a ConfigRecord."""
    found: dict[str, Any] = {}
    for record in (*content.config_records.values(), *content.metric_records.values()):
        found.update(record)
    return found
