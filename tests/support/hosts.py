"""Hosts on one machine: network namespaces joined by a bridge. Needs root and `ip`."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cfel.errors import DeploymentError

_COMMAND_SECONDS = 20.0
_NETWORK = "10.77.0"
_HUB_NUMBER = 254


class Hosts:
    """Hosts 0, 1, … at 10.77.0.1, 10.77.0.2, …, and the hub between them at 10.77.0.254.

    Attributes:
        hub: namespace of the bridge; commands run there reach all hosts.
        names: namespaces of the hosts.
    """

    def __init__(self, prefix: str, count: int) -> None:
        self.hub = f"{prefix}-hub"
        self.names = [f"{prefix}-{i}" for i in range(count)]

    def find_address(self, host: int | None) -> str:
        """The address of a host; None for the hub."""
        return f"{_NETWORK}.{_HUB_NUMBER if host is None else host + 1}"

    def wrap(self, host: int | None, *command: str) -> list[str]:
        """The command that runs another one on a host; None for the hub."""
        return ["ip", "netns", "exec", self.hub if host is None else self.names[host], *command]

    def make(self) -> None:
        """Plugs everything together."""
        _run("ip", "netns", "add", self.hub)
        _run("ip", "-n", self.hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self.hub, "address", "add", f"{self.find_address(None)}/24", "dev", "bridge")
        for link in ("lo", "bridge"):
            _run("ip", "-n", self.hub, "link", "set", link, "up")
        for i, name in enumerate(self.names):
            _run("ip", "netns", "add", name)
            peer = ("peer", "name", "eth0", "netns", name)
            _run("ip", "-n", self.hub, "link", "add", f"cable{i}", "type", "veth", *peer)
            _run("ip", "-n", self.hub, "link", "set", f"cable{i}", "master", "bridge", "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "address", "add", f"{self.find_address(i)}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")

    def pull(self, host: int) -> None:
        """Cuts one host off."""
        _run("ip", "-n", self.hub, "link", "set", f"cable{host}", "down")

    def plug(self, host: int) -> None:
        """Joins it again."""
        _run("ip", "-n", self.hub, "link", "set", f"cable{host}", "up")

    def remove(self) -> None:
        """Takes everything down that is there."""
        for name in (*self.names, self.hub):
            with suppress(DeploymentError):
                _run("ip", "netns", "delete", name)


@contextmanager
def make_hosts(count: int) -> Iterator[Hosts]:
    """Makes hosts, and removes them when the context ends.

    Raises:
        DeploymentError: this system does not allow it.
    """
    if shutil.which("ip") is None or os.geteuid() != 0:
        raise DeploymentError("needs root and the `ip` command to make network namespaces")
    made = Hosts(f"cfel{os.getpid()}", count)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def _run(*command: str) -> None:
    try:
        # Fixed commands of the system, looked up as root's shell would.
        subprocess.run(command, check=True, capture_output=True, timeout=_COMMAND_SECONDS)
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip()
        raise DeploymentError(f"this system lets no network namespaces be made: {words}") from error
