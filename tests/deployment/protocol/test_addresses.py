"""Which addresses are taken, and why one cannot be listened on."""

import asyncio
import socket
from pathlib import Path

import pytest

from cfel.deployment.protocol.addresses import check_free, split_address
from cfel.deployment.protocol.grpc_transport import GrpcServer
from cfel.deployment.security.certificates import issue, make_authority
from cfel.deployment.security.credentials import Credentials
from cfel.deployment.security.identity import Identity
from cfel.errors import DeploymentError, InputError


def test_hosts_and_ports() -> None:
    assert split_address("listen", "10.0.0.1:7400") == ("10.0.0.1", 7400)
    assert split_address("listen", "edge-0.example:1") == ("edge-0.example", 1)
    assert split_address("listen", "[::1]:65535") == ("::1", 65535)


@pytest.mark.parametrize("given", ["edge", "10.0.0.1:", ":7400", "::1:7400", "a:65536", "a:0", "a:b", 7400])
def test_what_is_no_address(given: object) -> None:
    with pytest.raises(InputError, match="must be a host and a port") as rejected:
        split_address("listen", given)
    assert str(rejected.value).startswith(f"listen = {given!r}: ")


def test_free_and_taken(tmp_path: Path) -> None:
    """The server says it, too, as it looks first."""
    check_free("127.0.0.1:0")
    make_authority(tmp_path)
    issue(tmp_path, Identity("edge", 0), 1.0)
    credentials = Credentials.read(tmp_path, Identity("edge", 0))

    async def start(address: str) -> None:
        server = GrpcServer(credentials, {}, lambda *_: None)
        try:
            await server.start(address)
        finally:
            await server.stop(0)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(DeploymentError, match=f"cannot listen on {address}: the address is in use"):
            asyncio.run(start(address))
    asyncio.run(start(address))


def test_not_this_machines() -> None:
    with pytest.raises(DeploymentError, match=r"192\.0\.2\.1:7400: Cannot assign"):
        check_free("192.0.2.1:7400")
    with pytest.raises(DeploymentError, match=r"no\.such\.host\.invalid:7400: "):
        check_free("no.such.host.invalid:7400")
