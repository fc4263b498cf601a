"""A namespace behind the kernel's own slow link; needs root, `ip` and `tc`."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.shaped_namespace import find_missing, shape_namespace

SIZE = 50_000
SEND = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2]))).sendall(bytes(50_000))"


@pytest.mark.long
def test_bytes_take_as_long_as_the_rate_says() -> None:
    """400 kbit at 200 kbit/s: 2 s, less what the bucket holds at the start; and nothing is left behind."""
    if missing := find_missing():
        pytest.skip(f"needs {missing}")
    with shape_namespace(200_000) as namespace, socket.create_server((namespace.address, 0)) as server:
        command = namespace.wrap(sys.executable, "-c", SEND, *map(str, server.getsockname()))
        with subprocess.Popen(command), server.accept()[0] as connection:
            began, received = time.monotonic(), 0
            while chunk := connection.recv(SIZE):
                received += len(chunk)
            took = time.monotonic() - began
    assert received == SIZE
    assert took > 1.5
    assert not Path("/run/netns", namespace.name).exists()


@pytest.mark.long
def test_a_cable_is_gone_when_its_context_ends() -> None:
    """The kernel removes a namespace later than it says; the next cable must not meet the last one."""
    if missing := find_missing():
        pytest.skip(f"needs {missing}")
    for _ in range(20):
        with shape_namespace(1e6) as namespace:
            assert Path("/sys/class/net", namespace.name).exists()
        assert not Path("/sys/class/net", namespace.name).exists()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else name)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert find_missing() == "root and `tc`"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert find_missing() == "`tc`"
