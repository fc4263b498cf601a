"""Beyond one machine: device work, or whole runs, on a Ray cluster. The only package that imports ray.

Ray is an optional extra. This module can be imported without it. Use the functions here to reach the other
modules: they report how to install Ray, and set a token before Ray is imported. Results do not depend on
where they are computed: they equal the `threads` engine's, bit for bit.

    workers     the round loop's executor, the workers that it gives jobs to, and the cluster they are on
    whole_runs  whole runs as jobs
"""

import os
import secrets
import sys
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cfel.errors import InputError, ScaleoutError
from cfel.extras import MissingExtraError, install_command

if TYPE_CHECKING:
    from cfel.scaleout.workers import RayExecutor
    from cfel.simulation.parameters import SimulationParameters
    from cfel.world import World


def require_ray() -> None:
    """Raises an `InputError` with the command that installs Ray, if Ray is missing."""
    if find_spec("ray") is None:
        raise MissingExtraError(
            f"engine 'ray': Ray is not installed; install it with {install_command('ray')}"
        )


def ray_executor(
    world: "World", parameters: "SimulationParameters", address: str | None = None
) -> "RayExecutor":
    """An executor on the cluster at `address`, or on one started here; a context manager.

    Raises:
        InputError: the local algorithm cannot run on other processes, or Ray is not installed.
    """
    # First: installing Ray would be in vain.
    _require_steps(world)
    prepare(address)
    from cfel.scaleout.workers import RayExecutor

    return RayExecutor(world, parameters, address)


def _require_steps(world: "World") -> None:
    from cfel.learning.local.algorithms import find_algorithm

    training = world.training
    if find_algorithm(training).train is not None:
        raise InputError(
            f"engine 'ray' cannot train with {training.local.algorithm!r}: it has its own training loop, "
            "which may remember things in this process; use --engine threads"
        )


def connect_cluster(address: str | None = None, cores: int = 0) -> AbstractContextManager[None]:
    """Connects to the cluster at `address`, or to one started here with this many cores (0 for all)."""
    prepare(address)
    from cfel.scaleout.workers import connect

    return connect(address, cores)


def prepare(address: str | None) -> None:
    """Sets the environment that Ray reads once, when it is imported.

    A cluster that is started here gets a new random token. The security of a cluster that is joined was
    decided when it was started.

    Raises:
        InputError: Ray is not installed.
        ScaleoutError: Ray has been imported already, without tokens.
    """
    require_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address_to_join(address) is not None or os.environ.get("RAY_AUTH_MODE") == "token":
        return
    if "ray" in sys.modules:
        if sys.modules["ray"].is_initialized():
            return
        raise ScaleoutError("Ray was imported without tokens: set RAY_AUTH_MODE=token before importing it")
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def address_to_join(address: str | None) -> str | None:
    """The address of the cluster to join, or None to start one."""
    return address or os.environ.get("RAY_ADDRESS")
