"""What `cfel up` makes of how its processes ended."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cfel.errors import DeploymentError
from cfel.launch.federation import Processes, _Running


def ended(**codes: int | None) -> Processes:
    """Processes that ended with these codes; None runs on."""
    processes = Processes.__new__(Processes)
    processes._running = [
        _Running(Path(f"{name.replace('_', '-')}.toml"), cast("Any", SimpleNamespace(exitcode=code)))
        for name, code in codes.items()
    ]
    return processes


def test_a_device_that_is_turned_away_is_told_once() -> None:
    processes = ended(edge_0=None, device_0=3, device_1=None)
    assert processes.look() == ["device-0"]
    assert processes.look() == []


def test_an_edge_server_that_is_turned_away_ends_it() -> None:
    with pytest.raises(DeploymentError, match="edge-0 ended with code 3"):
        ended(edge_0=3, device_0=None).look()


def test_without_any_device_it_ends() -> None:
    with pytest.raises(DeploymentError, match="all devices were turned away"):
        ended(edge_0=None, device_0=3, device_1=3).look()


def test_devices_that_went_home_are_no_loss() -> None:
    assert ended(edge_0=0, device_0=3, device_1=0).look() == ["device-0"]


def test_what_no_restart_mends() -> None:
    with pytest.raises(DeploymentError, match="device-0 ended with code 2"):
        ended(edge_0=None, device_0=2).look()
