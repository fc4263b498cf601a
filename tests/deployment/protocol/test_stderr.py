"""gRPC's own lines: none on standard error, unless the user asks for them."""

import os
import subprocess
import sys

import pytest

CLIENT_WITH_PLAIN_TEXT = """
import asyncio, tempfile
from pathlib import Path
from cfel.deployment.security.certificates import issue, make_authority
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.credentials import Credentials
from cfel.deployment.protocol.grpc_transport import GrpcServer

async def main():
    with tempfile.TemporaryDirectory() as name:
        make_authority(Path(name))
        issue(Path(name), Identity("edge", 0), 1)
        server = GrpcServer(Credentials.read(Path(name), Identity("edge", 0)), {}, lambda *_: None)
    port = await server.start("127.0.0.1:0")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\\r\\n\\r\\n")
    await reader.read()
    writer.close()
    await server.stop(0)

asyncio.run(main())
"""


@pytest.mark.parametrize(("variable", "is_silent"), [(None, True), ("INFO", False)])
def test_a_failed_handshake(variable: str | None, is_silent: bool) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_VERBOSITY"}
    if variable is not None:
        environment["GRPC_VERBOSITY"] = variable
    command = [sys.executable, "-c", CLIENT_WITH_PLAIN_TEXT]
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert (found.stderr == "") is is_silent
