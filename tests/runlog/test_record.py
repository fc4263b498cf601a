"""A record and its line of JSON."""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfel.errors import InputError
from cfel.runlog import RoundRecord

finite = st.floats(min_value=0, allow_infinity=False, allow_nan=False)
anything = st.floats()
records = st.builds(
    RoundRecord,
    round=st.integers(0, 10**6),
    seconds=finite,
    joules=finite,
    seconds_expected=finite,
    joules_expected=finite,
    seconds_realised=finite,
    joules_realised=finite,
    accuracy=st.none() | anything,
    loss=st.none() | anything,
    rho_mean=anything,
    theta_mean=anything,
    sigma2=anything,
    g2=anything,
    gap=st.none() | anything,
    feasible=st.booleans(),
    wire_bytes=st.integers(0, 2**70),
    wall_seconds=anything,
    model_sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    violations=st.lists(st.text()).map(tuple),
    straggler=st.none() | st.integers(0, 10**6),
    slowest_cluster=st.none() | st.integers(0, 100),
    devices_taking_part=st.integers(0, 10**6),
    metrics=st.dictionaries(st.text(), anything, max_size=3),
)


@settings(deadline=None)
@given(records)
def test_a_line_gives_back_the_record_to_the_last_bit(record: RoundRecord) -> None:
    """Also NaN and infinities, also words with line breaks; `repr` tells −0.0 from 0.0."""
    line = record.to_json_line()
    again = RoundRecord.from_json_line(line)
    assert repr(again) == repr(record)
    assert again.to_json_line() == line
    assert line.count("\n") == 1
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.mark.parametrize("metrics", [[1], {"mae": "good"}, {"mae": True}, {"mae": None}])
def test_metrics_are_numbers_by_name(make_record: Callable[..., RoundRecord], metrics: object) -> None:
    document = {**json.loads(make_record(1).to_json_line()), "metrics": metrics}
    with pytest.raises(InputError, match="metrics"):
        RoundRecord.from_json_line(json.dumps(document))
    del document["metrics"]
    assert RoundRecord.from_json_line(json.dumps(document)).metrics == {}


def test_numpy_scalars_become_plain_numbers(make_record: Callable[..., RoundRecord]) -> None:
    record = make_record(
        3, seconds=np.float32(0.5), wire_bytes=np.int64(7), straggler=np.int32(1), feasible=np.True_
    )
    assert (record.seconds, record.wire_bytes, record.straggler, record.feasible) == (0.5, 7, 1, True)
    assert type(record.seconds) is float
    assert RoundRecord.from_json_line(record.to_json_line()) == record


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seconds": -1.0}, "seconds = -1.0:"),
        ({"joules": math.inf}, "joules = inf"),
        ({"joules_realised": math.nan}, "joules_realised = nan"),
        ({"round": -1}, "round = -1:"),
        ({"wire_bytes": 2**101}, f"wire_bytes = {2**101}"),
        ({"round": 1.5}, "round = 1.5: Expected `int`, got `float`"),
        ({"wire_bytes": True}, "wire_bytes = True"),
        ({"loss": "0.5"}, "loss = '0.5'"),
        ({"g2": None}, "g2 = None"),
        ({"metrics": {"mae": np.True_}}, "metrics"),
        ({"violations": "late"}, "violations = 'late'"),
        ({"model_sha256": "ABC"}, "model_sha256 = 'ABC'"),
    ],
)
def test_a_bad_value_is_named(
    make_record: Callable[..., RoundRecord], changes: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        make_record(1, **changes)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not a JSON object"),
        ("[1]", "not a JSON object but list"),
        ('{"rund": 1}', "did you mean 'round'"),
        ('{"round": 1}', "field `seconds`"),
    ],
)
def test_a_line_that_is_no_record_is_rejected(line: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        RoundRecord.from_json_line(line)


@pytest.mark.parametrize("name", ["violations", "feasible", "model_sha256"])
def test_a_field_of_the_wrong_type_is_rejected(make_record: Callable[..., RoundRecord], name: str) -> None:
    document = {**json.loads(make_record(1).to_json_line()), name: 7}
    with pytest.raises(InputError, match=f"{name} = 7"):
        RoundRecord.from_json_line(json.dumps(document))
