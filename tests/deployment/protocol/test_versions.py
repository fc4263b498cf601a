"""Versions of the protocol: two of them are spoken, others are refused, and a node that is refused ends."""

import asyncio
import io
import os
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from cfel.deployment.edge.monitor import PeerMonitor
from cfel.deployment.election import rules
from cfel.deployment.election.member import Member
from cfel.deployment.election.rules import Electorate, Timing
from cfel.deployment.protocol import grpc_transport
from cfel.deployment.protocol.grpc_transport import SERVICE, GrpcClient
from cfel.deployment.protocol.messages import (
    OLDEST_VERSION,
    PROTOCOL_VERSION,
    Message,
    join_message,
    split_message,
)
from cfel.deployment.security.credentials import Credentials
from cfel.errors import NotAdmittedError, VersionError
from cfel.experiment import experiment_toml
from cfel.launch.federation import LaunchOptions, prepare_nodes
from cfel.runlog import RunDirectory
from tests.deployment.conftest import deployed
from tests.deployment.protocol.test_grpc_transport import DEVICE, EDGE, LIMIT, certificates, serving
from tests.simulation.drive import timeless

__all__ = ["certificates"]
ROOT = Path(__file__).parents[3]
GIT = shutil.which("git") or ""
BEFORE = "2aa3c9f3"
"""The last commit that speaks version 6 only."""
NEWER_KEYS = (
    *("fail_over", "kept_plans", "publish_every", "published_models"),
    *("theta", "bits", "step_size", "download_theta", "download_bits"),
)
"""Keys of experiment files that it does not know."""


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def test_two_versions_are_spoken() -> None:
    assert (OLDEST_VERSION, PROTOCOL_VERSION) == (6, 7)


@pytest.mark.parametrize("version", [OLDEST_VERSION, PROTOCOL_VERSION])
def test_a_message_keeps_its_version(version: int) -> None:
    (sent,) = split_message(Message(b"header", version=version))
    assert struct.unpack_from("<H", sent, 4) == (version,)
    assert asyncio.run(join_message(pieces(sent), 0)).version == version


@pytest.mark.parametrize("version", [0, OLDEST_VERSION - 1, PROTOCOL_VERSION + 1, 65535])
def test_others_are_refused(version: int) -> None:
    (sent,) = split_message(Message(b"header", version=version))
    words = f"protocol version {version}, this node speaks 6 and 7: upgrade the older node"
    with pytest.raises(VersionError, match=words):
        asyncio.run(join_message(pieces(sent), 0))
    # Whoever is refused for this ends, as for any other reason why it may not take part.
    assert issubclass(VersionError, NotAdmittedError)


def test_a_server_answers_in_the_version_of_the_caller(certificates: Path) -> None:
    async def play() -> list[int]:
        async with serving(certificates) as (address, _):
            client = GrpcClient(Credentials.read(certificates, DEVICE), {EDGE: address}, LIMIT)
            try:
                new = await client.send(EDGE, "echo", Message(), 10)
                client._versions[EDGE] = OLDEST_VERSION
                return [new.version, (await client.send(EDGE, "echo", Message(), 10)).version]
            finally:
                await client.close()

    assert asyncio.run(play()) == [PROTOCOL_VERSION, OLDEST_VERSION]


def test_a_server_of_the_previous_version_is_spoken_to(certificates: Path) -> None:
    """It knows version 6 only and says so as version 6 did; it is asked once, and then in its version."""
    seen: list[int] = []

    async def serve_old(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        seen.extend([struct.unpack_from("<H", piece, 4)[0] async for piece in requests])
        if seen[-1] != 6:
            words = f"protocol version {seen[-1]}, this node speaks only 6: install the same version of cfel"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, words)
        for piece in split_message(Message(b"old", version=6)):
            yield piece

    async def play() -> list[bytes]:
        server = grpc.aio.server()
        handlers = {"echo": grpc.stream_stream_rpc_method_handler(serve_old)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        own = Credentials.read(certificates, EDGE)
        secure = grpc.ssl_server_credentials(
            [(own.key, own.certificate)], own.authority, require_client_auth=True
        )
        port = server.add_secure_port("127.0.0.1:0", secure)
        await server.start()
        address = f"127.0.0.1:{port}"
        client = GrpcClient(Credentials.read(certificates, DEVICE), {EDGE: address}, LIMIT)
        try:
            return [(await client.send(EDGE, "echo", Message(b"x"), 10)).header for _ in range(2)]
        finally:
            await client.close()
            await server.stop(0)

    assert asyncio.run(play()) == [b"old", b"old"]
    assert seen == [7, 6, 6]


def test_a_caller_two_versions_ahead_hears_why(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_transport, "PROTOCOL_VERSION", 9)
    monkeypatch.setattr(grpc_transport, "OLDEST_VERSION", 8)

    async def play() -> None:
        async with serving(certificates) as (address, rejections):
            client = GrpcClient(Credentials.read(certificates, DEVICE), {EDGE: address}, LIMIT)
            try:
                with pytest.raises(VersionError, match="edge-0, echo: protocol version 8, this node speaks"):
                    await client.send(EDGE, "echo", Message(), 10)
            finally:
                await client.close()
            assert len(rejections) == 2

    asyncio.run(play())


@pytest.mark.parametrize(
    ("others", "refused_by", "ends"),
    [(0, 0, False), (1, 0, False), (1, 1, True), (2, 1, False), (2, 2, True), (4, 2, False), (4, 3, True)],
)
def test_an_edge_server_ends_if_those_it_needs_refuse_its_version(
    others: int, refused_by: int, ends: bool
) -> None:
    """Of 1 + `others`: without those who refuse it, there is no majority left."""
    monitor = object.__new__(PeerMonitor)
    electorate = Electorate(0, tuple(range(others + 1)), Timing())
    state = rules.start(electorate, rules.Vote(), 0.0, 0.0)
    monitor._member = cast(Member, SimpleNamespace(state=state))
    monitor._other_versions = set(range(1, refused_by + 1))
    monitor._rejections = dict.fromkeys(monitor._other_versions, "protocol version 9")
    if ends:
        with pytest.raises(VersionError, match="protocol version 9"):
            monitor._check_versions()
    else:
        monitor._check_versions()


FUTURE = """
import sys
from cfel.deployment.protocol import messages
messages.PROTOCOL_VERSION, messages.OLDEST_VERSION = 9, 8
from cfel.cli import main
sys.exit(main(sys.argv[1:]))
"""


def start(config: Path, *python: str, source: Path | None = None) -> "subprocess.Popen[bytes]":
    """A node as a process; of another source tree if one is named."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if source is not None:
        environment["PYTHONPATH"] = str(source)
    role, log = config.stem.partition("-")[0], str(config.with_suffix(".log"))
    command = [sys.executable, *(python or ("-m", "cfel")), role, "--config", str(config), "--log", log]
    return subprocess.Popen(command, env=environment, cwd=config.parent, stderr=subprocess.DEVNULL)


def end(nodes: "list[subprocess.Popen[bytes]]") -> None:
    for node in nodes:
        if node.poll() is None:
            node.kill()
        node.wait(30)


def prepare(tmp_path: Path) -> list[Path]:
    """Node files of a federation of three edge servers and six devices."""
    experiment = deployed(election_seconds=1.0)
    world = experiment.build_world()
    (tmp_path / "run").mkdir()
    # A machine that is not upgraded keeps its file.
    lines = experiment_toml(experiment).splitlines()
    older = [line for line in lines if line.partition(" = ")[0] not in NEWER_KEYS]
    (tmp_path / "run" / "experiment.toml").write_text("\n".join(older))
    return prepare_nodes(experiment, world, tmp_path / "run", LaunchOptions())


@pytest.mark.long
@pytest.mark.timeout(240)
def test_nodes_from_the_future_end_with_their_own_exit_code(tmp_path: Path) -> None:
    configs = {path.stem: path for path in prepare(tmp_path)}
    nodes = [start(configs[name]) for name in ("edge-1", "edge-2")]
    ahead = [start(configs[name], "-c", FUTURE) for name in ("edge-0", "device-2")]
    try:
        assert [node.wait(120) for node in ahead] == [7, 7]
        assert [node.poll() for node in nodes] == [None, None]
    finally:
        end([*nodes, *ahead])


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.skipif(not GIT, reason="git is not installed")
def test_a_federation_of_both_versions_equals_the_simulation(
    tmp_path: Path, simulated: list[dict[str, Any]]
) -> None:
    """One edge server and two devices have the code of before; the others that of today."""
    archive = subprocess.run([GIT, "archive", BEFORE, "src"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"commit {BEFORE} is not here")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(tmp_path / "before", filter="data")
    old = tmp_path / "before" / "src"
    nodes = [
        start(path, source=old if path.stem in ("edge-0", "device-0", "device-3") else None)
        for path in prepare(tmp_path)
    ]
    try:
        assert [node.wait(300) for node in nodes] == [0] * len(nodes)
    finally:
        end(nodes)
    for number in range(3):
        logged = RunDirectory.open(tmp_path / "run" / "nodes" / f"edge-{number}").records()
        assert timeless(list(logged)) == simulated
