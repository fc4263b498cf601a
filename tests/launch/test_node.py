"""How a node's process starts, fails and serves its dashboard; `tests/deployment` tests the node itself."""

import asyncio
import socket
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from cfel.deployment.node import Node, run_device, run_edge
from cfel.deployment.protocol.calls import ExperimentCheck
from cfel.deployment.security.certificates import issue, make_authority
from cfel.deployment.security.identity import Identity
from cfel.errors import DashboardError, ExperimentError, InputError
from cfel.launch.node import NodeFile, _make_dashboard, read_node, run_until_stopped, write_node
from cfel.status import Status
from tests.simulation.drive import tiny

SAME = ExperimentCheck({})


async def fail(error: Exception) -> None:
    raise error


async def together(*errors: Exception) -> None:
    """As an edge server: one task ends all others."""
    async with asyncio.TaskGroup() as outer:
        outer.create_task(asyncio.sleep(60))
        async with asyncio.TaskGroup() as group:
            for error in errors:
                group.create_task(fail(error))


def test_the_expected_error_of_a_group_of_tasks_is_reported() -> None:
    with pytest.raises(DashboardError, match="taken") as reported:
        asyncio.run(run_until_stopped(together(DashboardError("taken"))))
    assert reported.value.__suppress_context__


def test_a_defect_is_reported_with_its_trace() -> None:
    with pytest.raises(ExceptionGroup) as reported:
        asyncio.run(run_until_stopped(together(DashboardError("taken"), ZeroDivisionError())))
    assert reported.group_contains(ZeroDivisionError)


def test_addresses_of_all_edge_servers_are_needed(tmp_path: Path) -> None:
    """Also by an edge server that joins later, with the next numbers."""
    experiment = tiny(fleet={"devices": 4, "clusters": 2})
    world, deployment = experiment.build_world(), experiment.deployment
    node = Node(Identity("edge", 7), ("a:1", "b:2"), tmp_path, tmp_path)
    with pytest.raises(InputError, match=r"edge-7: addresses has 2 entries, must have 8"):
        asyncio.run(run_edge(world, deployment, node, SAME))
    node = replace(node, identity=Identity("device", 3), addresses=("a:1",))
    with pytest.raises(InputError, match=r"device-3: addresses has 1 .* 2"):
        asyncio.run(run_device(world, deployment, node, SAME))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as trial:
        return int(trial.getsockname()[1])


def node_file(directory: Path) -> NodeFile:
    node = Node(Identity("edge", 0), ("a:1",), directory, directory)
    return NodeFile(node, directory / "e.toml", dashboard=f"127.0.0.1:{free_port()}", dashboard_tls=True)


def test_tls_with_the_certificate_of_the_node(tmp_path: Path) -> None:
    """Readers trust the authority; names in the certificate are accepted as host names, others are not."""
    make_authority(tmp_path)
    issue(tmp_path, Identity("edge", 0), 1, ("harbour.example",))
    file = node_file(tmp_path)
    trust = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))

    async def ask(name: str) -> bytes:
        port = int(str(file.dashboard).rpartition(":")[2])
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trust, server_hostname="harbour.example"
        )
        writer.write(f"GET /healthz HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.readline()
        writer.close()
        return answer

    async def play() -> list[bytes]:
        serving = asyncio.create_task(_make_dashboard(tiny(), file)(lambda: Status(node="edge-0")))
        try:
            async with asyncio.timeout(30):
                while True:
                    try:
                        return [
                            await ask(name) for name in ("harbour.example", "edge-0.cfel", "evil.example")
                        ]
                    except OSError:
                        await asyncio.sleep(0.05)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    good, own, evil = asyncio.run(play())
    assert good == own == b"HTTP/1.1 200 OK\r\n"
    assert evil.startswith(b"HTTP/1.1 421")


def test_the_key_in_the_file(tmp_path: Path) -> None:
    path, file = tmp_path / "edge-0.toml", node_file(tmp_path)
    write_node(path, file)
    assert read_node(path).dashboard_tls
    write_node(path, replace(file, dashboard_tls=False))
    assert not read_node(path).dashboard_tls
    path.write_text(path.read_text() + 'dashboard_tls = "yes"\n')
    with pytest.raises(ExperimentError, match="dashboard_tls = 'yes': "):
        read_node(path)
