"""Joining a Ray cluster, or starting one on this machine for as long as a command lasts.

Ray lets whoever reaches its ports run code, and listens on every interface: see docs/scale.md. What has to be
settled before it is loaded is `cfel.scaleout.prepare`'s.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError

from cfel.errors import ScaleoutError
from cfel.scaleout import joined


@contextmanager
def connected(address: str | None = None, cores: int = 0) -> Iterator[None]:
    """While it lasts, this process is the driver of a cluster.

    Args:
        address: of a cluster's head ("host:6379", or "auto" on one of its machines); None takes RAY_ADDRESS
            from the environment, or starts a cluster on this machine.
        cores: of a cluster that is started; 0 for all.

    Raises:
        ScaleoutError: there is no cluster at the address, or it refused us.
    """
    if ray.is_initialized():  # by an outer `connected`, or by a program that uses cfel as a library
        yield
        return
    wanted = joined(address)
    try:
        if wanted is None:
            _start(cores)
        else:
            ray.init(address=wanted, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        where = "on this machine" if wanted is None else f"at {wanted!r}"
        raise ScaleoutError(f"no Ray cluster {where}: {_first_line(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def several_nodes(nodes: int, cores: int) -> Iterator[str]:
    """A cluster of several nodes on this machine, to measure and to try out; yields its address.

    Args:
        nodes: how many.
        cores: of each.
    """
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cores, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=cores)
        yield str(cluster.address)
    finally:
        cluster.shutdown()


def cluster_cores() -> int:
    """Cores of all machines that are alive; at least one."""
    return max(1, int(sum(node["Resources"].get("CPU", 0) for node in living_nodes())))


def cluster_gpus() -> float:
    """GPUs of all machines that are alive."""
    return float(sum(node["Resources"].get("GPU", 0) for node in living_nodes()))


def living_nodes() -> list[dict[str, Any]]:
    """Ray's description of every machine that is alive."""
    return [node for node in ray.nodes() if node["Alive"]]


def _start(cores: int) -> None:
    ray.init(
        address="local",
        num_cpus=cores or os.cpu_count() or 1,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
