"""Published traces become cfel's tables; on small files of their form."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cfel.cli import main
from cfel.errors import InputError
from cfel.system.device_tables import read_trace
from cfel.system.fleet import read_availability
from cfel.system.public_traces import PublicAvailability, PublicCapacity, Work, read_public_trace

LOG = """2020-01-29 22:00:00\tbattery_charged_on
2020-01-29 22:10:00\twifi
2020-01-29 22:20:00\tscreen_lock
2020-01-29 22:25:00\t85.0%
2020-01-29 22:30:00\tscreen_unlock
2020-01-29 23:00:00\tSCREEN_LOCK

2020-01-30 01:00:00\t4G
2020-01-30 02:00:00\twifi
2020-01-30 03:00:00\tscreen_on
"""
FLASH = {
    "17": {"guid": "a", "model": "SM-G973F", "messages": LOG},
    "18": {"guid": "b", "model": "Redmi Note 8", "messages": LOG.replace("wifi", "3g")},
    "19": {"guid": "c", "model": "Redmi Note 8", "messages": LOG + "no time\tscreen_lock"},
    "20": {"guid": "d", "model": "x", "messages": "2020-01-29 22:00:00\twifi"},
}
BEHAVIOUR = {
    7: {"duration": 1, "active": [0, 500, 900], "inactive": [100, 500], "finish_time": 1000, "model": "P9"},
    9: {"duration": 1, "active": [200], "inactive": [800], "finish_time": 900, "model": "P9"},
}
CAPACITY = {
    1: {"computation": 20.0, "communication": 1000.0},
    432802: {"computation": 162.0, "communication": 5648.1},
}


def _save(path: Path, content: object) -> Path:
    path.write_bytes(pickle.dumps(content))
    return path


def test_a_phone_is_there_while_it_is_locked_charged_and_in_a_wireless_network(tmp_path: Path) -> None:
    """From 22:20 to 22:30, from 23:00 to 01:00, and from 02:00 to the end of the log at 03:00."""
    (tmp_path / "state_traces.json").write_text(json.dumps(FLASH))
    found = read_public_trace(tmp_path / "state_traces.json")
    assert isinstance(found, PublicAvailability)
    assert found.left_out == 3
    (own,) = found.intervals
    begin = own[0][0]
    minutes = [((start - begin) / 60, (end - begin) / 60) for start, end in own]
    assert minutes == [(0, 10), (40, 160), (220, 280)]


def test_clients_of_fedscale_come_and_go(tmp_path: Path) -> None:
    """Of the first client's intervals the second is empty, and the third has no end."""
    found = read_public_trace(_save(tmp_path / "client_behave_trace", BEHAVIOUR))
    assert found == PublicAvailability((((0, 100),), ((200, 800),)), 0)
    assert found.to_csv() == "device,start,end\n0,0,100\n1,200,800\n"


def test_capacities_become_costs(tmp_path: Path) -> None:
    """20 ms an inference: 3 × 10 × 20 ms = 0.6 s a step; 2,048,000 bits at 1,024,000 a second: 2 s."""
    found = read_public_trace(_save(tmp_path / "client_device_capacity", CAPACITY))
    assert isinstance(found, PublicCapacity)
    table = found.to_csv(Work(10, 2_048_000, 2.0, 0.5)).splitlines()
    assert table[:2] == ["device,mu,alpha,nu,power", "0,0.6,1.2,2,0.5"]
    assert table[2].startswith("1,4.86,9.72,0.35")


def test_the_command_writes_what_cfel_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flash.json").write_text(json.dumps(FLASH))
    there, costs = tmp_path / "there.csv", tmp_path / "costs.csv"
    assert main(["devices", "--convert", str(tmp_path / "flash.json"), "--to", str(there)]) == 0
    assert "1 device (3 never were, and are left out); use it as fleet.availability.file" in " ".join(
        capsys.readouterr().out.split()
    )
    trace = read_availability(there, round_seconds=600)
    assert [trace.is_absent(each, 1).item() for each in (0, 1, 2, 4)] == [False, True, True, False]
    _save(tmp_path / "capacity", CAPACITY)
    command = ["devices", "--convert", str(tmp_path / "capacity"), "--to", str(costs), "--json"]
    work = ["--batch", "10", "--parameters", "64000", "--like", "pixel-6"]
    assert main([*command, *work]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(costs), "devices": 2}
    assert read_trace(costs).mu[0, 0].tolist() == pytest.approx([0.6, 4.86])
    assert main([*command, *work[:4]]) == 2
    assert "capacities of FedScale need --like" in capsys.readouterr().err
    assert main(["devices", "--convert", str(tmp_path / "capacity")]) == 2


class _Attack:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, ("broken-into",)


def test_a_pickle_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _save(tmp_path / "bad", {1: {"computation": _Attack()}})
    with pytest.raises(
        InputError, match=r"rejected: it refers to posix\.mkdir, which is not part of a trace"
    ):
        read_public_trace(tmp_path / "bad")
    assert not (tmp_path / "broken-into").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a trace of FedScale"),
        (b"{", "cannot be read"),
        (b"\x80\x04garbage", "not a trace of FedScale"),
        (pickle.dumps([1, 2]), "must hold a record per device, holds list"),
        (pickle.dumps({1: {"speed": 2}}), "neither a state trace of FLASH"),
        (pickle.dumps({1: 2}), "neither a state trace of FLASH"),
        (pickle.dumps({1: {"computation": 0.0, "communication": 1.0}}), "device 1: computation = 0"),
        (pickle.dumps({1: {"computation": 1.0}}), "device 1: communication = None"),
        (pickle.dumps({1: {"active": [1], "inactive": 2}}), "device 1: inactive = 2: must be a list"),
        (pickle.dumps({1: {"active": [], "inactive": []}}), "no device is ever there"),
        (json.dumps({"1": {"messages": 3}}).encode(), "device 1: messages = 3: must be text"),
    ],
)
def test_what_is_not_a_trace(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_public_trace(tmp_path / "file")
    with pytest.raises(InputError, match="cannot be read"):
        read_public_trace(tmp_path / "missing")
