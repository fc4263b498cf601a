"""Joining a Ray cluster, or starting one on this machine while a command runs.

Ray runs code for everyone who reaches its ports, and listens on every interface: see docs/guides/scale.md.
`cfel.scaleout.prepare` does what must happen before Ray is imported.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError

from cfel.errors import ScaleoutError
from cfel.scaleout import address_to_join


@contextmanager
def connect(address: str | None = None, cores: int = 0) -> Iterator[None]:
    """Makes this process the driver of a cluster.

    Args:
        address: of a cluster's head ("host:6379", or "auto" on one of its machines); None takes RAY_ADDRESS
            from the environment, or starts a cluster on this machine.
        cores: of a cluster that is started; 0 for all.

    Raises:
        ScaleoutError: there is no cluster at the address, or it rejected the connection.
    """
    if ray.is_initialized():  # by an outer `connect`, or by a program that uses cfel as a library
        yield
        return
    joined = address_to_join(address)
    try:
        if joined is None:
            _start_local(cores)
        else:
            ray.init(address=joined, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        where = "on this machine" if joined is None else f"at {joined!r}"
        raise ScaleoutError(f"no Ray cluster {where}: {first_line(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


def cluster_cores() -> int:
    """Cores of all living machines; at least one."""
    return max(1, int(sum(node["Resources"].get("CPU", 0) for node in list_live_nodes())))


def cluster_gpus() -> float:
    """GPUs of all living machines."""
    return float(sum(node["Resources"].get("GPU", 0) for node in list_live_nodes()))


def list_live_nodes() -> list[dict[str, Any]]:
    """Ray's description of every living machine."""
    return [node for node in ray.nodes() if node["Alive"]]


def first_line(error: BaseException) -> str:
    """The first line of an error's text: Ray appends whole stack traces."""
    return str(error).strip().partition("\n")[0]


def _start_local(cores: int) -> None:
    ray.init(
        address="local",
        num_cpus=cores or os.cpu_count() or 1,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
