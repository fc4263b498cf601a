"""How the processes of nodes are named and end, and what `cfel up` makes of it."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cfel import errors
from cfel.errors import AllDivergedError, DeploymentError
from cfel.launch.federation import Processes, _NodeProcess
from cfel.launch.node import choose_exit_code, name_process


def ended(**codes: int | None) -> Processes:
    """Processes that ended with these codes; None runs on."""
    processes = Processes.__new__(Processes)
    processes._processes = [
        _NodeProcess(Path(f"{name.replace('_', '-')}.toml"), cast("Any", SimpleNamespace(exitcode=code)))
        for name, code in codes.items()
    ]
    return processes


def test_a_rejected_device_logs_the_reason_once() -> None:
    processes = ended(edge_0=None, device_0=3, device_1=None)
    assert processes.restart_dead() == ["device-0"]
    assert processes.restart_dead() == []


def test_an_edge_server_that_is_turned_away_ends_it() -> None:
    with pytest.raises(DeploymentError, match="edge-0 ended with code 3"):
        ended(edge_0=3, device_0=None).restart_dead()


def test_without_any_device_it_ends() -> None:
    with pytest.raises(DeploymentError, match="all devices were rejected"):
        ended(edge_0=None, device_0=3, device_1=3).restart_dead()


def test_devices_that_left_after_the_end_are_not_lost() -> None:
    assert ended(edge_0=0, device_0=3, device_1=0).restart_dead() == ["device-0"]


def test_what_no_restart_mends() -> None:
    with pytest.raises(DeploymentError, match="device-0 ended with code 2"):
        ended(edge_0=None, device_0=2).restart_dead()


def test_a_run_in_which_all_devices_diverged_ends() -> None:
    with pytest.raises(AllDivergedError, match=r"learning_rate .*edge-0\.log"):
        ended(edge_0=6, edge_1=None, device_0=None).restart_dead()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.DeploymentError("address in use"), 1),
        (errors.DiskError("no space left"), 1),
        (errors.RunBusyError("another process"), 8),
        (errors.DashboardError("port in use"), 1),
        (errors.ExperimentError("wrong key"), 2),
        (errors.NotAdmittedError("revoked"), 3),
        (errors.VersionError("protocol version 9"), 7),
        (errors.CredentialsError("edge-0.pem is not a certificate"), 3),
        (errors.SilentEdgeServerError("silent"), 4),
        (errors.AllDivergedError("global round 1"), 6),
        (errors.DamagedError("state.bin is damaged"), 5),
        (errors.RunDirectoryError("another experiment"), 5),
    ],
)
def test_codes(error: errors.CfelError, code: int) -> None:
    assert choose_exit_code(error) == code


SHOW = """
from pathlib import Path
from cfel.launch.node import name_process
name_process("cfel device-12")
print(Path("/proc/self/comm").read_text().strip())
print(Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").decode())
"""


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads /proc")
def test_a_process_gets_a_name() -> None:
    found = subprocess.run([sys.executable, "-c", SHOW], check=True, capture_output=True, text=True)
    assert found.stdout.splitlines() == ["cfel device-12", "cfel device-12"]


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path("/proc/self/comm")
    before = own.read_text() if own.exists() else ""
    monkeypatch.setattr("sys.platform", "plan9")
    name_process("cfel device-12")
    assert (own.read_text() if own.exists() else "") == before
