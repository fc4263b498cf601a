"""A node's certificate, key and authority, read again when their files change; no restart is needed.

New files are used once they are complete and valid. Until then, and whatever is wrong with them, the node
keeps those that it has. How connections follow is up to `transport.grpc_transport`.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cfel.deployment.security.certificates import REVOKED
from cfel.deployment.security.expiry import Validity
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.node_credentials import credential_paths, read_credentials
from cfel.errors import DeploymentError

LOOK_SECONDS = 1.0
"""How often files are looked at, at most."""
SETTLE_SECONDS = 10.0
"""Files that are copied one after the other do not match for a moment; after this it is a problem."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    """A node's certificate, key and authority in PEM format, and where the list of revoked ones is."""

    authority: bytes
    certificate: bytes
    key: bytes
    revoked: Path

    @classmethod
    def read(cls, directory: Path, identity: Identity) -> "Credentials":
        """Reads those that `cfel certs` wrote to a directory.

        Raises:
            CredentialsError: one of them is missing, or they do not belong to the node or to each other.
            DeploymentError: the certificate is not valid yet, by this machine's clock.
        """
        return cls(*read_credentials(directory, identity), directory / REVOKED)

    def current(self) -> "Credentials":
        """See `CredentialSource`: always these."""
        return self


class CredentialSource(Protocol):
    """Where connections take their credentials from."""

    def current(self) -> Credentials:
        """Those to use for new connections; the same object while they do not change."""
        ...


class CredentialFiles:
    """The files of one node.

    Args:
        directory: where they are.
        identity: the node.
        now: a monotonic clock.

    Attributes:
        problem: why new files are not used, in words; empty if there are none.

    Raises:
        DeploymentError: as `Credentials.read`.
    """

    def __init__(
        self, directory: Path, identity: Identity, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory, self._identity, self._now = directory, identity, now
        self._paths = credential_paths(directory, identity)
        # gRPC asks from threads of its own.
        self._lock = threading.Lock()
        self._seen = self._look()
        self._credentials = Credentials.read(directory, identity)
        self._validity = Validity.read(self._credentials.certificate)
        self._looked_at, self._changed_at = now(), now()
        self._is_settled = True
        self.problem = ""

    @property
    def validity(self) -> Validity:
        """From when to when the certificate in use is valid."""
        return self._validity

    def current(self) -> Credentials:
        """See `CredentialSource`."""
        with self._lock:
            if self._now() - self._looked_at >= LOOK_SECONDS:
                self._looked_at = self._now()
                self._refresh()
            return self._credentials

    def _refresh(self) -> None:
        seen = self._look()
        if seen != self._seen:
            self._seen, self._changed_at, self._is_settled = seen, self._now(), False
        if self._is_settled:
            return
        try:
            found = Credentials.read(self._directory, self._identity)
        except DeploymentError as error:
            self._note(error)
            return
        self._is_settled, self.problem = True, ""
        if found != self._credentials:
            self._credentials, self._validity = found, Validity.read(found.certificate)
            _LOG.info("new certificate in use, valid until %s", f"{self._validity.end:%Y-%m-%d %H:%M} UTC")

    def _note(self, error: DeploymentError) -> None:
        if self._now() - self._changed_at < SETTLE_SECONDS:
            return
        self._is_settled = True
        self.problem = f"the new certificate files are not used: {error}"
        _LOG.warning("%s", self.problem)

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Changes when a file does."""
        return tuple(_look(path) for path in self._paths)


def _look(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # The inode shows a file that was replaced within one tick of the clock by one of the same size.
    return found.st_mtime_ns, found.st_size, found.st_ino
