"""The snapshot: its document, there and back, and what it rejects."""

import json
import math
from typing import Any

import numpy as np
import pytest

from cfel.errors import InputError
from cfel.status import (
    ClusterStatus,
    Curve,
    DeviceStatus,
    ElectionEvent,
    LinkStatus,
    RoundPoint,
    Status,
    thin_history,
)

POINT = RoundPoint(round=1, seconds=2.0, joules=3.0, accuracy=0.5, loss=1.5, straggler=0)
WHOLE = Status(
    node="edge-0",
    name="ä <b>",
    phase="gossip",
    round=2,
    rounds=9,
    edge_round=1,
    term=3,
    coordinator="edge-1",
    clusters=(
        ClusterStatus(cluster=0, node="edge-0", size=1, devices=(DeviceStatus(device=0, rho=0.25),)),
        ClusterStatus(cluster=1, state="lost"),
    ),
    links=(LinkStatus(a=0, b=1, weight=0.5, up=False),),
    history=(POINT,),
    curves=(Curve(name="cef", history=(POINT,)),),
    rejected=(("wrong round", 2),),
    elections=(ElectionEvent(unix_seconds=5.0, term=3, kind="elected", node="edge-1"),),
)


def test_there_and_back() -> None:
    assert Status.from_json(WHOLE.to_json()) == WHOLE
    assert Status.from_json(Status(node="x").to_json()) == Status(node="x")


def test_the_document() -> None:
    document = json.loads(WHOLE.to_json())
    assert list(document)[:4] == ["schema", "node", "name", "scheme"]
    assert document["schema"] == 2
    assert document["name"] == "ä <b>"
    assert document["rejected"] == {"wrong round": 2}
    assert document["clusters"][0]["devices"][0] == {
        "device": 0,
        "name": "",
        "state": "idle",
        "rho": 0.25,
        **dict.fromkeys(("theta", "mu", "nu", "seconds", "joules")),
        "source": "",
        "version": "",
        "doubled": False,
    }


def test_fields_of_a_later_version_are_passed_over() -> None:
    document = json.loads(WHOLE.to_json())
    document["weather"] = "fine"
    document["clusters"][0]["devices"][0]["hat"] = "red"
    assert Status.from_json(json.dumps(document)) == WHOLE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "not a status document"),
        ("{}", "not a status document: 'schema'"),
        ("nonsense", "not a status document"),
        ("[" * 100_000, "not a status document"),
        ('{"schema": 1}', "schema = 1: this cfel reads 2"),
        ('{"schema": 2, "node": "x"}', "'clusters'"),
    ],
)
def test_other_documents_are_rejected(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Status.from_json(text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"node": 7}, "node = 7: Expected `str`, got `int`"),
        ({"round": 1.5}, "round = 1.5"),
        ({"rejected": {"why": "often"}}, r"rejected\[0\]\[1\] = 'often'"),
        ({"clusters": [{"cluster": 0}, {"cluster": True}]}, r"clusters\[1\].cluster = True"),
        ({"clusters": [{"cluster": 0}, {}]}, r"clusters\[1\]: .*`cluster`"),
        ({"clusters": [{"cluster": 0, "state": "dead"}]}, r"clusters\[0\]: state: unknown 'dead'"),
        ({"links": None}, "links = None"),
        ({"node": "x", "problem": " - at `$.clusters[9]`", "phase": "?"}, "phase: unknown"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"not a status document: {words}"):
        Status.from_json(json.dumps(json.loads(WHOLE.to_json()) | changes))


def test_numbers_of_numpy_are_written_like_others() -> None:
    status = Status(node="x", seconds=np.float64(0.1), history=(RoundPoint(round=1, seconds=2, joules=0.5),))
    assert b'"seconds":0.1,' in status.to_json()
    assert b'"seconds":2,' in status.to_json()


def test_a_metric_that_diverged_is_unknown() -> None:
    point = RoundPoint(round=1, seconds=0.0, joules=0.0, accuracy=math.nan, loss=math.inf)
    assert (point.accuracy, point.loss) == (None, None)


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (DeviceStatus, {"device": -1}, "device = -1:"),
        (DeviceStatus, {"device": 0, "state": "traning"}, "state: unknown 'traning'"),
        (DeviceStatus, {"device": 0, "rho": 1.5}, "rho = 1.5:"),
        (DeviceStatus, {"device": 0, "theta": "x"}, "theta = 'x'"),
        (DeviceStatus, {"device": 0, "mu": math.inf}, "mu = inf"),
        (ClusterStatus, {"cluster": 0, "state": "dead"}, "state: unknown 'dead'"),
        (
            ClusterStatus,
            {"cluster": 4, "size": 0, "devices": (DeviceStatus(device=0),)},
            "size = 0: cluster 4 lists 1",
        ),
        (LinkStatus, {"a": 0, "b": -1}, "b = -1"),
        (RoundPoint, {"round": 1, "seconds": -1.0, "joules": 0.0}, "seconds = -1.0"),
        (ElectionEvent, {"unix_seconds": 0.0, "term": 1, "kind": "lost"}, "kind: unknown 'lost'"),
        (Status, {"node": "x", "phase": "trainin"}, "phase: unknown 'trainin'"),
        (Status, {"node": "x", "source": "tv"}, "source: unknown 'tv'"),
        (Status, {"node": "x", "round": True}, "round = True"),
        (Status, {"node": "x", "seconds": math.nan}, "seconds = nan"),
        (Status, {"node": "x", "rejected": (("why", -1),)}, "rejected\\['why'\\] = -1"),
    ],
)
def test_what_cannot_be_is_rejected(kind: type[Any], values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        kind(**values)


def test_a_long_history_is_thinned() -> None:
    """Of rounds 1…10 four at most: every third, ending with the newest."""
    rounds = tuple(RoundPoint(round=number, seconds=0.0, joules=0.0) for number in range(1, 11))
    assert [point.round for point in thin_history(rounds, 4)] == [1, 4, 7, 10]
    assert [point.round for point in thin_history(rounds, 3)] == [2, 6, 10]
    assert thin_history(rounds, 10) == rounds
