"""Traces: which row belongs to which round, and what an error says."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

from cfel.errors import FleetFileError, InputError
from cfel.system.device_tables import TraceParameters, describe_short_trace, read_trace

HEAD = "round,edge_round,device,mu,alpha,nu,power,available"


def full(rounds: int, edge_rounds: int, devices: int) -> list[str]:
    """One line per combination with mu = 1 + 100·round + 10·edge round + device."""
    return [
        f"{g},{e},{d},{1 + 100 * g + 10 * e + d},2,3,4,{int(d != 1)}"
        for g in range(rounds)
        for e in range(edge_rounds)
        for d in range(devices)
    ]


def written(folder: Path, head: str, lines: list[str]) -> Path:
    file = folder / "trace.csv"
    file.write_text("\n".join([head, *lines]))
    return file


def test_rows_find_their_round_in_any_order_and_start_again(tmp_path: Path) -> None:
    lines = full(rounds=2, edge_rounds=3, devices=4)
    trace = read_trace(written(tmp_path, HEAD, lines[::-1]))
    assert trace.devices == 4
    found = trace.conditions(0, 1, 2, 4, 1e6)
    assert found.mu.tolist() == [121, 122, 123, 124]
    assert found.available.tolist() == [True, False, True, True]
    assert np.array_equal(trace.conditions(9, 1 + 2, 2 + 3, 4, 1).mu, found.mu)
    assert trace.conditions(0, 0, 0, 2, 1e6).mu.tolist() == [1, 2]


def test_round_columns_are_optional(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "device,mu,alpha,nu,power", ["0,1,2,3,4", "1,5,6,7,8"]))
    found = trace.conditions(0, 17, 3, 2, 1e6)
    assert found.mu.tolist() == [1, 5]
    assert found.power.tolist() == [4, 8]
    assert found.available.all()


@pytest.mark.parametrize("available", [[True, False], [1, 0], ["True", "false"], [1.0, 0.0]])
def test_parquet_and_ways_to_say_available(tmp_path: Path, available: list[object]) -> None:
    file = tmp_path / "trace.parquet"
    columns = {name: [1.0, 2.0] for name in ("mu", "alpha", "nu", "power")}
    pa_parquet.write_table(pa.table({"device": [0, 1], **columns, "available": available}), file)
    assert read_trace(file).conditions(0, 0, 0, 2, 1).available.tolist() == [True, False]


def test_more_devices_than_the_trace_has(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, HEAD, full(1, 1, 3)))
    with pytest.raises(InputError, match=r"devices = 4: .*trace\.csv .*3"):
        trace.conditions(0, 0, 0, 4, 1e6)


@pytest.mark.parametrize("gone", range(12))
def test_missing_combination_is_named(tmp_path: Path, gone: int) -> None:
    lines = full(rounds=2, edge_rounds=2, devices=3)
    at = lines.pop(gone).split(",")[:3]
    with pytest.raises(
        FleetFileError,
        match=f"round {at[0]}, edge round {at[1]}, device {at[2]}",
    ):
        read_trace(written(tmp_path, HEAD, lines))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "0,0,1,1,1,1,1,1",
            r"line 4, column 'device': '1': must be there once only per round and edge round",
        ),
        ("0,0,x,1,1,1,1,1", "line 4, column 'device': 'x':"),
        ("0,0,1.5,1,1,1,1,1", r"line 4, column 'device': '1\.5':"),
        ("0,-1,2,1,1,1,1,1", "line 4, column 'edge_round': '-1':"),
        ("0,0,2,0,1,1,1,1", "line 4, column 'mu': '0':"),
        ("0,0,2,1,1,,1,1", "line 4, column 'nu': '':"),
        ("0,0,2,1,1,1,1,maybe", r"line 4, column 'available': 'maybe': must be 1 or 0, true or false"),
        ("0,0,1000000000000,1,1,1,1,1", "no row for round 0, edge round 0, device 2"),
        ("9e15,9e15,9e15,1,1,1,1,1", "no row for round 0, edge round 0, device 2"),
        ("1e300,0,2,1,1,1,1,1", "line 4, column 'round': '1e300':"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(FleetFileError, match=reason):
        read_trace(written(tmp_path, HEAD, [*full(1, 1, 2), line]))


def test_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match="line 1: column 'nu' is missing"):
        read_trace(written(tmp_path, "device,mu,alpha,power", ["0,1,2,3"]))


def test_trace_needs_a_path() -> None:
    with pytest.raises(InputError, match=r"conditions\.file = ''"):
        TraceParameters("")


def test_counting_from_one(tmp_path: Path) -> None:
    """As spreadsheets do: rounds, edge rounds and devices."""
    lines = [f"{g},{e},{d},{100 * g + 10 * e + d},2,3,4,1" for g in (1, 2) for e in (1, 2) for d in (1, 2, 3)]
    trace = read_trace(written(tmp_path, HEAD, lines))
    assert (trace.rounds, trace.devices) == ((2, 2), 3)
    assert trace.conditions(0, 1, 0, 3, 1).mu.tolist() == [211, 212, 213]


def test_devices_by_name(tmp_path: Path) -> None:
    """In the order in which they first appear; a number among them is a mistake."""
    lines = ["gate,1,2,3,4", "roof,5,6,7,8"]
    trace = read_trace(written(tmp_path, "device,mu,alpha,nu,power", lines))
    assert trace.conditions(0, 0, 0, 2, 1).mu.tolist() == [1, 5]
    with pytest.raises(FleetFileError, match="line 2, column 'device': 'gate'"):
        read_trace(written(tmp_path, "device,mu,alpha,nu,power", [*lines, "2,1,1,1,1"]))


def test_a_trace_that_ends_before_the_run(tmp_path: Path) -> None:
    """It starts again, or its last round stays; one round alone is a fleet that does not change."""
    file = written(tmp_path, HEAD, full(rounds=2, edge_rounds=3, devices=1))
    trace, held = read_trace(file), read_trace(file, hold=True)
    assert [trace.conditions(0, g, 0, 1, 1).mu[0] for g in range(4)] == [1, 101, 1, 101]
    assert [held.conditions(0, g, 4, 1, 1).mu[0] for g in range(4)] == [21, 121, 121, 121]
    assert describe_short_trace(trace, 2, 3) is None
    short = f"{file} has only 2 global rounds of 40 and 3 edge rounds of 5"
    assert describe_short_trace(trace, 40, 5) == short
    one = read_trace(written(tmp_path, HEAD, full(1, 1, 1)))
    assert describe_short_trace(one, 40, 5) is None
    with pytest.raises(InputError, match="after_end: unknown 'again'"):
        TraceParameters("a.csv", "again")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("device,rounds,mu,alpha,nu,power", "line 1: column 'rounds' is unknown; is 'round' meant?"),
        ("device,Edge round,mu,alpha,nu,power", "column 'Edge round' is unknown; is 'edge_round' meant?"),
        ("device,avaliable,mu,alpha,nu,power", "column 'avaliable' is unknown; is 'available' meant?"),
    ],
)
def test_misspelt_columns_are_named(tmp_path: Path, head: str, message: str) -> None:
    """They would be ignored, and the trace would be another one."""
    with pytest.raises(FleetFileError, match=message.replace("?", r"\?")):
        read_trace(written(tmp_path, head, ["0,0,1,2,3,4"]))
