"""A host behind a slow link of the kernel's: a network namespace whose cable has a token bucket at both ends.

Packets are shaped as on a real link, with TCP and all. Needs root, `ip` and `tc`. The kernel's `netem`, which
would add a delay, is not everywhere: `link_shaper` adds it at the end of the cable, byte by byte.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cfel.errors import DeploymentError

_COMMAND_SECONDS = 20.0
_HERE, _THERE, _PREFIX_BITS = "10.78.77.1", "10.78.77.2", 30
# What a link may hold before it drops packets; a modem's buffer is about as long.
_QUEUE = ("burst", "4kb", "latency", "400ms")


@dataclass(frozen=True, slots=True)
class ShapedNamespace:
    """A namespace at the far end of a slow link.

    Attributes:
        name: of the namespace.
        address: where it reaches this side of the link.
    """

    name: str
    address: str

    def wrap(self, *command: str) -> list[str]:
        """The command that runs another one in the namespace."""
        return ["ip", "netns", "exec", self.name, *command]


def find_missing() -> str:
    """What is missing to make one, in words; empty if nothing is."""
    missing = [f"`{name}`" for name in ("ip", "tc") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        return " and ".join(missing if os.geteuid() == 0 else ["root", *missing])
    try:
        # Root in a container may not be allowed to, and a kernel may lack the token bucket.
        with shape_namespace(1e6):
            return ""
    except DeploymentError as error:
        return f"what this system does not allow: {error}"


@contextmanager
def shape_namespace(bits_per_second: float) -> Iterator[ShapedNamespace]:
    """Makes a namespace with this rate in each direction, and removes it when the context ends.

    Raises:
        DeploymentError: the kernel does not have what it takes.
    """
    name = f"cfel{os.getpid()}"
    with _namespace(name), _cable(name):
        _run("ip", "address", "add", f"{_HERE}/{_PREFIX_BITS}", "dev", name)
        _run("ip", "link", "set", name, "up")
        _run("ip", "-n", name, "address", "add", f"{_THERE}/{_PREFIX_BITS}", "dev", "eth0")
        for link in ("lo", "eth0"):
            _run("ip", "-n", name, "link", "set", link, "up")
        bucket = ("root", "tbf", "rate", f"{bits_per_second:.0f}bit", *_QUEUE)
        _run("tc", "qdisc", "add", "dev", name, *bucket)
        _run("tc", "-n", name, "qdisc", "add", "dev", "eth0", *bucket)
        yield ShapedNamespace(name, _HERE)


@contextmanager
def _namespace(name: str) -> Iterator[None]:
    _run("ip", "netns", "add", name)
    try:
        yield
    finally:
        _run("ip", "netns", "delete", name)


@contextmanager
def _cable(name: str) -> Iterator[None]:
    _run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
    try:
        yield
    finally:
        # It would go with its namespace, too, but the kernel removes those in its own time: the next cable of
        # this name would find the old one.
        _run("ip", "link", "delete", name)


def _run(*command: str) -> None:
    try:
        # Fixed commands of the system, looked up as root's shell would.
        subprocess.run(command, check=True, capture_output=True, timeout=_COMMAND_SECONDS)
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip()
        raise DeploymentError(f"{' '.join(command)}: {words}") from error
