"""Addresses of edge servers: "host:port". The port is required, as gRPC would take 443 without one."""

import errno
import re
import socket

from cfel.errors import DeploymentError, InputError, describe_error

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")


def split_address(what: str, given: object) -> tuple[str, int]:
    """Host and port of an address.

    Args:
        what: the key, for the error message.
        given: its value.

    Raises:
        InputError: it is not an address with a port.
    """
    found = _ADDRESS.fullmatch(given) if isinstance(given, str) else None
    if found is None or not 0 < int(found[2]) < 1 << 16:
        raise InputError(f"{what} = {given!r}: must be a host and a port from 1 to 65535, as 10.0.0.1:7400")
    return found[1].strip("[]"), int(found[2])


def join_address(host: str, port: int) -> str:
    """The address of a host and a port, with brackets where the host is an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_free(address: str) -> None:
    """Checks that a server can listen on an address: gRPC does not say why it cannot.

    Raises:
        DeploymentError: another process listens there, or it is not an address of this machine.
    """
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise DeploymentError(f"cannot listen on {address}: {describe_error(error)}") from error
    tried = [_find_bind_error(family, place) for family, *_, place in found]
    errors = [error for error in tried if error is not None]
    taken = [each for each in errors if each.errno == errno.EADDRINUSE]
    if taken:
        raise DeploymentError(f"cannot listen on {address}: the address is in use by another process")
    # A name may stand for several addresses, some of them of a protocol that this machine does not speak.
    if len(errors) == len(found):
        raise DeploymentError(f"cannot listen on {address}: {describe_error(errors[0])}")


def _find_bind_error(family: int, place: object) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(place)  # type: ignore[arg-type]
            trial.listen(1)
    except OSError as error:
        return error
    return None
