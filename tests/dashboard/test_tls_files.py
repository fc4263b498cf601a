"""A dashboard's certificate that is renewed while it serves."""

import asyncio
import hashlib
import ssl
from pathlib import Path

import pytest

from cfel.dashboard import Dashboard, serve, server
from cfel.dashboard.server import follow_files
from cfel.deployment.security.certificates import issue, make_authority
from cfel.deployment.security.identity import Identity
from tests.dashboard.test_server import now

EDGE = Identity("edge", 0)


def shown_certificate(address: str) -> str:
    """A digest of the certificate that a new connection is shown."""
    port = int(address.rstrip("/").rpartition(":")[2])
    return hashlib.sha256(
        ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))
    ).hexdigest()


def stored_certificate(directory: Path) -> str:
    """The same of the certificate in a file."""
    pem = (directory / f"{EDGE}.pem").read_text()
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def test_a_renewed_certificate_is_shown_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.01)
    make_authority(tmp_path)
    issue(tmp_path, EDGE, hours=1)

    async def play() -> None:
        certificate = tmp_path / f"{EDGE}.pem"
        async with serve(
            Dashboard(now, 1.0), certificate=certificate, key=certificate.with_suffix(".key")
        ) as address:
            before = await asyncio.to_thread(shown_certificate, address)
            assert before == stored_certificate(tmp_path)
            issue(tmp_path, EDGE, hours=1)
            async with asyncio.timeout(60):
                while (shown := await asyncio.to_thread(shown_certificate, address)) == before:
                    await asyncio.sleep(0.01)
            assert shown == stored_certificate(tmp_path)

    asyncio.run(play())


def test_a_pair_that_does_not_match_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The context keeps working with the pair before, until the other half is there."""
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.001)
    make_authority(tmp_path)
    issue(tmp_path, EDGE, hours=1)
    certificate, key = tmp_path / f"{EDGE}.pem", tmp_path / f"{EDGE}.key"
    old_key = key.read_bytes()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def play() -> None:
        following = asyncio.create_task(follow_files(context, certificate, key))
        await asyncio.sleep(0.01)
        issue(tmp_path, EDGE, hours=1)
        new_key = key.read_bytes()
        key.write_bytes(old_key)
        async with asyncio.timeout(60):
            while "keeps its certificate" not in caplog.text:
                await asyncio.sleep(0.01)
            assert handshake(context) != stored_certificate(tmp_path)
            key.write_bytes(new_key)
            while handshake(context) != stored_certificate(tmp_path):
                await asyncio.sleep(0.01)
        following.cancel()

    asyncio.run(play())


def handshake(context: ssl.SSLContext) -> str:
    """A digest of the certificate that the context shows, by a handshake in memory."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    host = context.wrap_bio(to_server, to_client, server_side=True)
    client = trusting.wrap_bio(to_client, to_server)
    while (shown := client.getpeercert(binary_form=True) if client.version() else None) is None:
        for side in (client, host):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return hashlib.sha256(shown).hexdigest()
