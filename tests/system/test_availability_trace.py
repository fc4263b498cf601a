"""Availability traces: intervals, names, repetition, and files that are wrong."""

import re
from pathlib import Path

import pytest

from cfel.errors import FleetFileError, InputError
from cfel.system.fleet import Availability, FleetParameters, build_fleet, read_availability


def write(folder: Path, *rows: str) -> Path:
    path = folder / "away.csv"
    path.write_text("\n".join(("device,start,end", *rows)) + "\n")
    return path


def test_intervals_by_hand(tmp_path: Path) -> None:
    """Rounds begin at 0, 10, 20, 30 and, after the last end at 40, at 0 again; device 2 has no row."""
    trace = read_availability(write(tmp_path, "0,100,115", "1,110,120", "0,130,140"), 10)
    assert [trace.is_absent(round_, 3).tolist() for round_ in range(5)] == [
        [False, True, True],
        [False, False, True],
        [True, True, True],
        [False, True, True],
        [False, True, True],
    ]


def test_names_are_numbered_in_order(tmp_path: Path) -> None:
    trace = read_availability(write(tmp_path, "roof,0,10", "gate,10,20", "7,0,20"), 10)
    assert trace.is_absent(0, 3).tolist() == [False, True, False]
    assert trace.is_absent(1, 2).tolist() == [True, False]
    with pytest.raises(InputError, match=r"devices = 4: .*away\.csv .*3"):
        trace.is_absent(0, 4)


def test_a_fleet_follows_the_trace_and_its_other_absences(tmp_path: Path) -> None:
    given = Availability(away=((0, 0, 0),), file=str(write(tmp_path, "0,0,20", "1,0,10")), round_seconds=10)
    fleet = build_fleet(FleetParameters(devices=2, clusters=1, availability=given))
    assert fleet.conditions(0, 0, 0, 1e6).available.tolist() == [False, True]
    assert fleet.conditions(0, 1, 0, 1e6).available.tolist() == [True, False]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("0,5,5", ", line 3, column 'end': '5': must be after the start, which is 5 there"),
        ("0,x,5", ", line 3, column 'start': 'x':"),
        ("0,,5", ", line 3, column 'start': ''"),
        (",1,5", ", line 3, column 'device': ''"),
        ("0,1", ", line 3: has 2 fields, must have 3"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str, reason: str) -> None:
    with pytest.raises(FleetFileError, match=re.escape("away.csv" + reason)):
        read_availability(write(tmp_path, "0,0,1", row), 10)


@pytest.mark.parametrize("fields", [{"file": "a.csv"}, {"round_seconds": 5.0}])
def test_file_and_length_of_a_round_belong_together(fields: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"file: needs round_seconds"):
        Availability(**fields)  # type: ignore[arg-type]
