"""The certificate of a dashboard, read again when its files change: new connections use the new one."""

import asyncio
import logging
import ssl
from pathlib import Path

LOOK_SECONDS = 5.0
"""How often the files are looked at."""

_LOG = logging.getLogger(__name__)


async def follow_files(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Loads the files into the context whenever they change, until cancelled.

    Args:
        context: has the certificate already.
        certificate: PEM file.
        key: PEM file.
    """
    seen = _look(certificate, key)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        found = _look(certificate, key)
        if found == seen:
            continue
        try:
            _load(context, certificate, key)
        except (OSError, ssl.SSLError) as error:
            # Perhaps only one of the two is there yet, so it looks again.
            _LOG.warning("the dashboard keeps its certificate; %s and %s: %s", certificate, key, error)
            continue
        seen = found
        _LOG.info("the dashboard uses the new %s", certificate)


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    # A pair that does not match would leave the context with half of it.
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    context.load_cert_chain(certificate, key)


def _look(*paths: Path) -> tuple[tuple[int, int, int], ...]:
    """Changes when a file does."""
    found = (path.stat() for path in paths if path.exists())
    return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)
