"""The names of processes, as `ps` shows them."""

import subprocess
import sys
from pathlib import Path

import pytest

from cfel.launch import processes as process_name

SHOW = """
from pathlib import Path
from cfel.launch.processes import name_process
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
    process_name.name_process("cfel device-12")
    assert (own.read_text() if own.exists() else "") == before
