"""What `cfel up` shows while a federation works, and how it stops and resumes."""

import io
import shlex
import signal
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from cfel.cli.federation import count_devices, print_status
from cfel.cli.up import FederationView, _resume_command
from cfel.runlog import RoundRecord
from cfel.runlog.records import read_log
from cfel.status import ClusterStatus, DeviceStatus, Status
from tests.report.conftest import record
from tests.support.clock import Clock

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny.toml"


def finished(number: int) -> RoundRecord:
    """A finished round: ten seconds and a hundred joules each."""
    return record(number, 0.5, 10.0 * number, 100.0 * number)


def status(states: tuple[str, str]) -> Status:
    """Edge server 0 of two, with two devices."""
    devices = tuple(DeviceStatus(device=n, state=state) for n, state in enumerate(states))
    return Status(
        node="edge-0",
        phase="training",
        round=3,
        edge_round=2,
        term=7,
        coordinator="edge-1",
        clusters=(ClusterStatus(cluster=0, size=2, devices=devices), ClusterStatus(cluster=1)),
        rejected=(("too large", 4),),
    )


def test_a_line_per_round_where_there_is_no_terminal() -> None:
    """Two of ten rounds in 60 s: the other eight take 240 s more."""
    out, clock = io.StringIO(), Clock()
    view = FederationView(10, Console(file=out, width=200), clock)
    with view:
        view._started = (clock(), 0)
        view.update({0: status(("training", "lost")), 1: "nobody answers"})
        clock.seconds = 60.0
        view.on_round(finished(2))
    assert out.getvalue().strip() == (
        "round 2/10, coordinator edge-1 (term 7), 1/2 devices, 1 edge server not answering, 50.0 %, "
        "20.0 s, 200 J, ETA 0:04:00"
    )


def test_the_last_line_counts_devices_that_have_done_their_work() -> None:
    """Edge servers and devices end before `cfel up` prints the last round: nobody was lost."""
    out = io.StringIO()
    view = FederationView(2, Console(file=out, width=200))
    with view:
        view.update({0: replace(status(("done", "done")), phase="finished")})
        view.update({0: "connection refused"})
        view.on_round(finished(2))
    assert "2/2 devices" in out.getvalue()
    assert "not answering" not in out.getvalue()


def test_a_table_in_a_terminal() -> None:
    out = io.StringIO()
    view = FederationView(10, Console(file=out, width=120, force_terminal=True, color_system=None))
    with view:
        view.update({0: status(("training", "idle")), 1: "nobody answers"})
        view.on_round(finished(2))
    shown = out.getvalue()
    for words in ("edge-1", "training", "3.2", "2/2", "no answer", "round 2/10", "50.0 %", "200 J"):
        assert words in shown


def test_problems_are_logged_when_they_change() -> None:
    out = io.StringIO()
    good = status(("training", "idle"))
    alone, nobody = replace(good, problem="no majority: [1 of 3]"), replace(good, problem="nobody elected")
    view = FederationView(10, Console(file=out, width=200))
    for answer in (good, alone, alone, "no answer", alone, nobody, good, alone):
        view.update({0: answer, 1: good})
    assert out.getvalue().splitlines() == [
        "edge-0: no majority: [1 of 3]",
        "edge-0: nobody elected",
        "edge-0: no majority: [1 of 3]",
    ]


def test_the_command_to_resume_has_the_changes() -> None:
    changes = ["rounds.global=3", 'scheme.options={ "frequency" = false }']
    given = Namespace(experiment=Path("a b.toml"), set=changes, json=False)
    words = shlex.split(_resume_command(given, Path("runs/x")))
    assert words == [
        *("cfel", "up", "a b.toml", "--out", "runs/x", "--set", changes[0], "--set", changes[1], "--resume")
    ]


def test_before_the_first_round_nothing_is_known() -> None:
    view = FederationView(10, Console(file=io.StringIO()))
    assert view.format_line() == "round 0/10"
    assert view.estimate_seconds_left() is None


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_interrupted_by_the_keyboard_and_resumed(tmp_path: Path) -> None:
    """Some ten seconds for each start of nine processes."""
    command = [sys.executable, "-m", "cfel", "up", str(EXAMPLE), "--out", str(tmp_path / "run")]
    command += ["--set", "rounds.global=3", "--set", "deployment.election_seconds=1.5"]
    command += ["--set", "deployment.time_scale=3e-3"]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "run" / "rounds.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (log.exists() and log.read_text()):
        time.sleep(0.1)
    first.send_signal(signal.SIGINT)
    _, reported = first.communicate(timeout=60)
    assert first.returncode == 130, reported
    (hint,) = (
        line for line in reported.splitlines() if line.startswith("all processes stopped; to resume: ")
    )
    assert 1 <= len(read_log(log).records) < 3
    advised = [*command[:2], *shlex.split(hint.partition(": ")[2])]
    again = subprocess.run(advised, check=False, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "round 3/3" in again.stderr
    assert [line.round for line in read_log(log).records] == [1, 2, 3]


def test_a_status_without_clusters_has_no_devices(capsys: pytest.CaptureFixture[str]) -> None:
    """As an edge server gives it before it knows the fleet."""
    bare = replace(status(("idle", "idle")), clusters=(), conditions="measured")
    print_status({0: bare, 1: "nobody answers"})
    assert count_devices({0: bare}) == "0/0"
    assert "0/0" in capsys.readouterr().out
