"""Warns before a node's own certificate expires, as no other node admits it after that.

Nothing is renewed here; `cfel certs --renew` does that.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509

from cfel.deployment.security.identity import Identity, read_identity

MOST_NOTICE = timedelta(days=7)
"""Warnings begin so long before the end, or in the last quarter of a shorter lifetime."""
SHARE_OF_LIFETIME = 4
REPEAT = timedelta(hours=6)
_CHECK_SECONDS = 60.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a node's certificate is valid."""

    identity: Identity
    begin: datetime
    end: datetime

    @classmethod
    def read(cls, certificate_pem: bytes) -> "Validity":
        """Reads it from the certificate."""
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        return cls(read_identity(certificate), begin, end)

    def describe(self, now: datetime | None = None) -> str:
        """The warning, or nothing while the certificate is valid for long."""
        notice = min(MOST_NOTICE, (self.end - self.begin) / SHARE_OF_LIFETIME)
        now = now or datetime.now(UTC)
        if now <= self.end - notice:
            return ""
        verb = "expired" if now > self.end else "expires"
        return (
            f"the certificate of {self.identity} {verb} on {self.end:%Y-%m-%d %H:%M} UTC: renew it with "
            f"`cfel certs --renew {self.identity}` and copy it to this node; no restart is needed"
        )


@asynccontextmanager
async def watch_expiry(
    find_validity: Callable[[], Validity], now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> AsyncIterator[None]:
    """Logs the warning once it is due, again and again, until the block ends.

    Args:
        find_validity: of the certificate in use, which may be renewed.
        now: the time of day.
    """
    task = asyncio.create_task(_log_expiry(find_validity, now))
    try:
        yield
    finally:
        task.cancel()


async def _log_expiry(find_validity: Callable[[], Validity], now: Callable[[], datetime]) -> None:
    said, said_at = "", now()
    while True:
        warning = find_validity().describe(now())
        is_due = warning != said or now() - said_at > REPEAT
        if warning and is_due:
            _LOG.warning("%s", warning)
            said_at = now()
        said = warning
        await asyncio.sleep(_CHECK_SECONDS)
