"""Beyond one machine: devices' work, or whole runs, on a Ray cluster. The only package that imports ray.

Ray comes with an extra. This module can be imported without it, most of its neighbours cannot: they are
reached through the functions here, which say how to install Ray where it is missing, and see to a token
before Ray is loaded. What is computed does not depend on where: every result is the `threads` engine's.

    split      devices or whole runs: which way to share out a comparison
    groups     devices into tasks
    cluster    joins a cluster or starts one on this machine
    worker     what runs in a worker process: many virtual devices, one at a time
    roster     workers, who has what to do, and what to do again when one is lost
    executor   the round loop's executor
    sweep      whole runs as tasks
"""

import os
import secrets
import sys
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cfel.errors import InputError, ScaleoutError

if TYPE_CHECKING:
    from cfel.scaleout.executor import RayExecutor
    from cfel.simulation import SimulationParameters
    from cfel.world import World

INSTALL = "pip install 'cfel[ray]'"


def require_ray() -> None:
    """Raises an `InputError` with the command that installs Ray, where it is missing."""
    if find_spec("ray") is None:
        raise InputError(f"engine 'ray': Ray is not installed; install it with {INSTALL}")


def ray_executor(
    world: "World", parameters: "SimulationParameters", address: str | None = None
) -> "RayExecutor":
    """The executor on the cluster at `address`, or on one that is started here; a context manager."""
    prepare(address)
    from cfel.scaleout.executor import RayExecutor

    return RayExecutor(world, parameters, address)


def connection(address: str | None = None, cores: int = 0) -> AbstractContextManager[None]:
    """The cluster at `address`, or one that is started here with so many cores (0 for all)."""
    prepare(address)
    from cfel.scaleout.cluster import connected

    return connected(address, cores)


def prepare(address: str | None) -> None:
    """Everything that has to be settled before Ray is loaded, which reads the environment only once.

    A cluster that is to be started here gets a token of its own, made up on the spot; one that is joined has
    been secured, or not, by whoever started it.

    Raises:
        InputError: Ray is not installed.
        ScaleoutError: Ray has been loaded already, without tokens.
    """
    require_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if joined(address) is not None or os.environ.get("RAY_AUTH_MODE") == "token":
        return
    if "ray" in sys.modules:
        if sys.modules["ray"].is_initialized():
            return
        raise ScaleoutError("Ray was loaded without tokens: set RAY_AUTH_MODE=token before importing it")
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def joined(address: str | None) -> str | None:
    """The address of the cluster to join, or None to start one."""
    return address or os.environ.get("RAY_ADDRESS")
