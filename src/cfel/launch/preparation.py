"""Prepares a federation on one machine: a certificate and a configuration file for every node."""

import socket
from pathlib import Path

from cfel.deployment.node import Node
from cfel.deployment.security.certificates import is_revoked, issue, make_authority
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.addresses import join_address
from cfel.durable import check_directory, make_directory
from cfel.errors import InputError, describe_error
from cfel.experiment import Experiment
from cfel.launch.logs import LogSettings
from cfel.launch.node_file import NodeFile, write_node
from cfel.world import World

LOOPBACK, LOOPBACK_V6 = "127.0.0.1", "::1"


def prepare_nodes(
    experiment: Experiment,
    world: World,
    out: Path,
    import_from: tuple[Path, ...],
    log: LogSettings | None = None,
) -> list[Path]:
    """Writes certificates and configuration files.

    Returns:
        The configuration files of edge servers, then of devices.
    """
    deployment = experiment.deployment
    certificates, nodes = out.absolute() / "certificates", out.absolute() / "nodes"
    # What nodes keep, their keys included, is for this user alone.
    make_directory(nodes, private=True)
    make_directory(certificates, private=True)
    make_authority(certificates)
    clusters = world.setting.fleet.clusters
    addresses = _find_addresses(deployment.host, clusters)
    loopback = LOOPBACK_V6 if ":" in deployment.host else LOOPBACK
    # On loopback, whatever the federation's host is: without a token nobody else may see it.
    dashboards = _find_addresses(loopback, clusters)
    identities = [
        *(Identity("edge", i) for i in range(world.setting.fleet.clusters)),
        *(Identity("device", n) for n in range(world.setting.fleet.devices)),
        Identity("operator", 0),
    ]
    for identity in identities:
        # A new certificate would readmit a node that was revoked before the federation was resumed.
        if not is_revoked(certificates, identity):
            issue(certificates, identity, deployment.certificate_hours, (deployment.host,))
        # A counter measures the whole host: with many devices on it, each would count the others too.
        energy = "model" if identity.role == "device" else "auto"
        check_directory(nodes / str(identity))
        node = Node(identity, addresses, nodes / str(identity), certificates, energy=energy)
        dashboard = dashboards[identity.number] if identity.role == "edge" else None
        file = NodeFile(
            node, out.absolute() / "experiment.toml", import_from, dashboard, log=log or LogSettings()
        )
        write_node(nodes / f"{identity}.toml", file)
    return [nodes / f"{identity}.toml" for identity in identities if identity.role != "operator"]


def _find_addresses(host: str, count: int) -> tuple[str, ...]:
    """Free addresses on a host."""
    return tuple(join_address(host, port) for port in find_free_ports(host, count))


def find_free_ports(host: str, count: int) -> list[int]:
    """Finds ports that are free at the moment.

    Raises:
        InputError: the host is not this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # All stay bound until the last is found, so that no port is found twice.
    sockets = [socket.socket(family) for _ in range(count)]
    try:
        for each in sockets:
            each.bind((host, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    except OSError as error:
        words = f"deployment.host = {host!r}: must be an address of this machine ({describe_error(error)})"
        raise InputError(words) from error
    finally:
        for each in sockets:
            each.close()
