"""What `cfel up` makes of how its processes ended."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cfel.errors import AllDivergedError, DeploymentError
from cfel.launch.processes import Processes, _NodeProcess


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
    with pytest.raises(AllDivergedError, match=r"local\.learning_rate is too large\. See edge-0\.log"):
        ended(edge_0=6, edge_1=None, device_0=None).restart_dead()
