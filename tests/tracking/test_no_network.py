"""Trackers keep to this machine: in a network namespace with a link to nowhere, they send nothing over it."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SINKS = Path(__file__).with_name("test_sinks.py")
# Names are looked up beyond the link as well. It is quiet by itself: no IPv6 addresses.
PREPARE = """
set -e
mount --bind "$1" /etc/resolv.conf
ip link set lo up
ip link add out type veth peer name nowhere
for link in out nowhere; do ip link set "$link" addrgenmode none; ip link set "$link" up; done
ip address add 192.0.2.1/24 dev out
ip route add default dev out
shift
"$@" >&2
ip -stats -json link show out
"""


def count_packets(folder: Path, *command: str) -> int:
    """Runs a command in a new namespace, and counts the packets that left through its link."""
    names = folder / "resolv.conf"
    names.write_text("nameserver 192.0.2.53\noptions timeout:1 attempts:1\n", encoding="utf-8")
    enter = ("unshare", "--map-root-user", "--net", "--mount", "sh", "-c", PREPARE, "sh", str(names))
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run([*enter, *command], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    packets: int = json.loads(done.stdout)[0]["stats64"]["tx"]["packets"]
    return packets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder, if namespaces can be made here."""
    missing = [name for name in ("unshare", "ip") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")
    try:
        assert count_packets(tmp_path, "true") == 0
    except AssertionError as error:
        pytest.skip(f"namespaces are not allowed here: {error}")
    return tmp_path


@pytest.mark.long
def test_a_request_would_be_seen(folder: Path) -> None:
    """By its address, and by its name."""
    connect = "import socket, sys\ns = socket.socket()\ns.settimeout(1)\ns.connect_ex((sys.argv[1], 80))"
    look_up = "import socket, sys\ntry: socket.getaddrinfo(sys.argv[1], 80)\nexcept OSError: pass"
    assert count_packets(folder, sys.executable, "-c", connect, "198.51.100.1") > 0
    assert count_packets(folder, sys.executable, "-c", look_up, "example.org") > 0


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tracker", ["mlflow", "wandb", "trackio"])
def test_a_tracker_sends_nothing(tracker: str, folder: Path) -> None:
    """While a run is tracked, interrupted, resumed and finished."""
    if find_spec(tracker) is None:
        pytest.skip(f"{tracker} is not installed")
    test = f"{SINKS}::test_{tracker}"
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test)
    assert count_packets(folder, *command) == 0
